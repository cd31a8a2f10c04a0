"""Commands that are ended from outside, at moments spread over their lives, and gone on with.

Ctrl-C, SIGTERM and SIGKILL reach the whole group, the parent alone, or one worker. What was struck
says nothing but a sentence, leaves no process behind, and the same command once more, or `resume`,
ends with the fingerprint of a run that was left alone; a run whose only worker was struck ends so
by itself.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.stress.hostile.trial import HANG, Ended, Place, Started, command, flaws, real, started
from tests.stress.portions import ROOT

TASK = "--data digits --clients 4 --model logistic --steps 1 --batch-size 16 --quiet --json".split()
ALGORITHMS = ("fedavg", "scaffold", "mime", "swa(fedgamma):start=0.5", "fedper", "ditto(fedavg)")
"""Without a state, with one, with two exchanges a round, wrapped, with models of clients' own."""
PAUSE = 0.004  # seconds after a round: without it rounds of these small problems are never hit
FIRST = 0.35  # seconds in which a program that begins with nothing imported still imports
LEFT = 10.0  # seconds after which nothing may be left of what was struck
REPEATS = 3  # strikes on one folder before it is left alone, at most


@dataclass(frozen=True)
class Scenario:
    """A command, and what is done after it was struck."""

    words: tuple[str, ...]
    again: tuple[str, ...]
    workers: int = 0
    is_real: bool = False
    """It begins with nothing imported; else it is forked, and makes checkpoints all the time."""


def _run(algorithm: str, rounds: int, *more: str) -> Scenario:
    words = ("run", algorithm, *TASK, "--rounds", str(rounds), "--out", "kept", *more)
    given = "0" if "--workers" not in more else more[more.index("--workers") + 1]
    extra = () if "--workers" in more else ("--workers", "0")
    return Scenario((*words, *extra), ("resume", "kept", "--json", "--quiet"), int(given))


COMPARE = ("compare", "fedavg", "scaffold", *TASK, "--rounds", "12", "--out", "kept")
PAGE = ("report", "runs", "--out", "page.html")
SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "run": tuple(_run(name, 25) for name in ALGORITHMS),
    "resume": (_run("scaffold", 30), _run("fedper", 30)),
    "divergence": (  # in the middle of the run: every round multiplies the weights
        _run("fedavg", 12, "--lr", "1", "--weight-decay", "1e5"),
        _run("scaffold", 12, "--lr", "1", "--weight-decay", "1e7"),
    ),
    "compare": (Scenario((*COMPARE, "--workers", "0"), (*COMPARE, "--workers", "0")),),
    "report": (Scenario(PAGE, PAGE),),
    "workers": (_run("scaffold", 25, "--workers", "2"), _run("fedavg", 25, "--workers", "1")),
    "beginning": (
        Scenario(_run("fedavg", 3).words, _run("fedavg", 3).words, is_real=True),
        Scenario(PAGE, PAGE, is_real=True),
    ),
}
TURNS = (
    *("run", "run", "resume", "divergence", "compare", "report", "run", "divergence", "beginning"),
    *("run", "resume", "compare", "workers", "run", "divergence", "report", "beginning", "workers"),
)
OF_PYTHON = 'Traceback (most recent call last):\n  File "<frozen '
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


def begun(place: Place, scenario: Scenario) -> Started:
    if scenario.is_real:
        return real(place, scenario.words)
    return started(place, command(scenario.words))


def slow_down() -> None:
    """Rounds last long enough to be hit, and almost every one has a checkpoint."""
    from fedrift.engine import recorder

    recorder.SHORTEST, recorder.SHARE = 0.0, 1.0
    usual = recorder.RunRecorder.ledger

    def ledger(self: Any, row: Any) -> None:
        usual(self, row)
        time.sleep(PAUSE)

    recorder.RunRecorder.ledger = ledger


def result_of(place: Place, scenario: Scenario, ended: Ended) -> Any:
    """What a command has found, in a form to compare."""
    if scenario.words[0] == "report":
        page = (place.work / "page.html").read_text()
        return [len(re.sub(r"\d{4}-\d\d-\d\d[^<\"]*", "", page))]
    if scenario.words[0] == "compare":
        kept = sorted((place.work / "kept" / "runs").glob("*/summary.json"))
        return [_summary(path) for path in kept]
    return _summary(place.work / "kept" / "summary.json") if ended.code is not None else None


def _summary(path: Path) -> list[Any]:
    held = json.loads(path.read_text())
    names = ("fingerprint", "status", "diverged_at", "accuracy", "loss", "bytes_up", "bytes_down")
    lines = (path.parent / "ledger.jsonl").read_text().splitlines()
    rounds = (path.parent / "rounds.jsonl").read_text().count("\n")
    return [*(held[name] for name in names), len(lines), rounds]


