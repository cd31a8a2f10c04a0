"""The simulated clock: seconds follow from the ledger, and late clients are treated as said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.core.devices import parse_devices
from fedrift.engine.clock import Clock
from tests.support.problems import small_run, uneven_clients

SIZES = uneven_clients().sizes
DEVICES = "lognormal:1.2,speed=40"


def expected(result: fr.Result, text: str = DEVICES, seed: int = 0) -> list[dict[int, float]]:
    """How long each reply of each round takes, from sizes alone: one epoch, one vector each way."""
    plan = parse_devices(text)
    assert plan is not None
    devices, size = plan.settle(len(SIZES), seed), 4 * len(result.weights)
    return [
        {
            c: 2 * devices.latency[c]
            + size / devices.down[c]
            + SIZES[c] / devices.speed[c]
            + size / devices.up[c]
            for c in entry.asked
        }
        for entry in result.ledger.entries
    ]


def test_a_round_lasts_as_long_as_its_slowest_client() -> None:
    result = small_run("fedavg", devices=DEVICES)
    lasts = [max(one.values()) for one in expected(result)]
    times = [row["time"] for row in result.metrics]
    assert times == pytest.approx(np.cumsum(lasts))
    assert result.summary()["time"] == times[-1]
    plain = small_run("fedavg")
    assert torch.equal(plain.weights, result.weights), "the clock changes nothing else"
    assert "time" not in plain.metrics[0] and plain.ledger.entries[0].trips == ()
    assert plain.fingerprint != result.fingerprint


def test_who_is_late_is_left_out_and_has_worked_for_nothing() -> None:
    usual = small_run("fedavg", devices=DEVICES)
    deadline = float(np.median([s for one in expected(usual) for s in one.values()]))
    result = small_run("fedavg", devices=DEVICES, late=f"drop:{deadline!r}")
    time = 0.0
    for entry, takes in zip(result.ledger.entries, expected(result), strict=True):
        late = {c for c, seconds in takes.items() if seconds > deadline}
        assert set(entry.dropped) == late and set(entry.replied) == set(takes) - late
        assert entry.gradients == sum(SIZES[c] for c in takes), "late ones have worked too"
        assert sum(s.total for s in entry.up.values()) == 4 * len(result.weights) * len(
            entry.replied
        )
        time += deadline if late else max(takes.values())
    assert result.metrics[-1]["time"] == pytest.approx(time)
    assert any(e.dropped for e in result.ledger.entries), "else nothing was tested"
    schedule = [list(e.replied) for e in result.ledger.entries]
    alone = small_run("fedavg", per_round=None, participants=schedule)
    assert torch.equal(alone.weights, result.weights), "as if only these had been asked"


def test_a_late_client_keeps_its_state() -> None:
    """SCAFFOLD's control variates are as if late clients had not been asked."""
    options: dict[str, Any] = {"devices": DEVICES, "late": "drop:1.2", "rounds": 6}
    result = small_run("scaffold", **options)
    assert any(e.dropped for e in result.ledger.entries)
    schedule = [list(e.replied) for e in result.ledger.entries]
    share = {"per_round": None, "participants": schedule, "fraction": 3 / 7, "rounds": 6}
    assert torch.equal(small_run("scaffold", **share).weights, result.weights)


def test_the_first_replies_of_more_clients_count() -> None:
    result = small_run("fedavg", devices=DEVICES, late="over:2")
    time = 0.0
    for entry, takes in zip(result.ledger.entries, expected(result), strict=True):
        first = sorted(takes, key=lambda c: (takes[c], c))[:3]
        assert len(entry.asked) == 5 and sorted(first) == list(entry.replied)
        time += takes[first[-1]]
    assert result.metrics[-1]["time"] == pytest.approx(time)


def test_partial_work_is_what_the_time_allows() -> None:
    whole = small_run("fedavg", devices=DEVICES, batch_size=4)
    deadline = 0.6
    result = small_run("fedavg", devices=DEVICES, late=f"partial:{deadline}", batch_size=4)
    assert all(e.replied == e.asked for e in result.ledger.entries)
    assert result.ledger.gradients < whole.ledger.gradients
    for entry, full in zip(result.ledger.entries, expected(result), strict=True):
        for trip in entry.trips:
            took = trip.arrives - trip.began
            if full[trip.client] <= deadline:
                assert took == pytest.approx(full[trip.client])
            else:
                one_step = 4 / (SIZES[trip.client] / (full[trip.client] - trip.down - trip.up))
                assert took <= max(deadline, trip.down + trip.up + one_step) + 1e-9
    sharp = small_run("fedsam", devices=DEVICES, late=f"partial:{deadline}", batch_size=4)
    assert sharp.ledger.total.steps < result.ledger.total.steps, "two gradients a step"


