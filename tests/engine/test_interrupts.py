"""Ctrl-C and kill at any moment: what is continued ends with the bits of what was left alone."""

from __future__ import annotations

import inspect
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedrift as fr
from fedrift.backends import context
from fedrift.backends.worker import main
from fedrift.engine.history import defer_interrupts
from fedrift.engine.interrupts import REMINDER
from tests.support.problems import small_run
from tests.support.product import Scaffold, checkpoint, run_folder, run_record

HOME = str(Path(fr.__file__).parent)


class Interrupts:
    """Sends this process SIGINT when the n-th function of the package is called, or the next that
    is no generator: Python swallows what is raised while one is thrown away."""

    def __init__(self, at: int) -> None:
        self.at, self.calls, self.is_done = at, 0, at == 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(HOME):
            return
        self.calls += 1
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if self.calls >= self.at and not self.is_done and not is_generator:
            self.is_done = True
            signal.raise_signal(signal.SIGINT)

    def __enter__(self) -> Interrupts:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)


SHORT: dict[str, Any] = {"per_round": 2, "batch_size": None}
"""A round in which every kind of call is made, few of them often."""


def run(out: Path | None = None) -> fr.Result:
    return small_run("scaffold", rounds=3, out=out, workers=0, **SHORT)


@pytest.fixture(scope="module")
def whole() -> tuple[fr.Result, int]:
    """The run that is left alone, and how many calls it makes when it is kept."""
    result = run()  # the first makes more calls, which later ones find in caches
    with tempfile.TemporaryDirectory() as folder, Interrupts(0) as counter:
        run(Path(folder) / "run")
    return result, counter.calls


@pytest.mark.parametrize("part", range(25))
def test_ctrl_c_at_any_moment_loses_nothing(
    part: int, whole: tuple[fr.Result, int], tmp_path: Path
) -> None:
    alone, calls = whole
    at = 1 + (calls - 20) * part // 24  # caches spare later runs a few calls
    with pytest.raises(KeyboardInterrupt), Interrupts(at):
        run(tmp_path / "run")
    again = run(tmp_path / "run")
    assert again.rounds == alone.rounds
    assert again.ledger.entries == alone.ledger.entries
    assert again.fingerprint == alone.fingerprint
    kept = run_record.load(tmp_path / "run")
    assert [row["round"] for row in kept.rounds] == alone.rounds
    assert kept.clients["sizes"]


def test_a_block_is_finished_before_ctrl_c_is_heard() -> None:
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append(1)
        steps.append(2)
    assert steps == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_worker_whose_parent_hears_no_more_ends_quietly() -> None:
    ours, theirs = context().Pipe(duplex=True)
    process = context().Process(target=main, args=(theirs,))  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    ours.send(("visit", ("no such run", None)))
    ours.close()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("left", ["env.json", "clients.json", ".spec.toml.123.tmp", "spec.toml"])
def test_a_run_killed_while_its_folder_is_made_starts_anew(left: str, tmp_path: Path) -> None:
    """The files stand there in the order in which they are written; `left` is the last."""
    place = tmp_path / "run"
    run(place)
    order = ["env.json", "clients.json", "spec.toml"]
    kept = order[: order.index(left) + 1] if left in order else []
    for file in [p for p in place.rglob("*") if p.is_file() and p.name not in kept]:
        file.unlink()
    (place / "clients").rmdir()
    if left.startswith("."):
        (place / left).write_text('algorithm = "fed')
    assert run(place).fingerprint == run().fingerprint
    assert (place / run_folder.CLIENTS).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, REMINDER])
