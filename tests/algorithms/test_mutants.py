"""Wrong versions of SCAFFOLD that people have published: the tests that are there catch each.

A mutant is planted in the class itself; the golden table (mode F: both clients every round, mode
A: one in turn) or the invariant c = mean of all c_i must then be broken, and by as much as the
wrong rule, worked out by hand, says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrift.algorithms import scaffold
from fedrift.algorithms.scaffold import Client, Down, Scaffold, Server, Up
from fedrift.core import Cohort, Linear, Site, apply
from fedrift.engine.callbacks import RoundReport
from tests.support.problems import alternating, quadratic_clients, trajectory

GOLDEN_F = [
    (0.153145, 0.745670),
    (0.011874, 1.082616),
    (-0.111618, 1.228747),
    (-0.200098, 1.333162),
]
GOLDEN_A = [
    (1.228530, 0.672320),
    (-0.543460, 1.491340),
    (-0.572668, 1.097313),
    (-0.198369, 1.326808),
]
MODE_A: dict[str, Any] = {"participants": alternating(10)}


def is_golden(path: list[tuple[float, ...]], rows: list[tuple[float, float]]) -> bool:
    return all(
        path[after - 1] == pytest.approx(w, abs=2e-6)
        for after, w in zip((1, 2, 3, 10), rows, strict=True)
    )


def drift_of_c(monkeypatch: pytest.MonkeyPatch, **options: Any) -> float:
    """The largest |c − mean c_i| of a run of ten rounds."""
    held: dict[int, Tensor] = {}
    errors: list[float] = []
    train: Callable[..., tuple[Up, Client]] = Scaffold.train

    def watched(self: Any, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        up, new = train(self, site, down, mine)
        held[site.client] = new.c.clone()
        return up, new

    watched.__name__ = "train"

    def check(r: RoundReport) -> None:
        mean = sum(held.values(), torch.zeros(2, dtype=torch.float64)) / n
        errors.append(float((r.state.c - mean).abs().max()))

    n = len(options.get("clients", quadratic_clients()))
    with monkeypatch.context() as patch:
        patch.setattr(Scaffold, "train", watched)
        trajectory("scaffold", on_round=check, **options)
    assert len(errors) == 10
    return max(errors)


def with_server_rule(share: Callable[[Cohort], float]) -> Callable[..., Server]:
    """c ← c + share · mean(Δc), where the paper has share = M/N."""

    def round(self: Scaffold, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, c=s.c))
        w, opt = apply(self.outer, s.w, -self.server_lr * up.delta, s.opt)
        return Server(w=w, c=s.c + share(cohort) * up.dc, opt=opt)

    return round


def right(cohort: Cohort) -> float:
    return cohort.replies / cohort.population


def test_the_right_rule_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaffold, "round", with_server_rule(right))
    assert is_golden(trajectory("scaffold"), GOLDEN_F)
    assert is_golden(trajectory("scaffold", **MODE_A), GOLDEN_A)
    assert drift_of_c(monkeypatch) < 1e-12
    assert drift_of_c(monkeypatch, **MODE_A) < 1e-12


@pytest.mark.parametrize(("option", "ends"), [("II", (36.73, 4.39)), ("I", (0.8771, 1.4269))])
def test_the_sign_flipped_at_the_client_is_caught(
    option: str, ends: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """g + c_i − c doubles the drift instead of taking it out."""
    monkeypatch.setattr(scaffold, "Linear", lambda v: Linear(-v))
    path = trajectory(f"scaffold:option={option}")
    assert path[-1] == pytest.approx(ends, abs=1e-2)
    assert not is_golden(path, GOLDEN_F)


def test_a_mean_of_differences_to_c_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """c += (1/N) Σ_S (c_i⁺ − c): right when everybody takes part, wrong with a part of them."""
    train: Callable[..., tuple[Up, Client]] = Scaffold.train

    def mutant(self: Any, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        up, new = train(self, site, down, mine)
        return Up(delta=up.delta, dc=new.c - down.c), new

    mutant.__name__ = "train"
    monkeypatch.setattr(Scaffold, "train", mutant)
    monkeypatch.setattr(Scaffold, "round", with_server_rule(right))
    assert is_golden(trajectory("scaffold"), GOLDEN_F), "invisible in mode F"
    path = trajectory("scaffold", **MODE_A)
    assert path[-1] == pytest.approx((0.0295, 1.2838), abs=1e-3)
    assert not is_golden(path, GOLDEN_A)
    assert drift_of_c(monkeypatch, **MODE_A) > 0.1


def test_a_sum_instead_of_a_mean_over_all_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """c += Σ Δc_i, without 1/N."""
    monkeypatch.setattr(Scaffold, "round", with_server_rule(lambda cohort: cohort.replies))
    path = trajectory("scaffold")
    assert path[1] == pytest.approx((0.1099, 1.6386), abs=1e-3)
    assert not is_golden(path, GOLDEN_F)
    assert drift_of_c(monkeypatch) > 0.1
    four = trajectory("scaffold", clients=quadratic_clients((1, 1, 1, 1)))
    assert four[-1] == pytest.approx((-0.6998, 1.8133), abs=1e-3)


def test_a_mean_divided_by_n_once_more_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """c += mean(Δc_i)/N."""
    monkeypatch.setattr(Scaffold, "round", with_server_rule(lambda cohort: 1 / cohort.population))
    path = trajectory("scaffold")
    assert path[1] == pytest.approx((-0.0371, 0.8046), abs=1e-3)
    assert not is_golden(path, GOLDEN_F)
    assert drift_of_c(monkeypatch) > 0.1
    assert is_golden(trajectory("scaffold", **MODE_A), GOLDEN_A), "invisible with one at a time"


def test_a_mean_over_the_cohort_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """c += mean_S(Δc_i): the same when everybody takes part, too fast with a part of them."""
    monkeypatch.setattr(Scaffold, "round", with_server_rule(lambda cohort: 1.0))
    assert is_golden(trajectory("scaffold"), GOLDEN_F), "invisible in mode F"
    assert not is_golden(trajectory("scaffold", **MODE_A), GOLDEN_A)
    assert drift_of_c(monkeypatch, **MODE_A) > 0.1
