"""The laws that the names of the partitions promise: label skew by α, by classes, and sizes."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from fedrift.data.describe import statistics
from fedrift.data.partition import partition
from fedrift.data.schemes import (
    dirichlet_counts,
    draw_without_replacement,
    holders_per_class,
    log_dirichlet,
    normalised,
    raise_minimum,
)

BALANCED = np.tile(np.arange(10), 5000)

# Means over 100 clients of 500 samples vary by about 0.05 to 0.2 from seed to seed, and classes
# that run out take a few percent off what they would be with endless supply.
HSU = {0.05: 1.30, 0.1: 1.58, 0.2: 2.10, 0.5: 3.40, 1: 4.97, 10: 9.82}
PER_CLASS = {0.05: 3.4, 0.1: 5.0, 0.2: 6.9, 0.5: 9.1, 1: 9.8, 10: 10}


@pytest.mark.parametrize(("name", "expected"), [("hsu", HSU), ("dirichlet-client", PER_CLASS)])
def test_mean_number_of_classes_per_client(name, expected) -> None:
    for alpha, classes in expected.items():
        found = []
        for seed in range(4):
            made = partition(f"{name}:{alpha}", BALANCED, clients=100, seed=seed)
            assert set(made.sizes) == {500}
            found.append(statistics(made, BALANCED, 10).classes_per_client.mean())
        assert np.mean(found) == pytest.approx(classes, rel=0.1)


def test_hsu_is_the_per_class_law_at_alpha_over_classes() -> None:
    y = np.tile(np.arange(8), 100)
    hsu = partition("hsu:1", y, clients=16, seed=3)
    assert hsu.digest == partition("dirichlet-client:0.125", y, clients=16, seed=3).digest


def test_only_hsu_follows_the_class_prior() -> None:
    """A large α gives everybody the prior in one scheme, half of each class in the other."""
    y = np.repeat([0, 1], [9000, 1000])
    hsu = partition("hsu:1e6", y, clients=100, seed=0)
    assert statistics(hsu, y, 2).mean_distance < 0.05
    flat = statistics(partition("dirichlet-client:1e6", y, clients=100, seed=0), y, 2)
    halves = np.flatnonzero(flat.counts[:, 1] > 30)
    assert 18 <= len(halves) <= 22, "half of class 1 each until it runs out"
    assert halves.max() > 50, "who comes first is random"


def test_dirichlet_stops_filling_a_client_that_has_its_share() -> None:
    supply = np.full(10, 500)
    counts = dirichlet_counts(supply, 10, 0.1, np.random.default_rng(0))
    assert counts.sum(axis=0).tolist() == supply.tolist()
    before = np.cumsum(counts, axis=1) - counts
    assert (before >= 500).any() and not counts[before >= 500].any()


@pytest.mark.parametrize("a", [0.01, 0.3, 5.0])
def test_log_dirichlet_has_the_moments_of_a_dirichlet(a) -> None:
    rng = np.random.default_rng(0)
    share = np.array([normalised(row) for row in log_dirichlet(np.full((20_000, 4), a), rng)])
    assert share.mean(axis=0) == pytest.approx(0.25, abs=0.015)
    assert share.var(axis=0) == pytest.approx(0.25 * 0.75 / (4 * a + 1), rel=0.05)


def test_fill_is_drawing_one_by_one_without_replacement() -> None:
    """4 draws from (0.6, 0.3, 0.1) of 2, 1 and 3 samples, against the sum over all orders."""
    share, supply = np.array([0.6, 0.3, 0.1]), np.array([2, 1, 3])
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)

    def walk(taken: tuple[int, ...], chance: float) -> None:
        if sum(taken) == 4:
            law[taken] += chance
            return
        there = share * (np.array(taken) < supply)
        for c in np.flatnonzero(there):
            step = tuple(n + (i == c) for i, n in enumerate(taken))
            walk(step, chance * there[c] / there.sum())

    walk((0, 0, 0), 1.0)
    rng = np.random.default_rng(0)
    draws = 20_000
    found = Counter(
        tuple(draw_without_replacement(np.log(share)[None], np.array([4]), supply, rng)[0].tolist())
        for _ in range(draws)
    )
    assert set(found) == set(law)
    for taken, chance in law.items():
        assert found[taken] / draws == pytest.approx(chance, abs=0.015)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-client", "hsu"])
def test_alpha_zero_is_one_class_per_client(name) -> None:
    made = partition(f"{name}:0", BALANCED, clients=100, seed=0)
    assert [set(BALANCED[part]) for part in made.parts] == [{i // 10} for i in range(100)]
    assert set(made.sizes) == {500}
    assert made.digest != partition(f"{name}:0", BALANCED, clients=100, seed=1).digest
    uneven = np.repeat(np.arange(10), np.arange(95, 105))
    made = partition(f"{name}:0", uneven, clients=10, seed=0)
    assert [set(uneven[part]) for part in made.parts] == [{i} for i in range(10)]


def test_alpha_zero_keeps_equal_sizes_where_classes_are_too_uneven() -> None:
    y = np.repeat([0, 1, 2], [800, 150, 50])
    made = partition("hsu:0", y, clients=10, seed=0)
    assert set(made.sizes) == {100}
    assert [sorted(set(y[part])) for part in made.parts] == [[0]] * 8 + [[1], [1, 2]]


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-client", "hsu"])
def test_label_distance_falls_as_alpha_rises(name) -> None:
    def distance(alpha: float) -> float:
        made = partition(name, BALANCED, clients=50, seed=1, alpha=alpha)
        return statistics(made, BALANCED, 10).mean_distance

    found = [distance(alpha) for alpha in (0, 0.1, 1, 10, 1000)]
    assert all(a > b for a, b in pairwise(found))
    assert found[0] == pytest.approx(0.9) and found[-1] < 0.1


def test_dirichlet_does_not_favour_the_last_client() -> None:
    """Rounding the running sum down hands a stray sample of each class to the last client."""
    y = np.tile(np.arange(100), 100)
    counts = [
        statistics(partition("dirichlet:0.1", y, clients=20, seed=s), y, 100).classes_per_client
        for s in range(10)
    ]
    assert np.mean([c[-1] for c in counts]) < 1.3 * np.mean(counts)


def test_mending_takes_from_the_largest_class_of_the_largest_client() -> None:
    counts = np.array([[5, 40], [0, 0], [30, 0]])
    assert raise_minimum(counts, 10) == 10
    assert counts.tolist() == [[5, 30], [0, 10], [30, 0]]


def test_a_mended_partition_says_so() -> None:
    made = partition("dirichlet:0.001", BALANCED, clients=100, seed=0)
    assert "samples moved so that every client has at least 10" in made.note
    assert partition("dirichlet:10", BALANCED, clients=100, seed=0).note == ""


def test_classes_per_client_are_even_and_mixed() -> None:
    y = BALANCED[:10_000]
    made = partition("classes:2", y, clients=20, seed=0)
    counts = statistics(made, y, 10).counts
    assert ((counts > 0).sum(axis=0) == 4).all(), "every class has its share of holders"
    assert set(counts[counts > 0]) == {250}
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 10


def test_large_classes_get_more_holders() -> None:
    assert holders_per_class(np.array([60, 30, 10]), 10, np.array([10, 10, 10])).tolist() == [
        6,
        3,
        1,
    ]
    assert holders_per_class(np.array([60, 30, 1]), 8, np.array([4, 4, 1])).tolist() == [4, 3, 1]


def test_shards_give_each_client_few_classes() -> None:
    made = partition("shards:2", BALANCED, clients=100, seed=0)
    classes = statistics(made, BALANCED, 10).classes_per_client
    assert set(classes) <= {1, 2} and classes.mean() > 1.7
    assert set(made.sizes) == {500}


def test_sizes_follow_their_law() -> None:
    y = np.zeros(1_000_000, int)
    logs = np.log(partition("lognormal:0.7", y, clients=1000, seed=0).sizes)
    assert logs.std() == pytest.approx(0.7, rel=0.07)
    sizes = np.sort(partition("powerlaw:1.5", y, clients=50, seed=0).sizes)[::-1]
    assert sizes / sizes[0] == pytest.approx(np.arange(1, 51) ** -1.5, rel=0.01)
    raised = partition("powerlaw:2,min_size=100", y[:10_000], clients=50, seed=0)
    top = np.sort(raised.sizes)[::-1]
    assert top[1] / top[0] == pytest.approx(1 / 4, rel=0.01), "the large keep their proportions"
    assert "raised to 100" in raised.note
