"""Simulated faults: who fails is fixed by the seed, and what fails is left out of the round."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.algorithms.fed3r import Fed3R
from fedrift.backends.visit import corrupted
from fedrift.cli import code_of
from fedrift.core import Mean, message
from fedrift.core.faults import Corrupt, Faults, Stragglers, parse_faults
from fedrift.engine.aggregation import check_faults
from tests.support.problems import small_run

CLIENTS = range(2000)


def test_dropout_has_its_probability_and_follows_the_seed() -> None:
    faults = Faults(dropout=0.3)
    gone = faults.at(0, 5, CLIENTS).dropped
    assert abs(len(gone) / 2000 - 0.3) < 0.05
    assert gone == faults.at(0, 5, list(CLIENTS)[::-1]).dropped
    assert gone != faults.at(1, 5, CLIENTS).dropped and gone != faults.at(0, 6, CLIENTS).dropped


def test_a_straggler_has_done_the_share_that_fits_before_the_deadline() -> None:
    how = Stragglers(share=0.5, slow=3.0, deadline=1.5, late="partial")
    part = Faults(stragglers=how).at(0, 0, CLIENTS).part
    assert abs(len(part) / 2000 - 0.5 * 0.75) < 0.05, "slowed beyond 1.5, of 1…3"
    assert all(0.5 <= share < 1.0 for share in part.values())
    dropped = Faults(stragglers=Stragglers(0.5, 3.0, 1.5, "drop")).at(0, 0, CLIENTS).dropped
    assert dropped == set(part)


def test_the_corrupted_are_the_same_all_the_time() -> None:
    faults = Faults(corrupt=Corrupt(0.2))
    first = faults.at(3, 0, CLIENTS).corrupted
    assert first == faults.at(3, 9, CLIENTS).corrupted and abs(len(first) / 2000 - 0.2) < 0.04


@message
class Up:
    v: Mean[torch.Tensor]
    n: Mean[float]


def test_what_a_corrupted_client_sends() -> None:
    up = Up(v=torch.arange(4.0), n=2.0)
    flipped = corrupted(up, Corrupt(1.0, "sign", 2.0), 0, 0, 0)
    assert torch.equal(flipped.v, -2 * up.v) and flipped.n == 2.0
    assert torch.equal(corrupted(up, Corrupt(1.0, "scale", 9.0), 0, 0, 0).v, 9 * up.v)
    assert corrupted(up, Corrupt(1.0, "nan"), 0, 0, 0).v.isnan().all()
    big = Up(v=torch.ones(10_000), n=0.0)
    noise = corrupted(big, Corrupt(1.0, "noise", 3.0), 0, 1, 2).v
    assert abs(float(noise.norm()) / 300 - 1) < 0.05
    assert torch.equal(noise, corrupted(big, Corrupt(1.0, "noise", 3.0), 0, 1, 2).v)


ALL = ["dropout:0.2", "stragglers:0.5,late=partial,deadline=0.5", "corrupt:0.3,kind=noise"]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime", "swa(fedavg):start=2"])
def test_the_same_bits_wherever_it_runs(name: str) -> None:
    how: dict[str, Any] = {"faults": ALL, "per_round": 5, "rounds": 4}
    here = small_run(name, **how)
    assert here.fingerprint == small_run(name, **how, workers=2).fingerprint
    assert here.fingerprint == small_run(name, **how, backend="wire").fingerprint
    assert here.fingerprint != small_run(name, per_round=5, rounds=4).fingerprint


def test_who_dropped_out_is_told_and_costs_no_upload() -> None:
    run = small_run("scaffold", faults="dropout:0.5", per_round=None, rounds=6)
    dropped = [e.dropped for e in run.ledger.entries]
    assert any(dropped)
    for entry in run.ledger.entries:
        assert set(entry.replied) | set(entry.dropped) == set(entry.asked)
        assert not set(entry.replied) & set(entry.dropped)


def test_everybody_gone_is_a_void_round() -> None:
    run = small_run("fedavg", faults="dropout:1", rounds=3)
    assert run.status == "done" and torch.equal(run.weights, run.problem.w0)


def test_partial_work_is_fewer_steps() -> None:
    full = small_run("fedavg", epochs=4, batch_size=4)
    late = small_run(
        "fedavg", epochs=4, batch_size=4, faults="stragglers:1,slow=4,late=partial,deadline=0.5"
    )
    assert sum(e.steps for e in late.ledger.entries) < 0.6 * sum(
        e.steps for e in full.ledger.entries
    )


def test_a_client_that_sends_nonsense_is_dropped_counted_and_named() -> None:
    run = small_run("fedavg", faults="corrupt:0.4,kind=nan", per_round=None, rounds=2)
    first = run.ledger.entries[0]
    assert first.nonfinite and set(first.nonfinite) | set(first.replied) == set(first.asked)
    assert run.status == "done"
    assert run.summary()["nonfinite_replies"] == sum(len(e.nonfinite) for e in run.ledger.entries)


def test_a_cohort_of_corrupted_clients_is_a_void_round() -> None:
    """Who sends nonsense on purpose does not end the run, alone or among others."""
    run = small_run("fedavg", faults="corrupt:0.5,kind=nan", per_round=1, rounds=8)
    asked = [entry.nonfinite for entry in run.ledger.entries]
    assert any(asked) and not all(asked) and run.status == "done"
    assert small_run("fedavg", faults="corrupt:1,kind=nan", rounds=3).status == "done"


def no_number(output: Tensor, y: Tensor) -> Tensor:
    return output.sum() * math.nan


def test_a_cohort_that_sends_nothing_finite_has_diverged() -> None:
    how: dict[str, Any] = {"loss": no_number, "per_round": 1, "rounds": 3}
    assert small_run("fedavg", **how).status == "diverged"
    assert small_run("fedavg", **how, faults="corrupt:0,kind=nan").status == "diverged"


WRONG = [
    ("dropout", "dropout:P"),
    ("dropout:2", "dropout"),
    ("dropout:x", "dropout"),
    ("dropout:0.1,late=drop", "dropout:P"),
    ("dropuot:0.1", "dropout"),
    ("stragglers:0.1,late=never", "late"),
    ("stragglers:0.1,slow=0.5", "slow"),
    ("corrupt:0.1,kind=evil", "kind"),
    ("corrupt(dropout:1):0.1", "corrupt"),
]


@pytest.mark.parametrize(("text", "says"), WRONG)
def test_wrong_faults_are_refused(text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(fr.InputError, match=says):
        parse_faults([text])
    assert code_of(["run", "fedavg", "--faults", text]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("wrong", [3, ["dropout:0.1", "dropout:0.2"], [1]])
def test_wrong_kinds_are_refused(wrong: Any) -> None:
    with pytest.raises(fr.InputError, match="faults"):
        small_run("fedavg", faults=wrong)


def test_partial_work_needs_steps() -> None:
    with pytest.raises(fr.InputError, match="late=drop"):
        check_faults(Faults(stragglers=Stragglers(0.5, late="partial")), Fed3R())


def test_faults_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    base = "run fedavg --rounds 2 --clients 8 --model logistic --workers 0 --json".split()
    prints: list[str] = []
    for more in ([], ["--faults", "dropout:0.5"], ["--faults", "dropout:0.5"]):
        assert code_of([*base, *more]) == 0
        prints.append(capsys.readouterr().out.split('"fingerprint": ')[1][:18])
    assert prints[0] != prints[1] == prints[2]
