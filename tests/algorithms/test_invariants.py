"""Invariants after every round of runs with partial participation and clients of unequal size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.algorithms import NAMES
from fedrift.conform import invariants, rules
from fedrift.conform.watched_run import Moment, backwards, differing_fields
from fedrift.core import pack
from tests.support.compositions import EVERY
from tests.support.problems import quadratic_clients, small_run, trajectory
from tests.support.product import (
    Inside,
    Scaffold,
    classifier,
    run_trial,
    subject_of,
    uneven_quadratic,
)


def test_every_name_has_an_invariant_of_its_own() -> None:
    assert set(invariants.OF) == set(NAMES)


@pytest.mark.parametrize("text", EVERY)
def test_invariants(text: str) -> None:
    """Its own, and those of all: absentees, void rounds, clients without data."""
    cell = invariants.check(subject_of(text))
    assert cell.passed, cell.text


def shared(inside: Inside) -> list[str]:
    """Memory that belongs to two: server and client, or two clients."""
    owners: dict[int, str] = {}
    found: list[str] = []
    states: dict[str, Any] = {"server": inside.reports[-1].state}
    for path in inside.store.tables:
        for client in range(len(inside.split)):
            table = inside.store.tables[path]
            if table.slot(client) >= 0:
                states[f"{path} {client}"] = inside.client(client, path)
    for owner, state in states.items():
        for name, leaf in pack(state).items():
            if isinstance(leaf, Tensor) and leaf.nbytes:
                where = leaf.data_ptr()
                if owners.setdefault(where, owner) != owner:
                    found.append(f"{owner}'s {name} is {owners[where]}'s")
    return found


@pytest.mark.parametrize("text", EVERY)
def test_nothing_is_written_to_or_shared_and_order_does_not_matter(text: str) -> None:
    """Messages and old states keep their bits; server and clients share no memory."""
    subject = subject_of(text)
    inside, other = (Inside(subject, classifier(), order) for order in (sorted, backwards))
    found: list[str] = []
    inside.run(lambda report: found.extend(shared(inside)))
    other.run()
    assert found == []
    assert inside.backend.written == []
    for here, there in zip(inside.reports, other.reports, strict=True):
        assert torch.equal(here.weights, there.weights)
        assert differing_fields(pack(here.state), pack(there.state)) == []


def test_inside_sees_an_ordinary_run() -> None:
    """The backend that watches gives the bits that every other gives."""
    inside = Inside("scaffold", classifier())
    assert torch.equal(inside.run().weights, run_trial("scaffold", classifier()).weights)
    other = Inside("scaffold", classifier(), backwards)
    other.run()
    assert [seen.client for seen in inside.backend.visits[:3]] == sorted(
        seen.client for seen in other.backend.visits[:3]
    )
    assert not differing_fields(pack(inside.reports[-1].state), pack(other.reports[-1].state))


def test_the_mean_of_control_variates_inside_wrappers() -> None:
    """c = mean c_i also for SCAFFOLD with SAM, server Adam and SWA around it."""
    inside = Inside("swa(serveradam(sam(scaffold)))", invariants.with_gaps(classifier()))
    errors: list[float] = []

    def after(report: Any) -> None:
        rows = [inside.client(i, "inner").c.double() for i in range(len(inside.split))]
        errors.append(float((report.state.inner.c - torch.stack(rows).mean(0)).abs().max()))

    inside.run(after)
    assert max(errors) < 1e-6
    assert float(inside.reports[-1].state.inner.c.abs().max()) > 1e-2


def test_the_mean_of_control_variates_weighed_by_samples() -> None:
    """objective=samples: c = Σ p_i c_i over all clients."""
    inside = Inside("scaffold:objective=samples", uneven_quadratic().everyone())
    shares = torch.tensor(inside.split.sizes / inside.split.sizes.sum())
    errors: list[float] = []

    def after(report: Any) -> None:
        rows = torch.stack([inside.client(i).c for i in range(len(inside.split))])
        errors.append(float((report.state.c - shares @ rows).abs().max()))

    inside.run(after)
    assert max(errors) < 1e-12


def watch_controls(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensor]:
    """Every client's c_i as its last visit returned it; who never came still has zero."""
    held: dict[int, Tensor] = {}
    train: Callable[..., Any] = Scaffold.train

    @wraps(train)
    def watched(self: Any, site: Any, down: Any, mine: Any) -> Any:
        if site.client in held:
            assert torch.equal(mine.c, held[site.client]), "the state it left is the state it finds"
        up, new = train(self, site, down, mine)
        held[site.client] = new.c.clone()
        return up, new

    monkeypatch.setattr(Scaffold, "train", watched)
    return held


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "float32"},
        {"dtype": "float32", "batch_size": None},
        {},
        {"epochs": "uniform:1,4"},
        {"weight_decay": 0.01},
        {"schedule": "exp:0.7"},
        {"sampling": "bernoulli"},
        {"sampling": "cyclic", "per_round": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_c_is_the_mean_of_all_c_i(
    option: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every round, with a part of unequal clients taking part: c = (1/N) Σ_i c_i."""
    held, errors = watch_controls(monkeypatch), list[float]()

    def check(r: fr.RoundReport) -> None:
        mean = sum(held.values(), torch.zeros_like(r.state.c)) / 7
        errors.append(float((r.state.c - mean).abs().max() / mean.abs().max()))

    how = {"dtype": "float64", "rounds": 6, "test": None} | how
    small_run(f"scaffold:option={option}", on_round=check, **how)
    assert len(errors) == 6 and len(held) > 3
    assert max(errors) < (1e-5 if how["dtype"] == "float32" else 1e-13)


def test_empty_clients_count_in_scaffolds_population() -> None:
    """The golden problem among four clients, two of them without data: N = 4 in c += Σ Δc/N."""
    a, b = quadratic_clients()
    nobody = a[0][:0], a[1][:0]
    states: list[Any] = []
    trajectory("scaffold", rounds=1, clients=[a, nobody, b, nobody], on_round=states.append)
    there: list[Any] = []
    trajectory("scaffold", rounds=1, on_round=there.append)
    torch.testing.assert_close(2 * states[0].state.c, there[0].state.c)


def test_an_invariant_is_not_blind() -> None:
    """A control variate moved by hand is found."""
    inside = Inside("scaffold", uneven_quadratic())
    old = inside.algorithm.server(inside.problem)
    found: list[str] = []

    def after(report: Any) -> None:
        wrong = replace(report, state=replace(report.state, c=report.state.c + 1e-6))
        found.extend(rules.mean_over_all("c")(Moment(inside, wrong, old)))

    inside.run(after)
    assert len(found) == 4
    assert found[0] == "c − mean c_i is off by 1.0e-06 after round 1"


def test_an_untrained_model_guesses() -> None:
    """Accuracy within three deviations of 1/4, loss near ln 4, before anything is learned."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2000, 8, generator=g), torch.randint(0, 4, (2000,), generator=g)
    trial = replace(classifier(), test=(x, y), rounds=1).working(lr=1e-9)
    result = run_trial("fedavg", trial)
    assert abs(result.accuracy[0] - 0.25) < 3 * (0.25 * 0.75 / 2000) ** 0.5
    assert abs(result.loss[0] - 1.386) < 0.1
