"""Where the time goes: every kind is there, the parts make up the whole, and nothing changes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import fedrift as fr
from fedrift.backends import profiling
from fedrift.backends.profiling import IN_MAIN, IN_WORKERS, VISIT, Meter
from fedrift.cli import app
from fedrift.errors import InputError


def _run(algorithm: str = "scaffold", **changes: object) -> fr.Result:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(400, 20, generator=g), torch.randint(0, 4, (400,), generator=g)
    settings = {
        "model": lambda: torch.nn.Linear(20, 4),
        "clients": fr.split(x, y, "iid", clients=8),
        "test": (x[:100], y[:100]),
        "rounds": 4,
        "batch_size": 10,
        "seed": 1,
    }
    return fr.run(algorithm, **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_make_up_the_round_and_do_not_change_it(workers: int) -> None:
    timed = _run(workers=workers, profile=True)
    assert timed.fingerprint == _run(workers=workers).fingerprint
    assert [row["round"] for row in timed.profile] == [1, 2, 3, 4]
    for row in timed.profile:
        for kind in ("gradient", "optimizer", "batch", "client", "fold", "evaluate"):
            assert row[kind] >= 0
        kinds = IN_WORKERS if workers else (*IN_WORKERS, *IN_MAIN)
        used = sum(row[kind] for kind in kinds) + row["idle"]
        assert used >= row["wall"] * max(1, workers) * 0.999
    total = {kind: sum(row[kind] for row in timed.profile) for kind in timed.profile[0]}
    wanted = {"gradient", "optimizer", "batch", "fold", "evaluate"}
    wanted |= {"transport", "send"} if workers else set()
    assert all(total[kind] > 0 for kind in wanted)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("algorithm", ["fedavg", "fed3r", "scaffold"])
def test_every_moment_of_the_main_process_has_a_name(algorithm: str, workers: int) -> None:
    """However long a moment is: its kinds follow each other, and none of them is the rest."""
    rows = _run(algorithm, workers=workers, profile=True).profile
    wall = sum(row["wall"] for row in rows)
    kinds = IN_MAIN if workers else (*IN_WORKERS, *IN_MAIN)
    assert sum(row[kind] for row in rows for kind in kinds) == pytest.approx(wall, rel=1e-6)
    assert workers or sum(row["idle"] for row in rows) <= 0.001 * wall
    assert all(sum(row[kind] for row in rows) > 0 for kind in ("server", "record", "fold"))


def test_what_begins_inside_another_kind_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(profiling, "perf_counter", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    meter = Meter()
    passes(100)
    meter.restart()
    passes(1)
    with meter.span("record"):
        passes(2)
        with meter.span("wait"):
            passes(4)
        passes(8)
    with meter.span(VISIT):
        passes(16)
    meter.add({"gradient": 10.0, "batch": 1.0})
    meter.finished_round(1, 0)
    row = {kind: seconds for kind, seconds in meter.rounds[0].items() if seconds}
    assert row == {
        "round": 1, "wall": 31, "server": 1, "record": 10, "wait": 4, "gradient": 10, "batch": 1,
        "client": 5,
    }  # fmt: skip


def test_nothing_is_measured_unless_asked() -> None:
    result = _run(workers=0)
    assert result.profile == []
    assert all(not entry.steps or entry.gradients for entry in result.ledger.entries)


def test_what_comes_after_the_last_round_belongs_to_it() -> None:
    meter = Meter()
    meter.add({"gradient": 1.0})
    meter.finished_round(1, 2)
    meter.add({"evaluate": 3.0})
    meter.ended(2)
    assert meter.rounds[0]["gradient"] == 1.0
    assert meter.rounds[0]["evaluate"] == 3.0


def test_ray_is_refused() -> None:
    with pytest.raises(InputError, match="profile"):
        _run(profile=True, backend="ray")


def test_the_command_prints_a_table_or_json() -> None:
    command = ["run", "fedavg", "--rounds", "2", "--workers", "0", "--model", "logistic",
               "--quiet", "--profile"]  # fmt: skip
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    for word in ("gradient", "optimizer", "batch", "fold", "mean", "share"):
        assert word in shown.output
    said = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert [row["round"] for row in said["profile"]] == [1, 2]
    stages = said["stages"]
    assert {*stages} == {"command", "data", "imports", "task", "rounds", "workers and end"}
    assert stages["rounds"] == pytest.approx(sum(row["wall"] for row in said["profile"]))
    assert all(seconds >= 0 for seconds in stages.values())
