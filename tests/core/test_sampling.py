"""Who takes part: every kind of sampling, and the options that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedrift as fr
from fedrift.core.sampling import participation
from tests.support.problems import small_run

POPULATION = st.integers(1, 60)
SEEDS = st.integers(0, 2**40)
often = settings(max_examples=60, deadline=None)


@often
@given(n=POPULATION, fraction=st.floats(1e-3, 1.0), seed=SEEDS)
def test_a_fraction_is_rounded_down_but_never_to_nobody(n: int, fraction: float, seed: int) -> None:
    who = participation(n, 3, fraction=fraction)
    assert who.size == max(1, int(fraction * n + 1e-9))
    assert who.share == fraction
    for t in range(3):
        cohort = who.draw(t, seed)
        assert len(cohort) == len(set(cohort)) == who.size
        assert list(cohort) == sorted(cohort) and 0 <= cohort[0] <= cohort[-1] < n


@pytest.mark.parametrize(("n", "fraction", "m"), [(100, 0.29, 29), (10, 0.7, 7), (1000, 0.057, 57)])
def test_rounding_does_not_lose_a_client(n: int, fraction: float, m: int) -> None:
    """0.29 × 100 is 28.999999999999996 in floating point."""
    assert participation(n, 1, fraction=fraction).size == m


def test_everybody_by_default() -> None:
    who = participation(5, 2)
    assert who.draw(0, 0) == who.draw(1, 9) == (0, 1, 2, 3, 4)
    assert who.share == 1.0


def test_every_client_is_as_likely_as_any_other() -> None:
    who = participation(10, 2000, per_round=3)
    seen = np.bincount([c for t in range(2000) for c in who.draw(t, 4)], minlength=10)
    assert seen.sum() == 6000
    assert abs(seen - 600).max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


def test_cohorts_depend_on_seed_and_round_alone() -> None:
    who = participation(50, 10, per_round=5)
    assert who.draw(3, 7) == who.draw(3, 7) == participation(50, 99, per_round=5).draw(3, 7)
    assert who.draw(3, 7) != who.draw(4, 7) and who.draw(3, 7) != who.draw(3, 8)


@often
@given(n=POPULATION, fraction=st.floats(0.02, 1.0), seed=SEEDS, t=st.integers(0, 10**6))
def test_coins_never_leave_a_round_empty(n: int, fraction: float, seed: int, t: int) -> None:
    cohort = participation(n, 1, fraction=fraction, sampling="bernoulli").draw(t, seed)
    assert 1 <= len(cohort) <= n and len(set(cohort)) == len(cohort)


def test_coins_come_up_as_often_as_they_should() -> None:
    who = participation(40, 1, per_round=10, sampling="bernoulli")
    sizes = [len(who.draw(t, 0)) for t in range(400)]
    assert np.mean(sizes) == pytest.approx(10, abs=0.6)
    assert len(set(sizes)) > 5


@pytest.mark.timeout(3)
def test_hopeless_coins_still_end() -> None:
    assert participation(2, 1, fraction=1e-12, sampling="bernoulli").draw(0, 0)


@often
@given(n=POPULATION, m=st.integers(1, 60), seed=SEEDS, start=st.integers(0, 5))
def test_in_cycles_everybody_comes_once_a_period(n: int, m: int, seed: int, start: int) -> None:
    who = participation(n, 1, per_round=min(m, n), sampling="cyclic")
    period = -(-n // who.size)
    rounds = [who.draw(start * period + t, seed) for t in range(period)]
    assert sorted(c for cohort in rounds for c in cohort) == list(range(n))
    assert rounds == [who.draw(t, seed) for t in range(period)], "the same groups every time"


def test_a_schedule_is_followed_to_the_letter() -> None:
    who = participation(5, 3, participants=[[3, 0], [], [4], [1]])
    assert [who.draw(t, t) for t in range(4)] == [(0, 3), (), (4,), ()]
    assert who.share == pytest.approx(3 / 3 / 5), "the mean cohort over N"
    assert participation(5, 1, participants=[[0]], fraction=0.4).share == 0.4


@often
@given(
    n=POPULATION,
    seed=SEEDS,
    counted=st.sets(st.integers(0, 59)),
    kind=st.sampled_from(["fixed", "bernoulli", "cyclic"]),
)
def test_those_who_were_counted_are_not_drawn_again(
    n: int, seed: int, counted: set[int], kind: Any
) -> None:
    left = np.setdiff1d(np.arange(n), list(counted))
    cohort = participation(n, 1, fraction=0.3, sampling=kind).draw(0, seed, left)
    assert set(cohort) <= set(left.tolist())
    assert bool(cohort) == bool(len(left))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"per_round": 0}, "per_round must be .*at least 1, not 0"),
    ({"per_round": 8}, "per_round is 8 but there are only 7 clients"),
    ({"per_round": -1}, "per_round must be .*at least 1, not -1"),
    ({"per_round": 2.5}, "per_round"),
    ({"per_round": "3"}, "per_round"),
    ({"per_round": True}, "per_round"),
    ({"fraction": 0.0}, "fraction must be a number above 0.*, not 0.0"),
    ({"fraction": 1.01}, "fraction must be .*at most 1, not 1.01"),
    ({"fraction": float("nan")}, "fraction must be .*, not nan"),
    ({"fraction": "half"}, "fraction"),
    ({"per_round": 2, "fraction": 0.5}, r"per_round \(2\) and fraction \(0.5\)"),
    ({"sampling": "cyclical"}, "unknown sampling 'cyclical'"),
    ({"participants": [[0], [1]]}, "participants lists 2 rounds"),
    ({"participants": [[7]] * 5}, "participants.*client 7"),
    ({"participants": [[-1]] * 5}, "participants must be .*client numbers.*-1"),
    ({"participants": [[0, 0]] * 5}, "participants.*twice"),
    ({"participants": [["a"]] * 5}, "participants"),
    ({"participants": [[0.5]] * 5}, "participants"),
    ({"participants": 5}, "participants"),
    ({"participants": [0, 1, 2, 3, 4]}, "participants"),
    ({"participants": [[0]] * 5, "per_round": 1}, r"participants \(.*\) and per_round \(1\)"),
    ({"participants": [[0]] * 5, "sampling": "cyclic"}, "sampling"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[str(o) for o, _ in WRONG])
def test_what_makes_no_sense_is_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", test=None, **({"per_round": None} | options))


# In proportion to samples.


def test_clients_come_in_proportion_to_their_samples() -> None:
    sizes = [10, 30, 0, 60]
    who = participation(4, 1, per_round=1, sampling="size", samples=sizes)
    drawn = [who.draw(t, 0) for t in range(4000)]
    shares = [sum(c in cohort for cohort in drawn) / 4000 for c in range(4)]
    assert shares == pytest.approx([0.1, 0.3, 0.0, 0.6], abs=0.03)
    assert who.draw(7, 0) == who.draw(7, 0) and len(set(drawn)) == 3


def test_who_is_drawn_by_size_is_distinct_and_has_samples() -> None:
    who = participation(4, 1, per_round=4, sampling="size", samples=[10, 30, 0, 60])
    assert who.draw(0, 0) == (0, 1, 3)
    assert participation(2, 1, sampling="size", samples=[0, 0]).draw(0, 0) == ()
    left = np.array([0, 2, 3])
    assert set(who.draw(0, 0, left)) == {0, 3}


def test_drawn_by_size_they_are_averaged_uniformly() -> None:
    from tests.support.problems import Net, blobs

    x, y = blobs(60, seed=1)
    clients = [(x[:10], y[:10]), (x[10:60], y[10:60])]
    given: dict[str, Any] = {"model": Net, "clients": clients, "rounds": 2, "workers": 0}
    one = fr.run("fedavg", sampling="size", **given)
    other = fr.run("fedavg", weights="uniform", **given)
    assert one.weights.tolist() == other.weights.tolist()
    with pytest.raises(fr.InputError, match="would count these twice"):
        fr.run("fedavg", sampling="size", weights="samples", **given)
    with pytest.raises(fr.InputError, match="no bound is known for sampling 'size'"):
        fr.run("fedavg", sampling="size", privacy="gaussian:1,clip=1,delta=1e-5", **given)


def test_other_runs_keep_their_identity() -> None:
    assert "samples" not in repr(participation(4, 1, per_round=2, samples=[1, 2, 3, 4]))
    assert participation(4, 1, per_round=2, samples=[1, 2, 3, 4]).samples == ()
