"""Golden numbers and limits of every algorithm on two quadratics; the closed form of Fed3R."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedrift.algorithms import NAMES
from fedrift.conform import closed_form, convergence, golden
from fedrift.conform.convergence import LIMITS, Limit
from fedrift.conform.golden import AFTER, DERIVED, PERSONAL, PERSONAL_AFTER, ROWS, Personal, Row
from fedrift.conform.problem import DRIFTED, GOLDEN_A, GOLDEN_B, alternating
from tests.support import least_squares
from tests.support.product import MINIMISER, Inside, golden_trial, path

THOUSANDS = 3000
SLOW = (
    Limit("fedavg", DRIFTED),
    Limit("fedavgm", DRIFTED),
    Limit("ghbm:tau=1", DRIFTED),
    Limit("ghbm:tau=2", DRIFTED),
    Limit("fedadagrad", DRIFTED),
    Limit("fedyogi", DRIFTED),
    Limit("fedcm", (-0.160922, 1.337792)),
    Limit("fedprox:mu=1", (0.210123, 1.377377)),
    Limit("scaffold:option=I", MINIMISER),
    Limit("scaffold:option=II", MINIMISER),
    Limit("scaffold:option=I", MINIMISER, alternates=True),
    Limit("scaffold:option=II", MINIMISER, alternates=True),
    Limit("feddyn:alpha=1", MINIMISER),
    Limit("feddyn:alpha=1", MINIMISER, alternates=True),
    Limit("mime", MINIMISER),
    Limit("mimemom", MINIMISER),
    Limit("mimelitemom", (-0.196156, 1.333778)),
    Limit("fedsam:rho=0.1", (0.205752, 1.382380)),
    Limit("fedgamma:rho=0.1", (-0.258413, 1.327562)),
)


def mode(limit: Limit) -> str:
    return f"{limit.text} {'A' if limit.alternates else 'F'}"


@pytest.mark.parametrize("row", [*ROWS, *DERIVED], ids=str)
def test_golden(row: Row) -> None:
    assert golden.failures(row) == []


@pytest.mark.parametrize("row", PERSONAL, ids=str)
def test_golden_models_of_the_clients_own(row: Personal) -> None:
    """The table is what plain numpy makes of the papers' rules, and what the algorithm does."""
    points = least_squares.after(row.text, row.mode, PERSONAL_AFTER)
    numbers = [float(number) for number in row.numbers.split()]
    assert numbers == pytest.approx([x for point in points for x in point], abs=6e-7)
    assert golden.personal_failures(row) == []


