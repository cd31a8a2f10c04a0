"""What the front door says: help that explains every argument, messages that name the cause."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.cli import code_of
from tests.support.problems import blobs, small_run
from tests.support.product import Spec

DOCS = Path(__file__).resolve().parents[2] / "docs"
X, Y = blobs(60)


@pytest.mark.parametrize("function", [fr.run, fr.compare, fr.split])
def test_help_explains_every_argument(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    explained = re.findall(r"^ {4}(\w+): ", text, flags=re.MULTILINE)
    assert explained == [*inspect.signature(function).parameters]
    assert " object at 0x" not in str(inspect.signature(function))


def test_the_commands_of_the_pages_can_be_typed() -> None:
    commands = [
        line
        for page in (DOCS / "algorithms").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("fedrift run ")
    ]
    assert len(commands) > 30
    for command in commands:
        Spec(algorithm=shlex.split(command)[2]).validate()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(5, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + b.sum()


class Line(nn.Module):
    """A class for each place of a line, with the axes in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.unsqueeze(-1))


PLACES = torch.full((60, 8), 20)
SAID: list[tuple[Any, Any, Tensor, str]] = [
    (Two, X, Y, r"Two cannot be called with two samples, a batch of shape \(2, 8\)"),
    (Two, {"a": X[:, :5], "c": X}, Y, r"keyword arguments a \(2, 5\), c \(2, 8\) .*dict"),
    (Two, (X, X), Y, r"2 arguments of shape \(2, 8\), \(2, 8\) \(the tuple x"),
    (Line, X, PLACES, r"label 20.*dimension 1 of the output \(N, 8, 50\) is taken as classes"),
    (Line, X, PLACES[:, :5] // 9, r"dimension 1 of the output \(N, 8, 50\) is taken as classes"),
]


@pytest.mark.parametrize(("model", "x", "y", "says"), SAID)
def test_what_does_not_fit_is_named(model: Any, x: Any, y: Tensor, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", model=model, clients=[(x, y)], test=None, per_round=None)


def test_a_comparison_says_how_much_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--rounds", "2", "--clients", "3", "--model", "logistic", "--workers", "0"]
    assert code_of(["compare", "fedavg", "fedprox", *how]) == 0
    said = capsys.readouterr().err
    assert "2 runs, 4 rounds in all" in said
    assert re.search(r"1 of 2: fedavg, seed 0: done, accuracy 0\.\d+, about .* left", said)
    assert re.search(r"2 of 2: fedprox, seed 0: done, accuracy 0\.\d+$", said, re.MULTILINE)


def test_a_model_by_name_gets_as_many_outputs_as_there_are_labels() -> None:
    x, y = torch.randn(30, 1, 8, 8), torch.arange(30) % 3
    how: dict[str, Any] = {"clients": [(x, y)] * 2, "rounds": 1, "workers": 0}
    made = fr.run("fedavg", model="logistic", test=(x, y + 1), **how)
    assert sorted(tuple(w.shape) for w in made.tensors().values()) == [(4,), (4, 64)]
    with pytest.raises(fr.InputError, match="did you mean 'logistic'"):
        fr.run("fedavg", model="logistics", **how)
    with pytest.raises(fr.InputError, match=r"model='mlp'.*labels"):
        fr.run("fedavg", model="mlp", clients=[(x, torch.randn(30))], rounds=1)
