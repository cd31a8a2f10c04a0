"""Metrics: sums over chunks are the metrics of the whole set; fairness."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Evaluator, Sums, combine, evaluate_chunk, fairness
from fedrift.core.problem import define


def classified(n: int = 103, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, classes, generator=generator)
    y = torch.randint(0, classes, (n,), generator=generator)
    return logits, torch.where(torch.arange(n) % 3 == 0, logits.argmax(1), y)


def chunked(output: Tensor, target: Tensor, size: int, classes: int | None) -> list[Sums]:
    pairs = zip(output.split(size), target.split(size), strict=True)
    return [evaluate_chunk(o, t, F.cross_entropy, classes) for o, t in pairs]


@pytest.mark.parametrize("size", [1, 10, 64, 103])
def test_chunks_add_up_to_the_whole_set(size: int) -> None:
    output, target = classified()
    given = combine(chunked(output, target, size, 5))
    right = output.argmax(1) == target
    assert given["n"] == 103
    assert given["accuracy"] == right.sum().item() / 103
    assert given["loss"] == pytest.approx(F.cross_entropy(output, target).item(), rel=1e-6)
    for c in range(5):
        mine = target == c
        assert given["class_total"][c] == mine.sum().item()
        assert given["class_correct"][c] == (right & mine).sum().item()
        assert given["classes"][c] == pytest.approx(right[mine].float().mean().item(), abs=1e-7)
    assert type(given["loss"]) is float and type(given["accuracy"]) is float
    assert all(type(value) is float for value in given["classes"])


def test_a_hand_computed_case() -> None:
    output = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0], [0.0, 5.0, 4.0], [9.0, 0.0, 0.0]])
    target = torch.tensor([0, 1, 1, 0])
    given = combine([evaluate_chunk(output, target, F.cross_entropy, 3)])
    assert given["accuracy"] == 0.75
    assert given["classes"] == [1.0, 0.5, 0.0]
    assert given["class_correct"] == [2, 1, 0]
    assert given["class_total"] == [2, 2, 0]


def test_only_allowed_classes_are_predicted_and_the_loss_does_not_change() -> None:
    output = torch.tensor([[-1.0, -3.0, -2.0], [-4.0, -2.0, 3.0]])
    target = torch.tensor([0, 1])
    free = evaluate_chunk(output, target, F.cross_entropy, 3)
    held = evaluate_chunk(output, target, F.cross_entropy, 3, torch.tensor([True, True, False]))
    assert combine([free])["accuracy"] == 0.5
    assert combine([held])["accuracy"] == 1.0
    assert held["loss_sum"] == free["loss_sum"]
    assert output[1, 2] == 3.0, "the output is not written to"


def test_labels_per_position_with_ignored_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(9, 4, 6, generator=generator)
    target = torch.randint(0, 4, (9, 6), generator=generator)
    target[:5, 2:] = -100
    target[8] = -100  # with chunks of 2, one chunk without any label
    given = combine(chunked(output, target, 2, 4))
    counted = target >= 0
    expected = (output.argmax(1) == target)[counted].double().mean().item()
    assert given["n"] == 9
    assert sum(given["class_total"]) == int(counted.sum())
    assert given["accuracy"] == pytest.approx(expected, abs=1e-12)
    assert given["loss"] == pytest.approx(F.cross_entropy(output, target).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("output", "target", "loss", "classes"),
    [
        (torch.ones(4, 1), torch.zeros(4, 1), F.mse_loss, None),
        (torch.ones(4, 3), torch.zeros(4, 3), F.binary_cross_entropy_with_logits, 3),
        (torch.ones(4, 1), torch.zeros(4, 1), F.mse_loss, 1),
        (torch.ones(4, 3), torch.full((4, 3), 1 / 3), F.cross_entropy, 3),
    ],
)
def test_no_accuracy_without_class_labels(
    output: Tensor, target: Tensor, loss: object, classes: int | None
) -> None:
    given = combine([evaluate_chunk(output, target, loss, classes)] * 2)  # pyright: ignore
    assert given == {"loss": pytest.approx(float(loss(output, target))), "n": 8}  # pyright: ignore


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stays_so(value: float) -> None:
    output, target = classified(8)
    bad = evaluate_chunk(output, target, lambda *_: torch.tensor(value), 5)
    given = combine([evaluate_chunk(output, target, F.cross_entropy, 5), bad])["loss"]
    assert given == pytest.approx(value, nan_ok=True)


def test_nothing_to_evaluate() -> None:
    output, target = classified(4)
    empty = evaluate_chunk(output[:0], target[:0], F.cross_entropy, 5)
    assert math.isnan(combine([])["loss"]) and combine([])["n"] == 0
    assert combine([empty, evaluate_chunk(output, target, F.cross_entropy, 5)])["n"] == 4
    assert math.isfinite(combine([empty, *chunked(output, target, 3, 5)])["loss"])


def test_sums_are_double_precision() -> None:
    """A million chunks of 0.1 in float32 would drift by a percent."""
    one = Sums(n=1, weight=1, loss_sum=float(np.float32(0.1)))
    assert combine([one] * 1_000_000)["loss"] == pytest.approx(float(np.float32(0.1)), rel=1e-10)


def test_fairness() -> None:
    values = [0.9] * 18 + [0.2, 0.4] + [1.0]
    given = fairness(values[::-1])
    assert given["worst_decile"] == pytest.approx((0.2 + 0.4 + 0.9) / 3)  # 3 of 21 clients
    assert (given["min"], given["max"]) == (0.2, 1.0)
    assert given["mean"] == pytest.approx(sum(values) / 21)
    mean = sum(values) / 21
    assert given["std"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 21) ** 0.5)
    alone = fairness([0.5])
    assert (alone.pop("std"), alone.pop("jain")) == (0.0, 1.0)
    assert {*alone.values()} == {0.5}
    assert all(type(value) is float for value in given.values())
    with pytest.raises(ValueError, match="at least one client"):
        fairness([])


# How often the model is asked.

EVALUATED: list[int] = []


class Counted(nn.Module):
    """Notes how many samples go through it while nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 4))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and not torch.is_grad_enabled():
            EVALUATED.append(len(x))
        return self.body(x)