DILOCO: dict[str, dict[str, Any]] = {
    "diloco F lr=0.01": {"lr": 0.01},
    "diloco A lr=0.01": {"lr": 0.01, "alternates": True},
    "diloco:warmup=7,schedule=cosine F": {"warmup": 7},
    "diloco:inner_wd=0.5,server_lr=1,server_momentum=0.5 A": {
        "decay": 0.5, "outer": 1.0, "momentum": 0.5, "alternates": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("row", [row for row in ROWS if row.name == "diloco"], ids=str)
def test_diloco_in_plain_numpy(row: Row) -> None:
    """AdamW whose moments stay at the clients, and Nesterov momentum outside; five inner steps."""
    options = DILOCO[str(row)]
    lr, decay, warmup = (options.get(k, v) for k, v in (("lr", 0.1), ("decay", 0.1), ("warmup", 0)))
    a, b, w, v = np.array(GOLDEN_A), np.array(GOLDEN_B), np.zeros(2), np.zeros(2)
    first, second, steps = np.zeros((2, 2)), np.zeros((2, 2)), [0, 0]
    found: list[np.ndarray] = []
    for t in range(10):
        changes: list[np.ndarray] = []
        for i in [t % 2] if options.get("alternates") else [0, 1]:
            x = w.copy()
            for _ in range(5):
                rate, k = lr, steps[i]
                if warmup:
                    share = (k - warmup) / (50 - warmup)
                    rate *= (k + 1) / warmup if k < warmup else (1 + np.cos(np.pi * share)) / 2
                g, steps[i] = a[i] * (x - b[i]), k + 1
                first[i] = 0.9 * first[i] + 0.1 * g
                second[i] = 0.95 * second[i] + 0.05 * g**2
                mean, square = first[i] / (1 - 0.9 ** (k + 1)), second[i] / (1 - 0.95 ** (k + 1))
                x = x * (1 - rate * decay) - rate * mean / (np.sqrt(square) + 1e-8)
            changes.append(w - x)
        momentum, d = options.get("momentum", 0.9), np.mean(changes, 0)
        v = momentum * v + d
        w = w - options.get("outer", 0.7) * (d + momentum * v)
        found.append(w)
    for after, point in zip(AFTER, row.points, strict=True):
        assert found[after - 1] == pytest.approx(point, abs=6e-7)


def test_the_table_is_complete() -> None:
    """48 rows, and at least one for every name but Fed3R+FT, whose second stage is another's."""
    assert len(ROWS) == 48
    assert {(row.text, row.mode) for row in PERSONAL} == {
        (text, mode) for text in least_squares.METHODS for mode in "FA"
    }
    assert {row.name for row in (*ROWS, *DERIVED, *PERSONAL)} == set(NAMES) - {"fed3r", "fed3rft"}


def test_a_wrong_number_is_found() -> None:
    row = ROWS[1]
    moved = replace(row, numbers=row.numbers.replace("1.087996", "1.088000"))
    assert golden.failures(moved) == [
        "fedavg:weights=uniform F: after round 2 w is (0.204315, 1.087996), "
        "not (0.204315, 1.088000)"
    ]


def test_the_drifted_point_is_the_closed_form() -> None:
    """FedAvg's fixed point on separable quadratics: Σ(1−(1−ηa)ᴷ)b / Σ(1−(1−ηa)ᴷ)."""
    a, b = torch.tensor(GOLDEN_A).double(), torch.tensor(GOLDEN_B).double()
    moved = 1 - (1 - 0.1 * a) ** 5
    assert ((moved * b).sum(0) / moved.sum(0)).tolist() == pytest.approx(DRIFTED, abs=1e-6)
    assert ((a * b).sum(0) / a.sum(0)).tolist() == pytest.approx(MINIMISER)


KNOWN = [limit for limit in LIMITS.values() if limit.point is not None]


def ends(limit: Limit) -> str:
    cell = convergence.judged(limit, [w.tolist() for w in path(limit.text, limit.trial())])
    return "" if cell.passed else cell.text


@pytest.mark.parametrize("limit", [v for v in KNOWN if v.rounds <= 100], ids=mode)
def test_it_ends_where_it_should(limit: Limit) -> None:
    assert ends(limit) == ""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [v for v in KNOWN if v.rounds > 100], ids=mode)
def test_it_ends_where_it_should_in_time(limit: Limit) -> None:
    assert ends(limit) == ""


@pytest.mark.slow
@pytest.mark.parametrize("limit", SLOW, ids=mode)
def test_limit_after_thousands_of_rounds(limit: Limit) -> None:
    end = path(limit.text, limit.trial(THOUSANDS))[-1].tolist()
    assert end == pytest.approx(limit.point, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "end"), [("fednova", (-0.19133, 1.33278)), ("fedavg", (-0.76170, 1.66611))]
)
def test_fednova_tends_to_the_minimiser_as_the_rate_falls(
    text: str, end: tuple[float, float]
) -> None:
    """η = 1e-3, K = (2, 8): FedNova's bias vanishes with η, FedAvg's does not."""
    trial = replace(golden_trial(), rounds=2500).working(lr=1e-3, steps=(2, 8))
    assert path(text, trial)[-1].tolist() == pytest.approx(end, abs=2e-5)


def test_fedgf_distances_and_trust() -> None:
    """dist = 1.365366, 1.914404, 1.631304 > T_D = 0.9, so c = 0 in round 0 and 1 afterwards."""
    inside = Inside("fedgf:rho=0.1,rho_g=0.1,threshold=0.9,window=3", golden_trial(rounds=4))
    inside.run()
    assert [seen.down["c"] for seen in inside.backend.visits[::2]] == [0.0, 1.0, 1.0, 1.0]
    states: list[Any] = [report.state for report in inside.reports]
    assert [s.dist for s in states[:3]] == pytest.approx((1.365366, 1.914404, 1.631304), abs=2e-6)
    assert [s.window for s in states] == [(1,), (1, 1), (1, 1, 1), (1, 1, 1)]


def test_fedgf_takes_its_threshold_from_the_first_rounds() -> None:
    """dist = 1.446627, 2.233725, 1.647273, so T_D is their median, the last."""
    trial = alternating(golden_trial(rounds=6))
    inside = Inside("fedgf:rho=0.1,rho_g=0.1,threshold=auto,window=3", trial)
    inside.run()
    states: list[Any] = [report.state for report in inside.reports]
    early = (1.446627, 2.233725, 1.647273)
    assert [s.dist for s in states[:3]] == pytest.approx(early, abs=2e-6)
    assert all(s.early == states[2].early for s in states[2:]), "later rounds do not move it"
    assert [s.window for s in states] == [(), (), (), (1,), (1, 1), (1, 1, 1)]
    assert [seen.down["c"] for seen in inside.backend.visits] == [0.0] * 4 + [1.0] * 2
    algorithm: Any = inside.algorithm
    logged = [algorithm.log(s).get("threshold") for s in states]
    assert logged == [None, None, *[pytest.approx(1.647273, abs=2e-6)] * 4]


def test_the_golden_classifier() -> None:
    assert closed_form.golden_failures() == []


def test_ridge_is_not_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "RIDGE", 0.02)
    monkeypatch.setattr(closed_form.ridge, "__defaults__", (0.02,))
    assert len(closed_form.ridge_failures()) == 4