@pytest.mark.parametrize("compress", ["none", "up=topk:0.1", "up=qsgd:4,down=float16"])
def test_partial_work_is_planned_with_the_bytes_that_are_packed(compress: str) -> None:
    """Nobody is late who makes two steps or more, and nobody had time for another one."""
    speed, batch, deadline = 20.0, 2, 1.5
    devices = f"uniform:speed={speed},up=2000,latency=0"
    options: dict[str, Any] = {"devices": devices, "batch_size": batch, "compress": compress}
    result = small_run("fedavg", late=f"partial:{deadline}", **options)
    whole = small_run("fedavg", **options)
    assert result.ledger.gradients < whole.ledger.gradients, "else nothing was tested"
    for entry, full in zip(result.ledger.entries, whole.ledger.entries, strict=True):
        for trip, all_of_it in zip(entry.trips, full.trips, strict=True):
            spent = trip.down + trip.work + trip.up
            assert spent <= deadline + 1e-9
            if trip.work < all_of_it.work:
                assert spent + batch / speed > deadline - 1e-9


RULES = ["wait", "drop:1.2", "partial:0.8", "over:2"]


@pytest.mark.parametrize("late", RULES)
@pytest.mark.parametrize("text", ["fedavg", "scaffold", "mimemom"])
def test_the_same_bits_with_workers_and_after_an_interruption(
    text: str, late: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"devices": DEVICES, "late": late}
    whole = small_run(text, **options)
    assert small_run(text, workers=2, **options).fingerprint == whole.fingerprint

    def stop(report: fr.RoundReport) -> None:
        if report.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(text, out=tmp_path / "a", on_round=stop, **options)
    again = small_run(text, out=tmp_path / "a", **options)
    assert again.fingerprint == whole.fingerprint
    assert again.ledger.rows() == whole.ledger.rows()


def test_other_devices_are_another_run(tmp_path: Path) -> None:
    small_run("fedavg", devices=DEVICES, rounds=1, out=tmp_path / "a")
    for other in ({"devices": "uniform"}, {"devices": DEVICES, "late": "drop:9"}, {}):
        with pytest.raises(fr.InputError, match="holds another run"):
            small_run("fedavg", rounds=1, out=tmp_path / "a", **other)


def test_with_traces_a_round_waits_until_clients_are_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{c},{100 * c},{100 * c + 50}" for c in range(7)]
    path.write_text("client,start,end\n" + "\n".join(rows) + "\n")
    result = small_run("fedavg", devices=f"trace:{path},period=1000", rounds=1)
    slowest = max(result.ledger.entries[0].asked)
    assert 100 * slowest < result.metrics[-1]["time"] < 100 * slowest + 50


def test_a_void_round_takes_its_deadline() -> None:
    result = small_run("fedavg", devices=DEVICES, late="drop:0.001")
    assert [row["time"] for row in result.metrics] == pytest.approx(
        [0.001 * t for t in (1, 2, 3, 4, 5)]
    )
    assert torch.equal(result.weights, result.problem.w0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"late": "drop:3"}, "there is no clock; give devices too"),
        ({"devices": "uniform", "faults": ["stragglers:0.5"]}, "both say who is slow"),
        ({"devices": "uniform", "late": "over:9"}, "only 7"),
        ({"devices": "uniform", "late": "over:1", "sampling": "cyclic"}, "sampling=fixed"),
        (
            {"devices": "uniform", "late": "drop:3", "privacy": "gaussian:1,clip=1"},
            "how fast a client is",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fr.InputError, match=words):
        small_run("fedavg:weights=uniform", **options)


def test_a_clock_that_takes_late_replies_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above notice a deadline that counts nobody as late."""
    right = Clock.settle

    def wrong(self: Clock, exchange: Any, clients: Any, sent: Any, wanted: int) -> Any:
        self.devices = parse_devices("uniform:speed=1e9,latency=0").settle(7, 0)  # type: ignore[union-attr]
        return right(self, exchange, clients, sent, wanted)

    monkeypatch.setattr(Clock, "settle", wrong)
    with pytest.raises(AssertionError):
        test_who_is_late_is_left_out_and_has_worked_for_nothing()
    with pytest.raises(AssertionError):
        test_the_first_replies_of_more_clients_count()
