"""Distances and angles worked out by hand, and the same ones from a single pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedrift.analysis import dissimilarity, geometry
from fedrift.analysis.drift import Running


def vectors(*rows: tuple[float, ...]) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def test_two_perpendicular_updates() -> None:
    found = geometry(vectors((3.0, 0.0), (0.0, 4.0)), [1.0, 1.0])
    assert found.distances == (3.0, 4.0)
    assert found.to_average == pytest.approx((0.6, 0.8))  # D = (1.5, 2)
    assert np.array(found.pairs) == pytest.approx(np.eye(2))
    assert found.length == pytest.approx(2.5)
    assert found.summary() == pytest.approx(
        {
            "distance": 3.5,
            "squared_distance": 12.5,
            "cosine_to_average": 0.7,
            "cosine_between": 0.0,
            "average_length": 2.5,
            "count": 2,
        }
    )


def test_weights_move_the_average() -> None:
    found = geometry(vectors((1.0, 0.0), (0.0, 1.0)), [3.0, 1.0])
    assert found.to_average == pytest.approx((3 / math.sqrt(10), 1 / math.sqrt(10)))
    assert found.length == pytest.approx(math.sqrt(10) / 4)


def test_opposed_and_equal_updates() -> None:
    up, down = (2.0, 1.0), (-2.0, -1.0)
    assert geometry(vectors(up, down), [1, 1]).summary()["cosine_between"] == pytest.approx(-1)
    assert geometry(vectors(up, up), [1, 1]).summary()["cosine_between"] == pytest.approx(1)


def test_a_client_alone_has_no_angle_to_others() -> None:
    found = geometry(vectors((1.0, 2.0)), [5.0]).summary()
    assert found["cosine_to_average"] == pytest.approx(1.0)
    assert math.isnan(found["cosine_between"])


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_one_pass_gives_the_same_means(clients: int) -> None:
    rng = np.random.default_rng(clients)
    updates = [torch.from_numpy(rng.standard_normal(30) + 0.5) for _ in range(clients)]
    weights = rng.uniform(1, 9, clients).tolist()
    running = Running()
    for update, weight in zip(updates, weights, strict=True):
        running.add(update, weight)
    wanted = geometry(updates, weights).summary()
    assert running.summary() == pytest.approx(wanted, nan_ok=True)


def test_an_update_of_zero_has_cosine_zero() -> None:
    updates = vectors((0.0, 0.0), (1.0, 0.0), (1.0, 0.0))
    running = Running()
    for update in updates:
        running.add(update, 1.0)
    found, wanted = running.summary(), geometry(updates, [1, 1, 1])
    assert wanted.to_average == pytest.approx((0.0, 1.0, 1.0))
    assert found["cosine_to_average"] == pytest.approx(2 / 3)
    assert found["cosine_between"] == pytest.approx(2 / 6)


def test_nothing_seen_says_nothing() -> None:
    assert Running().summary() == {}


def test_gradients_that_agree_and_that_cancel() -> None:
    same = dissimilarity(vectors((1.0, 1.0), (1.0, 1.0)), [1.0, 4.0])
    assert same == pytest.approx({"ratio": 1.0, "variance": 0.0, "mean_length": math.sqrt(2)})
    found = dissimilarity(vectors((3.0, 0.0), (-1.0, 0.0)), [1.0, 1.0])
    # mean (1, 0): √((9 + 1)/2 / 1) and ((3−1)² + (−1−1)²)/2
    assert found == pytest.approx({"ratio": math.sqrt(5), "variance": 4.0, "mean_length": 1.0})
    weighted = dissimilarity(vectors((3.0, 0.0), (-1.0, 0.0)), [3.0, 1.0])
    assert weighted["mean_length"] == pytest.approx(2.0)
    assert weighted["variance"] == pytest.approx(0.75 * 1 + 0.25 * 9)
