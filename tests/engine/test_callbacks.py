"""Callbacks: what they are told, when, and what it costs a run that they are there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedrift as fr
from fedrift.engine.callbacks import Passive, Plan, RoundReport
from fedrift.storage import run_record
from tests.support.problems import small_run


class Noting(fr.Callback):
    """Keeps what it is told, in order."""

    def __init__(self, *looks: int) -> None:
        self.told, self.looks = list[Any](), looks

    def on_start(self, plan: Plan) -> None:
        self.told.append("start")

    def on_reply(self, exchange: Any, client: int, weight: float, up: Any) -> None:
        self.told.append(("reply", exchange.round + 1))

    def on_round(self, report: RoundReport) -> None:
        self.told.append(report.round)

    def on_end(self, result: fr.Result) -> None:
        self.told.append(result.status)

    def on_error(self, error: BaseException) -> None:
        self.told.append(type(error))

    def looks_at(self, round: int) -> bool:
        return not self.looks or round in self.looks


class Late(Passive):
    """Asks to stop without looking at rounds."""

    def on_round(self, report: RoundReport) -> bool:
        return report.round >= 2


class Failing(fr.Callback):
    def on_round(self, report: RoundReport) -> None:
        if report.round == 2:
            raise ZeroDivisionError

    def on_error(self, error: BaseException) -> None:
        raise ValueError("this too")


@pytest.mark.parametrize("workers", [0, 2])
def test_everything_is_told_in_its_order(workers: int) -> None:
    seen = Noting()
    made = small_run("fedavg", rounds=2, per_round=2, workers=workers, callbacks=[seen])
    replies = [[("reply", t)] * 2 for t in (1, 2)]
    assert seen.told == ["start", *replies[0], 1, *replies[1], 2, "done"]
    assert made.fingerprint == small_run("fedavg", rounds=2, per_round=2).fingerprint


def test_replies_are_shown_in_rounds_that_are_looked_at() -> None:
    seen = Noting(2)
    small_run("fedavg", rounds=3, per_round=2, callbacks=[seen])
    assert seen.told == ["start", 1, ("reply", 2), ("reply", 2), 2, 3, "done"]


@pytest.mark.parametrize("workers", [0, 2])
def test_who_does_not_look_can_still_stop(workers: int) -> None:
    made = small_run("fedavg", rounds=9, workers=workers, callbacks=[Late()])
    assert made.status == "stopped"
    assert made.rounds[-1] in ((2,) if workers == 0 else (2, 3, 4))


def test_one_that_raises_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    seen, how = Noting(), dict[str, Any](rounds=4, out=tmp_path / "run")
    with pytest.raises(ZeroDivisionError) as raised:
        small_run("fedavg", callbacks=[Failing(), seen], **how)
    assert seen.told[-1] is ZeroDivisionError
    assert any("Failing.on_error" in note for note in raised.value.__notes__)
    assert [row["round"] for row in run_record.load(tmp_path / "run").rounds] == [1, 2]
    again = Noting()
    small_run("fedavg", callbacks=[again], **how)
    assert [t for t in again.told if isinstance(t, int)] == [3, 4]
    read = Noting()
    small_run("fedavg", callbacks=[read], **how)
    assert read.told == ["done"], "it was finished before, and had no start"


def test_a_round_is_recorded_when_it_is_told(tmp_path: Path) -> None:
    class Reading(fr.Callback):
        def on_round(self, report: RoundReport) -> None:
            kept = run_record.load(tmp_path / "run").rounds
            assert kept[-1]["round"] == report.round

    assert small_run("fedavg", out=tmp_path / "run", callbacks=[Reading()]).status == "done"


def zero_state(report: RoundReport) -> None:
    report.state.c.zero_()


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (zero_state, "OnRound.on_round has changed the server's state.*work on a copy"),
        (lambda report: report.weights, "OnRound.on_round gave a Tensor, which is neither true"),
    ],
)
def test_one_that_changes_the_run_or_says_neither_is_told(does: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run("scaffold", rounds=2, on_round=does)


def test_a_folder_that_goes_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removed by a callback, or a relative one when the program has gone elsewhere."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for out, does in (
        (tmp_path / "run", lambda report: shutil.rmtree(tmp_path / "run")),
        (Path("here"), lambda report: os.chdir(tmp_path / "other")),
    ):
        with pytest.raises(fr.RunError, match=f"^out '{out}' is not there any more: it was moved"):
            small_run("fedavg", rounds=3, out=out, on_round=does)


@pytest.mark.parametrize("wrong", [3, [3], [Noting], ["progress"]], ids=str)
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(fr.InputError, match=r"callbacks.*fedrift\.Callback"):
        small_run("fedavg", callbacks=wrong)


def test_runs_of_a_comparison_have_callbacks_of_their_own() -> None:
    from tests.api.test_comparison import TASK

    seen: dict[tuple[str, int], Noting] = {}

    def watching(item: Any) -> list[fr.Callback]:
        return [seen.setdefault((item.label, item.seed), Noting())]

    made = fr.compare(["fedavg", "fedprox"], seeds=2, workers=0, callbacks=watching, **TASK)
    assert len(made.results) == len(seen) == 4
    assert all(one.told[-1] == "done" and one.told.count("start") == 1 for one in seen.values())
    with pytest.raises(fr.InputError, match="function of a run"):
        fr.compare(["fedavg"], callbacks=[Noting()], **TASK)  # type: ignore[arg-type]
