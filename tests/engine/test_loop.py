"""The loop of a run: void rounds, empty and broken clients, divergence, reports, determinism."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.core import SGD, Local
from tests.support.problems import (
    Point,
    blobs,
    quadratic_clients,
    quadratic_loss,
    small_run,
    trajectory,
    uneven_clients,
)
from tests.support.product import FedAvg

POISON = 77.0


def poisoned_loss(output: Tensor, b: Tensor) -> Tensor:
    """Not a number as soon as a sample says so."""
    return quadratic_loss(output, b) * torch.where((b == POISON).any(), math.nan, 1.0)


def poison(clients: list[tuple[Tensor, Tensor]], *ids: int) -> list[tuple[Tensor, Tensor]]:
    return [(a, torch.full_like(b, POISON) if i in ids else b) for i, (a, b) in enumerate(clients)]


def states(algorithm: Any, **options: Any) -> list[Any]:
    seen: list[Any] = []
    settings: dict[str, Any] = {"on_round": lambda r: seen.append(r.state)}
    trajectory(algorithm, **(settings | options))
    return seen


HEAVY = FedAvg(local=Local(lr=0.1, epochs=None, steps=5, batch_size=None), outer=SGD(momentum=0.9))


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg", "scaffold", HEAVY])
def test_void_rounds_change_nothing(algorithm: Any) -> None:
    """No momentum step, no control variate: the run goes on as if the round had not been."""
    dense: list[list[int]] = [[0, 1], [1], [0]]
    sparse: list[list[int]] = [[], [0, 1], [], [], [1], [0], []]
    there = trajectory(algorithm, rounds=3, participants=dense)
    here = trajectory(algorithm, rounds=7, participants=sparse)
    assert here == [(0.0, 0.0), there[0], there[0], there[0], there[1], there[2], there[2]]


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "fedavg:weights=uniform"])
def test_clients_without_data_never_count(name: str) -> None:
    nobody = torch.empty(0, 8), torch.empty(0, dtype=torch.int64)
    some = list(uneven_clients(4))
    without = small_run(name, clients=some, per_round=None)
    with_ = small_run(name, clients=[*some, nobody, nobody], per_round=None)
    assert torch.equal(without.weights, with_.weights)
    assert without.loss == with_.loss
    assert all(4 not in e.asked and 5 not in e.asked for e in with_.ledger.entries)


def test_a_cohort_of_empty_clients_is_a_void_round() -> None:
    nobody = torch.empty(0, 8), torch.empty(0, dtype=torch.int64)
    reports: list[fr.RoundReport] = []
    clients, schedule = [*uneven_clients(2), nobody], [[2], [0, 2]]
    small_run(
        "scaffold",
        clients=clients,
        rounds=2,
        per_round=None,
        participants=schedule,
        on_round=reports.append,
    )
    assert [r.cohort for r in reports] == [(), (0,)]
    assert "loss" in reports[0].metrics, "it is evaluated like any other"
    assert bool((reports[0].state.c == 0).all())


def test_clients_without_steps_never_count() -> None:
    idle = small_run("fedavg", per_round=None, steps=[3, 0, 3, 0, 3, 3, 3])
    asked = {c for e in idle.ledger.entries for c in e.asked}
    assert asked == {0, 2, 4, 5, 6}


@pytest.mark.parametrize("name", ["fedavg:weights=uniform", "fedavg", "fedsgd"])
def test_a_reply_that_is_not_finite_is_dropped_and_named(name: str) -> None:
    clients = poison(quadratic_clients((1, 2, 3)), 1)
    reports: list[fr.RoundReport] = []
    how: dict[str, Any] = {"loss": poisoned_loss, "clients": clients}
    trajectory(name, rounds=3, on_round=reports.append, **how)
    assert all(r.nonfinite == (1,) and r.cohort == (0, 1, 2) for r in reports)
    without = trajectory(name, rounds=3, participants=[[0, 2]] * 3, **how)
    assert [tuple(r.weights.tolist()) for r in reports] == without


def test_the_state_of_a_dropped_client_stays_as_it_was() -> None:
    """Client 1 fails in round 2 only, so rounds 1 and 3 are those of a run without its round 2."""

    def fails_late(output: Tensor, b: Tensor) -> Tensor:
        w = output[1]
        bad = (b == 2.0).any() & (w.detach()[0, 1] == marks["w"])
        return quadratic_loss(output, b) * torch.where(bad, math.nan, 1.0)

    marks = {"w": trajectory("scaffold", rounds=1)[0][1]}
    broken = states("scaffold", rounds=3, loss=fails_late)
    without = states("scaffold", rounds=3, participants=[[0, 1], [0], [0, 1]])
    assert torch.equal(broken[1].c, without[1].c)
    assert torch.equal(broken[2].w, without[2].w) and torch.equal(broken[2].c, without[2].c)


def test_when_nobody_is_finite_the_run_has_diverged() -> None:
    good, bad = quadratic_clients(), poison(quadratic_clients(), 0, 1)
    reports: list[fr.RoundReport] = []
    result = fr.run(
        "fedavg",
        model=Point,
        loss=poisoned_loss,
        clients=[*good, *bad],
        rounds=9,
        participants=[[0, 1], [0], [2, 3], *[[0]] * 6],
        lr=0.1,
        workers=0,
        on_round=reports.append,
    )
    assert (result.status, result.diverged_at) == ("diverged", 3)
    assert torch.equal(result.weights, reports[1].weights)
    assert reports[-1].round == 3 and reports[-1].nonfinite == (2, 3)


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold"])
def test_an_exploding_run_ends_with_its_last_finite_weights(name: str) -> None:
    kept: list[Tensor] = []
    result = small_run(
        name, lr=1e36, weight_decay=0.5, rounds=30, on_round=lambda r: kept.append(r.weights)
    )
    assert result.status == "diverged" and result.diverged_at is not None
    assert bool(torch.isfinite(result.weights).all())
    assert len(kept) == result.diverged_at < 30


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("kind", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_takes_the_round_back(kind: float, hook: bool) -> None:
    def loss(output: Tensor, b: Tensor) -> Tensor:
        far = not torch.is_grad_enabled() and float(output[1][0, 1]) > 1.2
        return quadratic_loss(output, b) * (kind if far else 1.0)

    path = trajectory("fedavg", rounds=4)
    assert path[1][1] < 1.2 < path[2][1], "the third round goes too far"
    settings: dict[str, Any] = {"on_round": lambda r: None} if hook else {}
    result = fr.run(
        "fedavg",
        model=Point,
        loss=loss,
        clients=quadratic_clients(),
        test=quadratic_clients()[0],
        rounds=8,
        lr=0.1,
        steps=5,
        batch_size=None,
        dtype="float64",
        workers=0,
        **settings,
    )
    assert (result.status, result.diverged_at) == ("diverged", 3)
    assert tuple(result.weights.tolist()) == path[1]
    assert result.rounds == [1, 2, 3] and not math.isfinite(result.loss[-1])
    assert max(e.round for e in result.ledger.entries) == 3


def test_a_hook_may_stop_the_run() -> None:
    result = small_run("fedavg", on_round=lambda r: r.round == 2)
    whole = small_run("fedavg", rounds=2)
    assert (result.status, result.rounds) == ("stopped", [1, 2])
    assert result.fingerprint == whole.fingerprint
    assert small_run("fedavg", on_round=lambda r: False).status == "done"


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_the_last_round_is_always_evaluated(every: int, rounds: list[int]) -> None:
    seen: dict[int, bool] = {}

    def note(r: fr.RoundReport) -> None:
        seen[r.round] = bool(r.metrics)

    result = small_run("fedavg", eval_every=every, on_round=note)
    assert result.rounds == rounds == [t for t, measured in seen.items() if measured]
    assert list(seen) == [1, 2, 3, 4, 5]
    assert torch.equal(result.weights, small_run("fedavg").weights)


def test_a_report_says_what_happened() -> None:
    reports: list[fr.RoundReport] = []
    result = small_run("scaffold", on_round=reports.append)
    last = reports[-1]
    assert last.round == 5 and last.metrics["accuracy"] == result.accuracy[-1]
    assert set(last.metrics) >= {"loss", "accuracy", "n"}
    assert torch.equal(last.weights, last.state.w) and torch.equal(last.weights, result.weights)
    assert last.cohort == result.ledger.entries[-1].asked and last.nonfinite == ()
    assert 0 < reports[0].seconds < last.seconds <= result.seconds
    with pytest.raises(FrozenInstanceError):
        last.round = 3  # type: ignore[misc]


def test_the_weights_of_a_report_are_a_copy() -> None:
    def spoil(r: fr.RoundReport) -> None:
        r.weights.zero_()

    assert small_run("fedavg", on_round=spoil).fingerprint == small_run("fedavg").fingerprint


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold"])
def test_the_order_in_which_participants_are_named_does_not_matter(name: str) -> None:
    one, other = [[0, 3, 5], [6, 1, 2]], [[5, 0, 3], [1, 2, 6]]
    runs = [small_run(name, rounds=2, per_round=None, participants=order) for order in (one, other)]
    assert runs[0].fingerprint == runs[1].fingerprint


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold"])
def test_a_seed_decides_everything(name: str) -> None:
    first, again, other = (small_run(name, seed=seed).fingerprint for seed in (3, 3, 4))
    assert first == again != other


def test_the_callers_generators_and_threads_are_left_alone() -> None:
    torch.set_num_threads(2)
    np.random.seed(12)
    before = torch.manual_seed(11).get_state()
    first = small_run("fedavg").fingerprint
    assert torch.get_num_threads() == 2
    assert np.random.random() == np.random.RandomState(12).random()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert small_run("fedavg").fingerprint == first, "nor do they matter"


def test_the_callers_data_are_left_alone() -> None:
    x, y = blobs(40)
    small_run("fedavg", clients=[(x, y)], per_round=None, batch_size=None)
    assert torch.equal(x, blobs(40)[0]) and torch.equal(y, blobs(40)[1])