def test_what_ends_as_ctrl_c_does_is_held_back(number: signal.Signals) -> None:
    """The reminder, too: one that came in an import is heard a little later, wherever that is."""
    before = signal.signal(number, signal.default_int_handler)
    done = False
    try:
        with pytest.raises(KeyboardInterrupt), defer_interrupts():
            signal.raise_signal(number)
            done = True
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert done


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_signal_among_handlers_that_are_exchanged_leaves_none_deaf(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are taken away and given back, one after the other; Ctrl-C comes after one of them."""
    heard: list[int] = []
    both = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: lambda n, _: heard.append(n)}
    before = {number: signal.signal(number, handler) for number, handler in both.items()}
    usual, calls = signal.signal, 0

    def exchange(number: int, handler: Any) -> Any:
        nonlocal calls
        calls += 1
        found = usual(number, handler)
        if calls == at:
            signal.raise_signal(signal.SIGINT)
        return found

    try:
        monkeypatch.setattr(signal, "signal", exchange)
        with pytest.raises(KeyboardInterrupt), defer_interrupts():
            pass
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with defer_interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert heard == [signal.SIGTERM]
        assert heard == [signal.SIGTERM] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# A run that diverges, by its loss or by its weights, after two good rounds.

DIVERGING = {"loss": "step:2,factor=3e38", "weights": "step:2,factor=1e40"}


def diverging(how: str, out: Path | None, workers: int = 0, **more: Any) -> fr.Result:
    options: dict[str, Any] = {"schedule": DIVERGING[how], "rounds": 6, "workers": workers}
    return small_run("scaffold", out=out, **(SHORT | options | more))


def assert_same_end(again: fr.Result, alone: fr.Result) -> None:
    assert (again.status, again.diverged_at) == (alone.status, alone.diverged_at)
    assert again.rounds == alone.rounds and again.fingerprint == alone.fingerprint
    assert again.ledger.entries == alone.ledger.entries
    assert again.folder is not None
    kept = run_record.load(again.folder)
    assert [row["round"] for row in kept.rounds] == alone.rounds
    assert [row["round"] for row in kept.ledger] == [e.round for e in alone.ledger.entries]
    assert kept.summary["fingerprint"] == alone.fingerprint


@pytest.mark.parametrize("how", DIVERGING)
def test_ctrl_c_around_a_divergence_changes_nothing(how: str, tmp_path: Path) -> None:
    """At every moment from the round that diverges to the end, each with a run of its own."""
    alone = diverging(how, None)
    assert (alone.status, alone.diverged_at) == ("diverged", 3)
    with Interrupts(0) as before:
        diverging(how, tmp_path / "before", rounds=2, schedule=None)
    with Interrupts(0) as whole:
        diverging(how, tmp_path / "whole")
    late, missed = whole.calls, 0
    for at in [*range(before.calls - 120, late - 40, 41), *range(late - 40, late, 5)]:
        place = tmp_path / str(at)
        try:
            with Interrupts(at):
                diverging(how, place)
            missed += 1  # caches spare later runs a few calls
        except KeyboardInterrupt:
            pass
        assert_same_end(diverging(how, place), alone)
    assert missed < 9


class Ends(fr.Callback):
    """Interrupts when it is told of a round, before or after others are under way."""

    def __init__(self, round: int, waits: bool) -> None:
        self.round, self.waits = round, waits

    def on_round(self, report: fr.RoundReport) -> None:
        if report.round == self.round:
            raise KeyboardInterrupt

    def looks_at(self, round: int) -> bool:
        return self.waits


@pytest.mark.parametrize("how", DIVERGING)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("round", [2, 3])
def test_so_does_a_callback_that_ends_it(
    how: str, waits: bool, workers: int, round: int, tmp_path: Path
) -> None:
    alone = diverging(how, None)
    with pytest.raises(KeyboardInterrupt):
        diverging(how, tmp_path / "run", workers, callbacks=[Ends(round, waits)])
    assert_same_end(diverging(how, tmp_path / "run"), alone)


@pytest.mark.parametrize("how", DIVERGING)
def test_a_checkpoint_that_does_not_know_of_the_divergence_is_passed_over(
    how: str, tmp_path: Path
) -> None:
    """Earlier versions saved the state of the round that was not finite."""
    alone = diverging(how, tmp_path / "run")
    like = Scaffold().server(alone.problem)
    (tmp_path / "run" / run_folder.SUMMARY).unlink()
    point = checkpoint.read(tmp_path / "run" / checkpoint.FILE, like)
    assert point.diverged_at == 3
    late = 3 if how == "loss" else 2  # weights that are not finite did not end a round
    checkpoint.write(tmp_path / "run", replace(point, diverged_at=None, round=late))
    (tmp_path / "run" / checkpoint.PREVIOUS).unlink()
    assert_same_end(diverging(how, tmp_path / "run"), alone)
