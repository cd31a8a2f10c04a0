"""Numbers at the edge: rates that no precision holds end a run as diverged, never in an error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift import algorithms
from fedrift.cli import code_of
from fedrift.config.algorithms import algorithms as catalogue
from fedrift.engine import recorder
from fedrift.engine.callbacks import Passive
from fedrift.engine.result import fingerprint
from tests.support.problems import small_run
from tests.support.product import Plan

WRAPPERS = {name for name, entry in catalogue().items() if entry.is_wrapper}
ALONE = sorted(set(algorithms.NAMES) - WRAPPERS)
WRAPPED = ["swa(scaffold):start=0.5", "wima(fedavg)", "sam(fedhbm)", "serveradam(fedavg)"]
WRAPPED += ["keep(scaffold)", "ditto(fedavg)", "finetune(fedavg)"]
NO_RATE = ("fedsgd", "fed3r")  # no local steps


@pytest.mark.parametrize("name", [*(n for n in ALONE if n not in NO_RATE), *WRAPPED])
def test_a_rate_beyond_the_precision_is_a_divergence(name: str) -> None:
    """fed3rft trains after its features are counted, FedAdam divides by the size of the step."""
    run = small_run(name, lr=1e39, rounds=4)
    assert run.status == "diverged" and run.diverged_at in (1, 2, 3, 4)


def test_losses_of_minibatches_that_overflow_in_their_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "run fedavg --data digits --clients 3 --model logistic --rounds 3 --steps 2 --workers 0"
    assert code_of([*words.split(), "--lr", "1e38", "-q", "--out", str(tmp_path / "run")]) == 0
    assert "diverged" in capsys.readouterr().out


def test_the_sign_of_what_is_no_number_is_not_in_the_fingerprint() -> None:
    """0/0 is negative on some processors, and what a file tells of it is not."""
    w = torch.zeros(2)
    one, other = ([{"loss": value}] for value in (math.nan, -math.nan))
    assert math.copysign(1, one[0]["loss"]) != math.copysign(1, other[0]["loss"])
    assert fingerprint(w, one) == fingerprint(w, other) != fingerprint(w, [{"loss": 0.0}])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rate_of_the_server_too(workers: int) -> None:
    run = small_run("fedsgd", lr=1e39, workers=workers)
    assert (run.status, run.diverged_at) == ("diverged", 1)
    run = small_run("scaffold:server_lr=1e39", workers=workers)
    assert run.status == "diverged"


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ghbm", "fedhbm", "feddyn", "mime"])
@pytest.mark.parametrize("schedule", ["exp:1e300", "step:1,factor=1e150", "exp:1e-300"])
def test_schedules_that_leave_the_numbers(name: str, schedule: str) -> None:
    run = small_run(name, schedule=schedule, rounds=6)
    assert run.status == ("diverged" if "e-" not in schedule else "done")


class Listener(Passive):
    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()

    def on_start(self, plan: Plan) -> None:
        self.notes = plan.notes


def stopped(report: fr.RoundReport) -> bool:
    """After each round, so that every call makes one."""
    return True


def test_going_on_elsewhere_is_said(tmp_path: Path) -> None:
    folder, how = tmp_path / "run", dict[str, Any](lr=0.1)
    small_run("scaffold", out=folder, on_round=stopped, **how)
    path, listener = folder / "env.json", Listener()
    known = json.loads(path.read_text())
    path.write_text(json.dumps({**known, "torch": "1.0", "instructions": "ABACUS"}))
    small_run("scaffold", out=folder, callbacks=[listener], on_round=stopped, **how)
    said = [note for note in listener.notes if "was" in note]
    assert len(said) == 1 and "torch was 1.0" in said[0] and "instructions was ABACUS" in said[0]
    kept = json.loads(path.read_text())["resumed"]
    assert [(p["after_round"], p["torch"]) for p in kept] == [(1, known["torch"])]
    small_run("scaffold", out=folder, callbacks=[listener], **how)
    assert not [note for note in listener.notes if "was" in note], "nothing has changed since"


@pytest.mark.parametrize("resumed", [3, [1, "x"], [{"torch": ["x"]}], {"a": 1}, None])
def test_a_strange_history_is_no_harm(resumed: object, tmp_path: Path) -> None:
    small_run("fedavg", out=tmp_path / "run", on_round=stopped)
    path = tmp_path / "run" / "env.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "resumed": resumed}))
    assert small_run("fedavg", out=tmp_path / "run").status == "done"
    assert recorder.moved({"torch": None}, {"torch": "2"}) == ("torch was None, is 2 now",)
