"""Robust and private reductions: worked examples, sensitivity, and combinations that would lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.algorithms.fedavg import Down, Server
from fedrift.config.privacy import (
    Privacy,
    Robustness,
    Stretch,
    guarantee,
    parse_aggregate,
    parse_privacy,
)
from fedrift.core import Cohort, Gather, Local, Mean, Sum, message
from fedrift.core.sampling import Participation
from fedrift.engine.aggregation import PrivateReducer, RobustReducer
from fedrift.engine.loop import Engine
from tests.support.problems import small_run
from tests.support.product import FedAvg


@message
class Up:
    v: Mean[torch.Tensor]
    total: Sum[torch.Tensor]
    n: Mean[float]
    each: Gather[float]


def ups(*values: float) -> list[Up]:
    return [Up(v=torch.tensor([x, -x]), total=torch.tensor([x]), n=x, each=x) for x in values]


def reduced(how: str, *values: float) -> Any:
    robust = parse_aggregate(how)
    assert robust is not None
    reducer = RobustReducer(Up, robust)
    for up in ups(*values):
        reducer.fold(up, 1.0)
    return reducer.result()


def test_median() -> None:
    found = reduced("median", 1.0, 2.0, 100.0)
    assert found.v.tolist() == [2.0, -2.0] and found.n == 2.0
    assert found.total.tolist() == [6.0], "a sum: as many times the centre as there are replies"
    assert list(found.each) == [1.0, 2.0, 100.0]
    assert reduced("median", 1.0, 2.0, 4.0, 100.0).n == 3.0


def test_trimmed_mean() -> None:
    assert reduced("trimmed:0.2", 1.0, 2.0, 3.0, 4.0, 1000.0).n == 3.0
    assert reduced("trimmed:0", 1.0, 2.0, 6.0).n == 3.0
    assert reduced("trimmed:0.4", 5.0).n == 5.0


def test_krum_takes_one_of_the_crowd() -> None:
    assert reduced("krum:1", 1.0, 1.1, 1.2, 1.25, 50.0).n == 1.2
    assert reduced("multikrum:1", 1.0, 1.1, 1.3, 50.0).n == pytest.approx(3.4 / 3)
    with pytest.raises(fr.InputError, match="at least 4"):
        reduced("krum:1", 1.0, 2.0, 3.0)


@pytest.mark.parametrize("how", ["median", "trimmed:0.3", "krum:2", "multikrum:2"])
def test_a_robust_run_stands_corrupted_clients(how: str) -> None:
    base: dict[str, Any] = {"rounds": 8, "per_round": None, "weights": "uniform", "lr": 0.2}
    attack: dict[str, Any] = {"faults": "corrupt:0.25,kind=sign,factor=20"}
    plain = small_run("fedavg", **base, **attack)
    safe = small_run("fedavg", **base, **attack, aggregate=how)
    assert plain.status == "diverged" or safe.loss[-1] < 0.01 * plain.loss[-1]


def test_a_robust_run_is_the_same_in_workers() -> None:
    how: dict[str, Any] = {"per_round": None, "rounds": 2, "aggregate": "multikrum:2"}
    here = small_run("scaffold", **how)
    assert here.fingerprint == small_run("scaffold", **how, workers=2).fingerprint


@message
class Sent:
    v: Mean[torch.Tensor]
    s: Sum[torch.Tensor]


def exchange(round: int = 0) -> Any:
    class Fake:
        seed, phase = 0, "train"

    fake = Fake()
    fake.round = round  # type: ignore[attr-defined]
    return fake


def private(how: Privacy, *replies: Sent, round: int = 0) -> Sent:
    reducer = PrivateReducer(Sent, how, exchange(round))
    for reply in replies:
        reducer.fold(reply, 7.0)
    assert reducer.weight == how.expected
    return reducer.result()


def test_replies_are_clipped_as_a_whole() -> None:
    """No client moves the sum by more than the clip, all fields together."""
    quiet = Privacy(noise=1e-9, clip=1.0, expected=4.0)
    rng = np.random.default_rng(0)
    for size in (1e-3, 0.3, 5.0, 1e6):
        v, s = (torch.from_numpy(rng.normal(size=3)) * size for _ in range(2))
        with_it = private(quiet, Sent(v=v, s=s))
        moved = math.hypot(float(with_it.v.norm()) * 4.0, float(with_it.s.norm()))
        length = math.hypot(float(v.norm()), float(s.norm()))
        assert moved == pytest.approx(min(1.0, length), rel=1e-6, abs=1e-7)


def test_noise_has_the_said_deviation_and_falls_on_every_field() -> None:
    how = Privacy(noise=2.0, clip=0.5, expected=10.0)
    zero = Sent(v=torch.zeros(20_000), s=torch.zeros(20_000))
    found = private(how, zero, zero)
    assert float(found.s.std()) == pytest.approx(1.0, rel=0.03)
    assert float(found.v.std()) == pytest.approx(0.1, rel=0.03)
    other = private(how, zero, round=1)
    assert not torch.equal(found.s, other.s), "fresh noise each round"


def bernoulli(share: float, population: int = 1000) -> Participation:
    return Participation(population, "bernoulli", max(1, int(share * population)), share)


def test_epsilon_of_one_release_is_the_analytic_one() -> None:
    """δ(ε) of the Gaussian mechanism: Balle and Wang, ICML 2018, Theorem 8."""
    pytest.importorskip("dp_accounting")
    from scipy.stats import norm as gauss

    z = 1.5
    found = guarantee(Privacy(z, 1.0, 1e-5), bernoulli(1.0), 1)
    e = found.epsilon
    delta = gauss.cdf(0.5 / z - e * z) - math.exp(e) * gauss.cdf(-0.5 / z - e * z)
    assert delta == pytest.approx(1e-5, rel=1e-2)


def test_epsilon_of_a_run_is_the_librarys() -> None:
    dp = pytest.importorskip("dp_accounting")
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.1)), 1000)
    wanted = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    found = guarantee(Privacy(1.1, 0.3, 1e-5), bernoulli(0.01), 1000)
    assert found.epsilon == wanted == pytest.approx(1.515, abs=2e-3)
    fixed = guarantee(Privacy(1.1, 0.3, 1e-5), Participation(1000, "fixed", 10, 0.01), 1000)
    assert fixed.epsilon > 2 * found.epsilon and "2 × clip" in fixed.basis


@pytest.mark.parametrize(
    "who", [bernoulli(0.2), Participation(1000, "fixed", 10, 0.01)], ids=["bernoulli", "fixed"]
)
def test_epsilon_of_a_fork_counts_the_rounds_before_it(who: Participation) -> None:
    pytest.importorskip("dp_accounting")
    loud, quiet = Privacy(2.0, 1.0, 1e-5), Privacy(0.8, 1.0, 1e-5)
    whole = guarantee(loud, who, 6).epsilon
    assert guarantee(loud, who, 6, Stretch(loud, who, 4)).epsilon == pytest.approx(whole, rel=1e-6)
    mixed = guarantee(loud, who, 6, Stretch(quiet, who, 4)).epsilon
    assert whole < mixed < guarantee(quiet, who, 6).epsilon
    with pytest.raises(fr.InputError, match="two ways"):
        other = Participation(1000, "fixed" if who.kind == "bernoulli" else "bernoulli", 10, 0.01)
        guarantee(loud, who, 6, Stretch(loud, other, 4))


@pytest.mark.parametrize(
    ("share", "noise", "delta"), [(1.0, math.sqrt(3), 0.126936), (0.2, 0.5, 0.15594)]
)
def test_epsilon_of_runs_that_are_examples_of_the_library(
    share: float, noise: float, delta: float
) -> None:
    """Three rounds each, ε = 1: `gaussian_basic` and `poisson_subsampled_gaussian` of the tests
    of dp-accounting's PLDAccountant."""
    pytest.importorskip("dp_accounting")
    how: dict[str, Any] = {"weights": "uniform", "sampling": "bernoulli", "fraction": share}
    how |= {"per_round": None, "rounds": 3, "privacy": f"gaussian:{noise!r},clip=2,delta={delta}"}
    assert small_run("fedavg", **how).summary()["epsilon"] == pytest.approx(1.0, abs=1e-3)