@cache
def unbroken(scenario: Scenario, originals: Path, scratch: Path) -> tuple[Any, float, int]:
    """What a command finds that is left alone, how long it lives, and its exit code."""
    place = prepared(scenario, originals, scratch / "unbroken")
    try:
        start = begun(place, scenario)
        ended = start.ended(10 * HANG)
        life, found = time.monotonic() - start.since, result_of(place, scenario, ended)
        assert ended.code in (0, 1), ended.errors
        assert ("diverged" in found) == ("--weight-decay" in scenario.words), found
        return found, life, ended.code
    finally:
        place.remove()


def prepared(scenario: Scenario, originals: Path, root: Path) -> Place:
    place = Place(root)
    if scenario.words[0] == "report":
        (place.work / "runs").mkdir()
        for name in ("done", "analysed", "forked"):
            shutil.copytree(originals / name, place.work / "runs" / name)
    return place


def struck(start: Started, whom: str, number: int, after: float) -> bool:
    """Sends the signal some seconds after the beginning; whether anybody was there to get it."""
    while time.monotonic() - start.since < after:
        if start.poll():
            return False
        time.sleep(0.001)
    family = start.family()
    children = [pid for pid in family if pid != start.pid]
    chosen = {"group": family, "parent": [start.pid], "worker": children[-1:]}[whom]
    start.strike(number, chosen)
    return bool(chosen) and not start.poll()


def remains(start: Started) -> list[str]:
    """Processes that are left of it."""
    until = time.monotonic() + LEFT
    while (left := start.family()) and time.monotonic() < until:
        time.sleep(0.05)
    if left:
        start.strike(signal.SIGKILL, left)
    return [f"left: process {pid}" for pid in left]


def case(seed: int, number: int, originals: Path, scratch: Path) -> dict[str, Any]:
    """One folder whose commands are struck some times, and then left alone."""
    r = random.Random(f"kills {seed} {number}")
    kind = TURNS[number % len(TURNS)]
    scenario = r.choice(SCENARIOS[kind])
    wanted, life, code = unbroken(scenario, originals, scratch)
    place = prepared(scenario, originals, scratch / f"kill-{number}")
    found, strikes, told = list[str](), 0, list[str]()
    times = r.randint(1, REPEATS) if scenario.words[0] != "report" else 1
    try:
        current = scenario
        for i in range(times):
            whom = r.choice(
                ("group", "parent", "worker") if scenario.workers else ("group", "parent")
            )
            sent = r.choice(SIGNALS)
            # Spread evenly: case and strike number say which part of the life is meant.
            part = ((number * REPEATS + i) * 0.618034 + r.random() * 0.05) % 1.0
            after = 0.003 + part * (FIRST if kind == "beginning" and r.random() < 0.7 else life)
            told.append(f"{signal.Signals(sent).name} to the {whom} after {after:.3f} s")
            start = begun(place, current)
            has_hit = struck(start, whom, sent, after)
            ended = start.ended()
            strikes += has_hit
            found += _flaws_of(ended, sent, has_hit) + remains(start)
            if kind == "resume" and (place.work / "kept" / "spec.toml").exists():
                current = Scenario(scenario.again, scenario.again, scenario.workers)
        found += _finished(place, scenario, current, wanted, code)
        found += place.trespass()
    finally:
        place.remove()
    shown = f"{' '.join(scenario.words)}: {'; '.join(told)}"
    return {"flaws": found, "shown": shown, "counts": {kind: strikes}, "number": strikes}


def _flaws_of(ended: Ended, sent: int, has_hit: bool) -> list[str]:
    """What a command that was struck may not say or do."""
    # Before Python itself has begun nobody catches a signal, and while it does it tells of Ctrl-C.
    is_ended = has_hit and ended.code == -sent and not ended.is_traceback
    found = [] if is_ended or (has_hit and is_before_us(ended)) else flaws(ended)
    if ended.code == 2:
        found.append(f"refused: {ended.errors.strip()[:200]}")
    return found


def is_before_us(ended: Ended) -> bool:
    """Whether Ctrl-C has struck Python on its way to our first line: it tells of its own first, as
    of `site` and `runpy`, and of none of ours."""
    is_early = OF_PYTHON in ended.errors and "KeyboardInterrupt" in ended.errors and not ended.out
    return is_early and str(ROOT / "src") not in ended.errors


def _finished(
    place: Place, scenario: Scenario, current: Scenario, wanted: Any, code: int
) -> list[str]:
    """Going on must end as one that was left alone."""
    has_begun = (place.work / "kept" / "spec.toml").exists()
    last = scenario
    if scenario.again != scenario.words and has_begun and os.path.exists(place.work / "kept"):
        last = Scenario(scenario.again, scenario.again)
    ended = started(place, command(last.words)).ended(4 * HANG)
    found = flaws(ended)
    if ended.code != code:
        return [*found, f"wrong result: exit code {ended.code}: {ended.errors.strip()[-200:]}"]
    got = result_of(place, scenario, ended)
    return found if got == wanted else [*found, f"wrong result: {got} in place of {wanted}"]
