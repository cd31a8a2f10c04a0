"""Inputs read out of gradients: against the formula, and what keeps them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedrift as fr
from fedrift.attack import gradients
from fedrift.attack.gradients import attack, correlations, ratios, read
from fedrift.cli import code_of
from fedrift.errors import InputError


def one_round(x: torch.Tensor, **options: Any) -> fr.Result:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    y = torch.arange(len(x)) % 3
    algorithm = options.pop("algorithm", "fedsgd")
    return fr.run(algorithm, model=net, clients=[(x, y)], rounds=1, workers=0, lr=1.0, **options)


def test_one_sample_stands_in_its_gradient_exactly() -> None:
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(1))
    rows = ratios(one_round(x, dtype="float64"))
    assert len(rows) > 5, "every unit that was active has it"
    torch.testing.assert_close(rows, x.double().expand(len(rows), 6), rtol=1e-6, atol=1e-8)


def test_a_unit_that_one_of_several_activates_has_that_one() -> None:
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))
    result = one_round(x, dtype="float64")
    found, near = read(result, x)
    start = result.problem.module(result.problem.w0, {})
    active = start[0](x.double()) > 0  # type: ignore[index]
    alone = active[:, active.sum(0) == 1].any(1)
    assert alone.any() and (near[alone.numpy()] > 1 - 1e-9).all()
    torch.testing.assert_close(found[alone], x[alone], rtol=1e-5, atol=1e-6)


def test_correlation_is_that_of_numpy() -> None:
    a, b = (torch.randn(n, 9, dtype=torch.float64) for n in (2, 4))
    expected = np.corrcoef(a.numpy(), b.numpy())[:2, 2:]
    np.testing.assert_allclose(correlations(a, b), expected, rtol=1e-9)


def test_noise_and_sums_keep_inputs_in() -> None:
    pytest.importorskip("dp_accounting", reason="noise needs fedrift[privacy]")
    made = attack("digits", samples=2, steps=(1,), noises=(0.1,), crowds=(16,))
    plain, averaged, noised, summed = made.readings
    assert plain.recovered == averaged.recovered == 1.0
    assert noised.recovered == 0.0 and noised.correlations.max() < 0.8
    assert noised.epsilon is not None and noised.epsilon > 1
    assert summed.correlations.mean() < plain.correlations.mean()
    again = attack("digits", samples=2, steps=(1,), noises=(0.1,), crowds=(16,))
    assert made.rows() == again.rows()


def test_without_the_library_noise_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "find_spec", lambda _: None)
    made = attack("digits", samples=1, steps=(1,), crowds=(2,))
    assert len(made.readings) == 3 and "fedrift[privacy]" in made.note


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--samples", "1", "--steps", "1", "--noises", "0.1", "--crowds", "2"]
    picture = tmp_path / "read.png"
    assert code_of(["attack", "gradients", *few, "--out", str(picture), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["settings"]
    assert rows[0]["read"] == 1.0 and picture.read_bytes().startswith(b"\x89PNG")
    assert code_of(["attack", "gradients", *few]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "FedSGD: the gradient" in out and "a correlation of 0.99 or more with the input" in out
    for wrong, words in (
        (["--model", "random-conv"], "first layer is not linear with a bias"),
        (["--data", "python-docs"], "the attack reads images"),
        (["--samples", "100000"], "use fewer"),
        (["--steps", "0"], "steps must be a whole number of at least 1"),
        (["--out", "a.txt"], "the ending must be one of"),
    ):
        assert code_of(["attack", "gradients", *wrong]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_a_first_layer_without_a_bias_is_refused() -> None:
    net, x = nn.Linear(6, 3, bias=False), torch.ones(2, 6)
    made = fr.run("fedsgd", model=net, clients=[(x, torch.tensor([0, 1]))], rounds=1, workers=0)
    with pytest.raises(InputError, match="not linear with a bias; use logistic or mlp"):
        ratios(made)