def test_a_private_run_says_what_it_guarantees() -> None:
    pytest.importorskip("dp_accounting")
    how: dict[str, Any] = {"weights": "uniform", "sampling": "bernoulli", "fraction": 0.3}
    how |= {"per_round": None, "privacy": "gaussian:1.0,clip=0.5,delta=1e-4"}
    run = small_run("fedavg", **how)
    assert 0 < run.summary()["epsilon"] < 100 and run.summary()["delta"] == 1e-4
    assert run.fingerprint == small_run("fedavg", **how, workers=2).fingerprint
    assert any("add or remove one" in note for note in run.notes)


def test_a_round_in_which_nobody_can_come_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_works", lambda self, client, t: False)  # type: ignore[reportUnknownLambdaType]
    pytest.importorskip("dp_accounting")
    how: dict[str, Any] = {"weights": "uniform", "sampling": "bernoulli", "per_round": None}
    run = small_run("fedavg", fraction=0.5, privacy="gaussian:1,clip=1e-3", **how)
    assert not run.ledger.entries


def test_a_round_in_which_nobody_came_adds_noise_too() -> None:
    """Else everybody could see that nobody came, and the account would be wrong."""
    pytest.importorskip("dp_accounting")
    how: dict[str, Any] = {"weights": "uniform", "sampling": "bernoulli", "fraction": 1e-4}
    how |= {"per_round": None, "rounds": 1, "privacy": "gaussian:1,clip=1e-3"}
    run = small_run("fedavg", **how)
    moved = (run.weights - run.problem.w0) * 7e-4
    assert float(moved.std()) == pytest.approx(1e-3, rel=0.4)


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("fedavg", {}, "weights=uniform"),
    ("fednova:weights=uniform", {}, "number"),
    ("mime:weights=uniform", {}, "ways"),
    ("fedgf:weights=uniform", {}, "number"),
    ("fedavg:weights=uniform", {"sampling": "cyclic"}, "no bound"),
    ("fedavg:weights=uniform", {"aggregate": "median"}, "keep one"),
    (
        "fedavg:weights=uniform",
        {
            "model": lambda: torch.nn.Sequential(
                torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4)
            )
        },
        "running statistics",
    ),
]


