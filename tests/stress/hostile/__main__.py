"""`python -m tests.stress.hostile`: what can be done from outside, in numbers; 1 if it is wrong."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.stress.portions import ROOT, Progress, side_by_side, told

KINDS = {"lines": 1500, "forged": 1000, "damaged": 500, "kills": 300}
"""How many of each, unless said."""
NAMED = {
    "lines": "command lines",
    "forged": "forged folders",
    "damaged": "damaged folders",
    "kills": "kills and signals",
}
Portion = dict[str, int]
"""Cases of each kind that one process does, and the number of the first."""
FEW = 100
PORTIONS = {"lines": 150, "forged": 100, "damaged": 100, "kills": 50}
"""Cases of one process."""
SORTS = ("traceback", "hang", "written", "wrong result", "other")


def read(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.hostile", description=__doc__)
    for kind, number in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=number, help=f"{NAMED[kind]} ({number})")
    parser.add_argument("--seed", type=int, default=0, help="which cases (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of each kind (0)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most so long (any)")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (2)")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for temporary files")
    parser.add_argument("--mutant", default="", help="plant a mistake of mutants.py")
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


# One process: some cases of each kind.


def shard(said: argparse.Namespace) -> int:
    """Does so many cases of each kind, from `first` on, and prints a line of JSON for each."""
    from tests.stress.hostile import folders, kills, lines, originals, trial

    signal.signal(signal.SIGINT, signal.default_int_handler)
    trial.prepare()
    scratch = Path(tempfile.mkdtemp(prefix="", dir=said.scratch))  # sockets: names must be short
    made, end = scratch / "originals", time.monotonic() + said.seconds
    cases: dict[str, Callable[[int, int, Path, Path], dict[str, Any]]] = {
        "lines": lines.case,
        "forged": partial(folders.case, "forged"),
        "damaged": partial(folders.case, "damaged"),
        "kills": kills.case,
    }
    try:
        originals.make(made)
        if said.mutant:
            from tests.stress.hostile import mutants

            mutants.plant(said.mutant)
        for kind, do in cases.items():
            done, number = 0, said.first
            if kind == "kills":
                kills.slow_down()
            while done < getattr(said, kind) and time.monotonic() < end:
                case = do(said.seed, number, made, scratch)
                print(json.dumps({"kind": kind, "case": number} | case), flush=True)
                done += case.get("number", 1)
                number += 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


# All of them.


@dataclass
class Tally:
    """What has been seen of one kind."""

    kind: str
    wanted: int
    done: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    sorts: Counter[str] = field(default_factory=Counter[str])

    def take(self, case: dict[str, Any]) -> None:
        self.done += case.get("number", 1)
        self.counts.update(case["counts"])
        for one in case["flaws"]:
            self.sorts[sort_of(one)] += 1

    def __str__(self) -> str:
        sorts = ", ".join(f"{self.sorts[name]} {PLURAL[name]}" for name in SORTS)
        more = ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))
        return f"{self.done:>6,} {NAMED[self.kind]}: {sorts}{f' ({more})' if more else ''}"


PLURAL = {
    "traceback": "tracebacks",
    "hang": "hangs",
    "written": "writes elsewhere",
    "wrong result": "wrong results",
    "other": "other flaws",
}


def sort_of(flaw: str) -> str:
    if "written" in flaw or "was changed" in flaw or "was run" in flaw:
        return "written"
    return next((name for name in SORTS if f"{name}:" in flaw), "other")


def main(said: argparse.Namespace) -> int:
    if not sys.platform.startswith("linux"):
        print("this suite needs Linux: it looks at processes in /proc", file=sys.stderr)
        return 2
    progress, broken = Progress(), list[str]()
    tallies = {kind: Tally(kind, getattr(said, kind)) for kind in KINDS if getattr(said, kind)}
    scratch = Path(tempfile.mkdtemp(prefix="fedrift-", dir=said.scratch))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}

    def command(counts: Portion) -> list[str]:
        words = [word for kind in KINDS for word in (f"--{kind}", counts.get(kind, 0))]
        words += ["--first", counts["first"], "--seed", said.seed]
        words += ["--mutant", said.mutant] if said.mutant else []
        return [sys.executable, "-m", "tests.stress.hostile", *map(str, words)]

    def take(case: dict[str, Any]) -> None:
        kind = case["kind"]
        tallies[kind].take(case)
        if case["flaws"]:
            print(f"{NAMED[kind]}, case {case['case']}: {case['shown']}")
            for one in case["flaws"]:
                print(f"  {one}")
            again = command({kind: 1, "first": case["case"]})
            print(f"  again: {shlex.join(again)}", flush=True)
        text = ", ".join(f"{t.done} of {t.wanted} {NAMED[k]}" for k, t in tallies.items())
        progress.tell(f"{text}, {sum(sum(t.sorts.values()) for t in tallies.values())} flaws")

    def run(counts: Portion) -> bool:
        left = said.seconds - progress.seconds
        if left <= 0:
            return False
        words = [*command(counts), "--shard", "--scratch", str(scratch), "--seconds", str(left)]
        code, errors = told(words, environment, take)
        if code != 0:
            broken.append(f"{counts} ended with {code}")
            print(f"{broken[-1]}\n{errors}", flush=True)
        return len(broken) < 3

    try:
        side_by_side(said.jobs, portions(said, tallies), run)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for tally in tallies.values():
        print(tally)
    wrong = sum(sum(tally.sorts.values()) for tally in tallies.values())
    is_short = any(t.done < t.wanted for t in tallies.values()) and said.seconds == math.inf
    print(f"{wrong} flaws, seed {said.seed}, {progress.seconds:.0f} s", flush=True)
    return 1 if wrong or broken or is_short else 0


def portions(said: argparse.Namespace, tallies: dict[str, Tally]) -> list[Portion]:
    """Kinds in turn, so that what is slow is not left for the end; a few of each are done in one
    process, which takes seconds to begin."""
    wanted = {kind: tally.wanted for kind, tally in tallies.items()}
    if sum(wanted.values()) <= FEW:
        return [wanted | {"first": said.first}]
    found: list[tuple[float, Portion]] = []
    for kind, count in wanted.items():
        size = min(PORTIONS[kind], -(-count // said.jobs))
        for first in range(0, count, size):
            portion = {kind: min(size, count - first), "first": said.first + first}
            found.append((first / count, portion))
    return [portion for _, portion in sorted(found, key=lambda pair: pair[0])]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = read(sys.argv[1:])
    try:
        ending = shard(chosen) if chosen.shard else main(chosen)
    except KeyboardInterrupt:
        ending = 130
    sys.exit(ending)
