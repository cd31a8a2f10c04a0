"""Kills runs at random moments, goes on with them, and compares fingerprints.

    python tests/stress/kill.py [--kills 50] [--workers 0] [--seed 0] [CLASS …]

For each class of algorithms a run is started and killed (SIGKILL) again and again, each time going
on with what the one before has left, until the wanted number of kills is reached; then it is left
alone. The fingerprint must be that of a run that was never disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

CLASSES = {
    "stateless": "fedavg",
    "stateful": "scaffold",
    "two-exchange": "mime",
    "wrapper": "swa(fedgamma):start=0.5",
}
ROUNDS = 40


def run(name: str, workers: int, out: Path | None) -> str:
    """One run to its end; its fingerprint."""
    from fedrift.engine import recorder
    from tests.support.problems import small_run

    recorder.SHORTEST, recorder.SHARE = 0.0, 1.0  # a checkpoint after almost every round
    how: dict[str, Any] = {"rounds": ROUNDS, "workers": workers, "on_round": pause}
    return small_run(name, out=out, **how).fingerprint


def pause(report: object) -> None:
    """Rounds of these small problems are too short to be hit."""
    time.sleep(0.002)


def apart(name: str, workers: int, out: Path | None, after: float | None) -> tuple[str, bool]:
    """A run in a process of its own, killed after some seconds: its fingerprint, if it came to its
    end, and whether it was killed. This process never trains: one that has cannot be forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, run(name, workers, out).encode())
        finally:
            os._exit(0)
    os.close(writing)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        return pipe.read().decode(), os.WIFSIGNALED(status)


def trial(name: str, workers: int, kills: int, chance: random.Random) -> tuple[int, int, int]:
    """Kills that hit, runs that were finished, and fingerprints that were wrong."""
    begin = time.perf_counter()
    wanted, _ = apart(name, 0, None, None)
    length = time.perf_counter() - begin
    hits = finished = wrong = 0
    while hits < kills:
        folder = Path(tempfile.mkdtemp(prefix="fedrift-kill-"))
        for _ in range(min(12, kills - hits)):
            after = chance.uniform(0.0, length / 5 + workers * 1.0)
            hits += apart(name, workers, folder / "run", after)[1]
        wrong += apart(name, workers, folder / "run", None)[0] != wanted
        finished += 1
        shutil.rmtree(folder)
    return hits, finished, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("classes", nargs="*", default=list(CLASSES), metavar="CLASS")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    import torch

    from tests.support import problems

    assert problems is not None
    torch.set_num_threads(1)
    failures = 0
    for kind in said.classes:
        hits, finished, wrong = trial(
            CLASSES[kind], said.workers, said.kills, random.Random(said.seed)
        )
        failures += wrong
        print(f"{kind:<13} {hits:>4} kills, {finished} runs finished, {wrong} wrong", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