@pytest.mark.parametrize(("name", "how", "says"), LIES, ids=[f"{n} {list(h)}" for n, h, _ in LIES])
def test_guarantees_that_would_be_false_are_refused(
    name: str, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run(name, privacy="gaussian:1,clip=1", **how)


@dataclass(frozen=True)
class Twice(FedAvg):
    """Asks with one method, but two times a round."""

    def round(self, s: Server, cohort: Cohort) -> Server:
        first = cohort.ask(self.train, Down(w=s.w))
        second = cohort.ask(self.train, Down(w=s.w))
        return replace(s, w=s.w + (first.delta + second.delta) / 2)


def test_who_asks_twice_is_refused() -> None:
    """Only one release a round is accounted for, and both would have the same noise."""
    pytest.importorskip("dp_accounting")
    asking = Twice(Local(lr=0.1, batch_size=16), weights="uniform")
    assert small_run(asking).status == "done"
    with pytest.raises(fr.InputError, match=r"privacy.*twice"):
        small_run(asking, privacy="gaussian:1,clip=1")


def test_absent_clients_are_not_replaced_where_privacy_counts_on_the_draw() -> None:
    """A cohort that is filled up from those present would ask each of them more often than ε
    allows for."""
    who, here = Participation(20, "fixed", 5, 0.25), np.arange(0, 20, 2)
    assert all(len(who.among(t, 0, here)) == 5 for t in range(20))
    who = replace(who, redraws=False)
    assert [who.among(t, 0, here) for t in range(200)] == [
        tuple(c for c in who.draw(t, 0) if c % 2 == 0) for t in range(200)
    ]


@pytest.mark.parametrize(
    "name", ["scaffold", "feddyn", "fedcm:weights=uniform", "ghbm:weights=uniform"]
)
def test_what_a_stateful_algorithm_sends_is_private_as_a_whole(name: str) -> None:
    """Control variates included: everything that is reduced is clipped together and noised."""
    pytest.importorskip("dp_accounting")
    run = small_run(name, privacy="gaussian:0.5,clip=1", rounds=3)
    assert run.status == "done" and run.summary()["epsilon"] > 0


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(fr.InputError, match=r"fedrift\[privacy\]"):
        small_run("fedavg", weights="uniform", privacy="gaussian:1,clip=1")


@pytest.mark.parametrize(
    "text",
    [
        "gaussian",
        "gaussian:1",
        "gaussian:0,clip=1",
        "gaussian:1,clip=-1",
        "gaussian:1,clip=1,delta=2",
        "laplace:1,clip=1",
        "gaussian:1,clip=1,x=1",
    ],
)
def test_wrong_privacy_is_refused(text: str) -> None:
    with pytest.raises(fr.InputError, match="privacy"):
        parse_privacy(text)


@pytest.mark.parametrize(
    "text", ["median:1", "trimmed", "trimmed:0.6", "krum:-1", "krum:1.5", "mode"]
)
def test_wrong_aggregates_are_refused(text: str) -> None:
    with pytest.raises(fr.InputError, match="aggregate"):
        parse_aggregate(text)


def test_the_plain_mean_is_untouched() -> None:
    assert parse_aggregate("mean") is None and parse_aggregate(None) is None
    assert Robustness("median").kind == "median"


def test_a_rule_that_needs_more_replies_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    how: dict[str, Any] = {"aggregate": "krum:1", "weights": "uniform", "rounds": 2}
    for more in ({"per_round": 3}, {"per_round": None, "participants": [[0, 1, 2, 3], [0, 1, 2]]}):
        with pytest.raises(fr.InputError, match="needs at least 4 replies in a round, not 3"):
            small_run("fedavg", out=tmp_path / "run", **how, **more)
        assert not (tmp_path / "run").exists()


def test_so_does_a_run_refused_in_its_first_round(tmp_path: Path) -> None:
    """Who comes is known only then; a folder that was there stays."""
    how: dict[str, Any] = {"aggregate": "krum:1", "weights": "uniform", "rounds": 2}
    how |= {"sampling": "bernoulli", "per_round": None, "fraction": 0.2}
    how |= {"analyse": "every=1,what=drift"}
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(fr.InputError, match="needs at least 4 replies in a round"):
            small_run("fedavg", out=tmp_path / name, **how)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert "spec.toml" not in [p.name for p in (tmp_path / "mine").iterdir()]
