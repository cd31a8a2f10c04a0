"""FedAsync and FedBuff: what a plain event simulation in numpy says, and what must hold exactly."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.conform.golden import AFTER, ROWS, Row
from fedrift.conform.problem import GOLDEN_A, GOLDEN_B, equal_sizes
from tests.support.problems import small_run
from tests.support.product import classifier, golden_trial, path, run_trial, uneven_quadratic

# A federation of two quadratics, simulated event by event with nothing of the package's but its
# default device: 1000 gradients a second, 5 MB/s down, 1 MB/s up, 50 ms each way.

A, B = np.array(GOLDEN_A), np.array(GOLDEN_B)
LR, BYTES = 0.1, 16

Take = Callable[[np.ndarray, list[tuple[int, np.ndarray, np.ndarray]]], np.ndarray]
"""The model and the arrivals of a round (staleness, received, trained) → the new model."""


def seconds(samples: int, steps: int) -> float:
    return 0.05 + BYTES / 5e6 + samples * steps / 1000 + 0.05 + BYTES / 1e6


def simulate(
    rounds: int,
    wanted: int,
    take: Take,
    steps: tuple[int, int],
    copies: tuple[int, int],
    rho: float,
) -> list[np.ndarray]:
    """Both clients are always out; `wanted` arrivals make a version."""
    w, version, now, models = np.zeros(2), 0, 0.0, list[np.ndarray]()
    out: list[tuple[float, int, int, np.ndarray, np.ndarray]] = []
    home, buffer = {0, 1}, list[tuple[int, np.ndarray, np.ndarray]]()
    while version < rounds:
        if out and round(out[0][0], 9) <= round(now, 9):
            _, client, sent, start, end = heapq.heappop(out)
            home.add(client)
            buffer.append((version - sent, start, end))
            if len(buffer) == wanted:
                w, buffer, version = take(w, buffer), [], version + 1
                models.append(w)
            continue
        for client in sorted(home):
            x = w.copy()
            for _ in range(steps[client]):
                x = x - LR * (A[client] * (x - B[client]) + rho * (x - w))
            at = now + seconds(copies[client], steps[client])
            heapq.heappush(out, (at, client, version, w, x))
        home.clear()
        now = out[0][0]
    return models


def fedbuff(k: int, rate: float = 1.0, sqrt: bool = True) -> Take:
    def take(w: np.ndarray, came: list[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
        total = sum(((1 + s) ** -0.5 if sqrt else 1.0) * (end - start) for s, start, end in came)
        return w + rate * total / k

    return take


def fedasync(alpha: float, discount: Callable[[int], float]) -> Take:
    def take(w: np.ndarray, came: list[tuple[int, np.ndarray, np.ndarray]]) -> np.ndarray:
        [(s, _, end)] = came
        share = alpha * discount(s)
        return (1 - share) * w + share * end

    return take


def simulated(row: Row) -> list[np.ndarray]:
    given = row.local.get("steps", 5)
    steps = given if isinstance(given, tuple) else (given, given)
    text = row.text
    if text.startswith("fedbuff"):
        options = dict(o.split("=") for o in text.partition(":")[2].split(","))
        k = int(options["buffer"])
        rate, sqrt = float(options.get("server_lr", 1)), options.get("staleness") != "none"
        rule, wanted, rho = fedbuff(k, rate, sqrt), k, 0.0
    else:
        discounts: dict[str, Callable[[int], float]] = {
            "fedasync": lambda s: (s + 1) ** -0.5,
            "fedasync:alpha=0.8,staleness=hinge,a=2,b=1,rho=0.5": lambda s: (
                1.0 if s <= 1 else 1 / (2 * (s - 1) + 1)
            ),
            "fedasync:staleness=constant,rho=0": lambda s: 1.0,
        }
        alpha = 0.8 if "alpha" in text else 0.6
        rho = 0.5 if "rho=0.5" in text else 0.0 if "rho=0" in text else 0.005
        rule, wanted = fedasync(alpha, discounts[text]), 1
    assert len(row.copies) == 2
    return simulate(10, wanted, rule, steps, (row.copies[0], row.copies[1]), rho)


GOLDEN = [row for row in ROWS if row.name in ("fedasync", "fedbuff")]


@pytest.mark.parametrize("row", GOLDEN, ids=str)
def test_golden_rows_are_those_of_the_plain_simulation(row: Row) -> None:
    models = simulated(row)
    for after, point in zip(AFTER, row.points, strict=True):
        assert np.allclose(models[after - 1], point, rtol=0, atol=5e-7), after


def test_equal_devices_and_a_full_buffer_are_fedavg_in_every_number() -> None:
    """Weights, rows with cohorts, bytes and time: the same fingerprint."""
    trial = equal_sizes(replace(classifier(), rounds=5))
    both = [run_trial(t, trial) for t in ("fedbuff:buffer=3", "fedavg:weights=uniform")]
    assert torch.equal(both[0].weights, both[1].weights)
    for mine, other in zip(both[0].metrics, both[1].metrics, strict=True):
        assert {k: v for k, v in mine.items() if k in other and k != "seconds"} == {
            k: v for k, v in other.items() if k != "seconds"
        }
    entries = zip(both[0].ledger.entries, both[1].ledger.entries, strict=True)
    assert all(replace(a, trips=()) == b for a, b in entries)


SLOW = {"devices": "lognormal:1.5", "per_round": 4, "rounds": 12}
NAMES = ["fedbuff:buffer=3", "fedasync"]


@pytest.mark.parametrize("text", NAMES)
def test_the_same_bits_with_workers_and_after_every_interruption(text: str, tmp_path: Path) -> None:
    whole = small_run(text, **SLOW)
    assert small_run(text, workers=2, **SLOW).fingerprint == whole.fingerprint
    assert small_run(text, **SLOW | {"seed": 1}).fingerprint != whole.fingerprint
    for stop in (1, 5, 11):
        folder = tmp_path / f"{stop}"
        with pytest.raises(KeyboardInterrupt):
            small_run(text, out=folder, on_round=_interrupt(stop), **SLOW)
        again = small_run(text, out=folder, **SLOW)
        assert again.fingerprint == whole.fingerprint, f"after round {stop}"
        assert again.ledger.rows() == whole.ledger.rows()


def _interrupt(stop: int) -> Callable[[fr.RoundReport], None]:
    def on_round(report: fr.RoundReport) -> None:
        if report.round == stop:
            raise KeyboardInterrupt

    return on_round


@pytest.mark.parametrize("text", NAMES)
def test_bytes_down_count_at_departure_and_the_rest_at_arrival(text: str) -> None:
    result = small_run(text, **SLOW)
    size = 4 * len(result.weights)
    takes = 3 if "buffer" in text else 1
    out: dict[int, float] = {}
    for entry in result.ledger.entries:
        assert len(entry.replied) == len(entry.trips) == takes
        assert sum(s.total for s in entry.down.values()) == size * len(entry.asked)
        assert sum(s.total for s in entry.up.values()) == size * takes
        arrivals = [(trip.arrives, trip.client) for trip in entry.trips]
        assert arrivals == sorted(arrivals) and [c for _, c in arrivals] == list(entry.replied)
    for entry in result.ledger.entries:  # a client is out only once at a time
        for trip in entry.trips:
            assert trip.began >= out.get(trip.client, 0.0)
            out[trip.client] = trip.arrives
    asked = sum(len(e.asked) for e in result.ledger.entries)
    assert asked - takes * 12 <= 4, "at most as many as a cohort has are still out"
    times = [row["time"] for row in result.metrics]
    assert times == sorted(times) and times[-1] == result.ledger.entries[-1].trips[-1].arrives


def test_a_client_that_comes_twice_in_a_round_sees_other_batches() -> None:
    """One client is much faster: with a large buffer it is sent the same model again and again."""
    seen: list[bytes] = []

    class Watch(fr.Callback):
        def on_reply(self, exchange: Any, client: int, weight: float, up: Any) -> None:
            seen.append(up.delta.numpy().tobytes())

    trial = {"rounds": 1, "per_round": 1, "steps": 1, "batch_size": 2, "participants": None}
    small_run("fedbuff:buffer=30", callbacks=[Watch()], **trial)
    assert len(seen) == 30 and len(set(seen)) == 30


def test_schedules_of_clients_are_departures() -> None:
    trial = replace(uneven_quadratic(), participants=((0, 1), (2,), (3,), (4,)), rounds=4)
    result = run_trial("fedasync", replace(trial, per_round=None))
    left = [client for entry in result.ledger.entries for client in entry.asked]
    assert left == [0, 1, 2, 3, 4][: len(left)] and len(left) >= 4


def test_the_golden_trial_needs_no_devices() -> None:
    assert len(path("fedasync", golden_trial(rounds=3))) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"privacy": "gaussian:1,clip=1", "sampling": "bernoulli"}, "sampling 'bernoulli'"),
        ({"privacy": "gaussian:1,clip=1"}, "no bound is known"),
        ({"aggregate": "median"}, "start from different models"),
        ({"late": "drop:3"}, "waits for nobody"),
        ({"sampling": "cyclic"}, "sampling 'cyclic'"),
        ({"weights": "samples"}, "uniform"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fr.InputError, match=words):
        small_run("fedbuff", per_round=3, **options)
