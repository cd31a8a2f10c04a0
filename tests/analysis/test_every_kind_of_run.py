"""Runs of every kind under the microscope: each is measured, or a sentence says why it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrift.analysis import MEASURES, NotMeasured, Options
from fedrift.cli import code_of
from fedrift.figures.style import empty_figure
from fedrift.storage.jsonl import dump
from tests.support.product import Loader

OWN = """
import torch
from torch import nn

class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(4 * 36, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.out(self.drop(x.flatten(1)))

class Bare(nn.Module):
    "Only its own parameters, whose layer is used twice."
    def __init__(self):
        super().__init__()
        self.same = nn.Linear(64, 64)
        self.scale = nn.ParameterList([nn.Parameter(torch.randn(64, 10) / 8)])

    def forward(self, x):
        return self.same(self.same(x.flatten(1))) @ self.scale[0]

def pinball(output, target):
    gap = target - output
    return (0.7 * gap.clamp(min=0) - 0.3 * gap.clamp(max=0)).mean()
"""
HOW = "--partition dirichlet:0.3 --clients 6 --rounds 3 --batch-size 16 --workers 0 --quiet --out"
FEW = Options(images=30, clients=3, steps=4)
FAST = ("batchnorm", "one-client", "own-loss")
NOT_CLASSES = {"classes", "predictions"}
UNTRAINED = {"cka", "drift"}

KINDS: dict[str, tuple[str, set[str]]] = {
    "batchnorm": ("fedavg --model kinds_own:Normed --head out", set()),
    "no-layer": ("fedavg --model kinds_own:Bare", {"cka"}),
    "fraction": ("scaffold --model logistic --clients 9 --fraction 0.35", set()),
    "bernoulli": ("fedavg --model logistic --fraction 0.05 --sampling bernoulli", {"cka"}),
    "one-client": ("feddyn --model logistic --per-round 1", {"cka"}),
    "fed3r": ("fed3r --model mlp", UNTRAINED),
    "fed3r-and-training": ("fed3rft(fedavg) --model mlp --rounds 8", set()),
    "no-gradient-steps": ("fedsgd --model logistic", UNTRAINED),
    "many-clients": (
        "fedavg --model logistic --clients 400 --per-round 150 --partition iid",
        set(),
    ),
    "seldom-evaluated": ("fedavg --model logistic --eval-every 2", set()),
    "regression": ("fedavg --data npz:lines.npz --loss mse --model mlp", NOT_CLASSES),
    "own-loss": (
        "fedavg --data npz:lines.npz --loss kinds_own:pinball --model logistic",
        NOT_CLASSES,
    ),
    "several-labels": ("fedavg --data npz:labels.npz --loss bce --model logistic", NOT_CLASSES),
    "generated": (
        "fedavg --data synthetic:1,1 --model logistic --partition natural",
        {"predictions"},
    ),
    "stragglers": ("fedavg --model logistic --faults dropout:0.4", set()),
    "median": ("fedavg --model logistic --weights uniform --aggregate median", set()),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "kinds_own.py").write_text(OWN)
    x = np.random.default_rng(0).normal(size=(200, 30)).astype(np.float32)
    np.savez("lines.npz", x=x, y=x @ np.linspace(-1, 1, 30))
    np.savez("labels.npz", x=x, y=np.stack([x[:, 0] > 0, x[:, 1] > 0], axis=1))
    return tmp_path


def ran(words: str) -> int:
    """The run of a kind: what it says of itself takes the place of what is usual."""
    given: list[str] = words.split()
    how: list[str] = str(HOW).split()
    for flag in [word for word in given if word.startswith("--") and word in how]:
        at = how.index(flag)
        del how[at : at + 2]
    if "npz" in words:
        how[how.index("dirichlet:0.3")] = "iid"
    if "natural" in words:
        at = how.index("--clients")
        del how[at : at + 2]
    return code_of(["run", *given, *how, "run"])


@pytest.mark.parametrize(
    "kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_each_is_measured_or_a_sentence_says_why_not(kind: str, place: Path) -> None:
    words, without = KINDS[kind]
    assert ran(words) == 0
    case, missing = Loader().case("run"), set[str]()
    for what, measure in MEASURES.items():
        try:
            found = measure(case, FEW)
        except NotMeasured:
            missing.add(what)
            continue
        assert not any("nan" in sentence for sentence in found.sentences)
        dump(found.numbers)
        for draw in found.figures.values():
            draw(empty_figure())
        if what == "hessian":
            values = found.numbers["global"]["eigenvalues"]
            assert values == [0.0] * 5 if kind == "own-loss" else abs(values[0]) > 0
    assert missing == without


def test_code_that_a_folder_names_runs_only_when_it_is_trusted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", "fedavg", "--model", "kinds_own:Normed", *HOW.split(), "run"]
    assert code_of(given) == 0
    (place / "kinds_own.py").write_text("raise SystemExit('it ran')")
    capsys.readouterr()
    assert code_of(["analyse", "run"]) == 2
    assert "would use 'kinds_own:Normed'" in capsys.readouterr().err
