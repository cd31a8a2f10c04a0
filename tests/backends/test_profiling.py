"""Where the time goes: every kind is there, the parts make up the whole, and nothing changes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import fedrift as fr
from fedrift.backends.profiling import IN_MAIN, IN_WORKERS, Meter
from fedrift.cli import app
from fedrift.errors import InputError


def _run(**changes: object) -> fr.Result:
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
    return fr.run("scaffold", **(settings | changes))  # type: ignore[arg-type]


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
