"""Metrics: sums over chunks are the metrics of the whole set; fairness."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrift.core.evaluation import Sums, combine, evaluate_chunk, fairness


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