def passed(rounds: int, **changes: Any) -> int:
    """Samples that went through the model to evaluate it, in runs of so many rounds."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(600, 1, 8, 8, generator=g), torch.randint(0, 4, (600,), generator=g)
    EVALUATED.clear()
    settings: dict[str, Any] = {
        "model": Counted,
        "clients": fr.split(x[:200], y[:200], "iid", clients=4, test=0.2),
        "test": (x[200:], y[200:]),
        "rounds": rounds,
        "lr": 0.1,
        "workers": 0,
    }
    fr.run("fedavg", **(settings | changes))
    return sum(EVALUATED)


def test_each_test_sample_passes_the_model_once_whatever_is_measured(tmp_path: Path) -> None:
    def biggest(output: Tensor, target: Tensor) -> Tensor:
        return output.max()

    metrics = {"biggest": biggest, "again": biggest, "hits": lambda o, t: (o.argmax(1) == t).sum()}
    for how in ({}, {"metrics": metrics}, {"metrics": metrics, "eval_every": 1}):
        assert passed(3, **how) - passed(2, **how) == 400
    live = {"analyse": "every=1,what=classes", "metrics": metrics}
    more = passed(3, out=tmp_path / "three", **live) - passed(2, out=tmp_path / "two", **live)
    assert more == 400
    at_clients = {"eval_clients": "every=1", "metrics": metrics}
    assert passed(3, **at_clients) - passed(2, **at_clients) == 400 + 4 * 10


class Paired(Counted):
    """Two outputs for every sample."""

    def forward(self, x: Tensor) -> Any:
        output = super().forward(x)
        return output, output.sum(1)


def paired_loss(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(output[0], target) + output[1].mean()


@pytest.mark.parametrize(
    ("make", "loss", "sizes"),
    [(Counted, F.cross_entropy, [125, 125]), (Paired, paired_loss, [125, 250])],
)
def test_a_chunk_in_pieces_is_the_chunk(make: Any, loss: Any, sizes: list[int]) -> None:
    """What is not one tensor with a row for each sample is computed whole."""
    x = torch.randn(250, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 4, (250,), generator=torch.Generator().manual_seed(2))
    how: dict[str, Any] = {"population": 1, "participation": 1.0, "rounds": 1}
    problem = define(make, loss, (x[:2], y[:2]), init_seed=0, **how)
    whole = problem.module(problem.w0, {}).eval()
    seen: list[Any] = []

    def measure(output: Any, target: Any, *rest: Any) -> dict[str, Any]:
        seen.append(output)
        return {"n": len(target)}

    EVALUATED.clear()
    Evaluator(problem, x, y, measure).chunks(EvaluatedModel(problem.w0))
    assert sizes == EVALUATED
    with torch.no_grad():
        torch.testing.assert_close(seen[0], whole(x), rtol=1e-6, atol=1e-6)
