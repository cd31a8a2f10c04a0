"""`python -m tests.stress.bits`: hundreds of random configurations; 1 if any two ways differ."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.stress.bits.fuzz import DECIDING, SETS, judge, line_of, sets_here, shrunk
from tests.stress.bits.fuzz import write_script as write
from tests.stress.portions import ROOT, Progress, side_by_side, told

PORTION = 20  # configurations of one process: the next has other addresses, and a set of its own


def read(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.bits", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="configurations to run (500)")
    parser.add_argument("--seconds", type=float, default=1200.0, help="at most so long (1200)")
    parser.add_argument("--seed", type=int, default=0, help="which configurations (0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (2)")
    parser.add_argument(
        "--sets", default=",".join(sets_here()), help="instruction sets: %(default)s"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bits", help="of scripts")
    parser.add_argument("--mutant", default="", help="plant a mistake of mutants.py")
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args(words)
    said.sets = [name.strip() for name in said.sets.split(",")]
    for name in said.sets:
        if name not in SETS:
            parser.error(f"--sets: '{name}' is unknown; known are {', '.join(SETS)}")
    return said


# One process: a few configurations under one instruction set.


def shard(said: argparse.Namespace) -> int:
    """Runs `count` configurations from `first` on, and prints a line of JSON for each."""
    from tests.stress.bits.configuration import draw
    from tests.stress.bits.ways import Ways, prepare

    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    end = time.monotonic() + said.seconds
    if said.mutant:
        from tests.stress.bits import mutants

        mutants.plant(said.mutant)
        prepare((mutants.__name__,))
    else:
        prepare()
    # A mutant is in this process and in those that are forked from its server.
    ways, wrong = Ways(kept="forkserver" if said.mutant else "spawn"), 0
    try:
        for number in range(said.first, said.first + said.count):
            if time.monotonic() > end:
                break
            config = draw(said.seed, number)
            if said.mutant:
                config["ways"] = [way.replace("spawn", "forkserver") for way in config["ways"]]
            verdict, script = judge(ways, config), None
            if verdict.differences:
                wrong += 1
                first = verdict.differences[0]
                small = config if said.mutant else shrunk(ways, config, first.way)
                drawn = f"--seed {said.seed} --first {number}"
                script = write(said.folder, f"seed-{said.seed}-{number}", small, first, drawn)
            print(json.dumps(line_of(number, verdict, script)), flush=True)
            if wrong and said.mutant:
                break
    finally:
        ways.close()
    return 1 if wrong else 0


# All of them: portions, each in a process of its own.


@dataclass
class Tally:
    """What has been seen so far."""

    wanted: int
    progress: Progress = field(default_factory=Progress)
    executed: Counter[str] = field(default_factory=Counter[str])
    runs: int = 0
    refused: int = 0
    differ: int = 0
    broken: list[str] = field(default_factory=list[str])

    @property
    def done(self) -> int:
        return sum(self.executed.values())

    def take(self, line: dict[str, Any], name: str) -> None:
        if line["refused"]:
            self.refused += 1
            return
        self.executed[name] += 1
        self.runs += line["ways"]
        if line["way"]:
            self.differ += 1
            print(f"configuration {line['number']} ({name}) differs: {line['way']}")
            print(f"  expected {json.dumps(line['expected'])}")
            print(f"  got      {json.dumps(line['got'])}")
            print(f"  {sys.executable} {line['script']}", flush=True)
        self.progress.tell(f"{self.done} of {self.wanted} configurations, {self.differ} differ")

    def summary(self) -> str:
        sets = ", ".join(f"{name}: {n}" for name, n in self.executed.items())
        ways = round(self.runs / self.done) if self.done else 0
        return (
            f"{self.done} configurations × {ways} ways: {self.differ} differ "
            f"({self.refused} more refused alike; {sets}; {self.progress.seconds:.0f} s)"
        )


def environment(name: str, number: int) -> dict[str, str]:
    """The instruction set, and what else may not matter: threads, contents of freed memory."""
    r = random.Random(number)
    own = {key: value for key, value in os.environ.items() if key not in DECIDING}
    own["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    own["OMP_NUM_THREADS"] = str(r.choice((1, 2, 4)))
    if r.random() < 0.5:
        own["MALLOC_PERTURB_"] = "165"
    return own | SETS[name]


def main(said: argparse.Namespace) -> int:
    tally = Tally(said.count)
    portion = min(PORTION, math.ceil(said.count / (said.jobs * len(said.sets))))

    def run(number: int) -> bool:
        """One process; whether more are wanted after it."""
        left = said.seconds - tally.progress.seconds
        if left <= 0 or tally.done >= said.count or len(tally.broken) >= 3:
            return False
        name = said.sets[number % len(said.sets)]
        words = ["--shard", "--seed", said.seed, "--first", said.first + number * portion]
        words += ["--count", portion, "--seconds", left, "--folder", said.folder]
        command = [sys.executable, "-m", "tests.stress.bits", *map(str, words)]
        code, errors = told(command, environment(name, number), lambda one: tally.take(one, name))
        if code not in (0, 1):
            tally.broken.append(f"portion {number} ({name}) ended with {code}")
            print(f"{tally.broken[-1]}\n{errors}", flush=True)
        return True

    side_by_side(said.jobs, range(10 * said.count // portion + 1), run)
    print(tally.summary(), flush=True)
    return 1 if tally.differ or tally.broken or not tally.done else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = read(sys.argv[1:])
    try:
        code = shard(chosen) if chosen.shard or chosen.mutant else main(chosen)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
