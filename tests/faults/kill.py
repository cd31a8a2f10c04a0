"""Kills runs at random moments, goes on with them, and compares fingerprints.

    python tests/faults/kill.py [--kills 50] [--workers 0] [--seed 0] [CLASS …]

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CLASSES = {
    "stateless": "fedavg",
    "stateful": "scaffold",
    "two-exchange": "mime",
    "wrapper": "swa(fedgamma):start=0.5",
}
ROUNDS = 60


def run(name: str, workers: int, out: Path | None) -> str:
    """One run to its end; its fingerprint."""
    from fedrift import keeping
    from problems import small_run

    keeping.SHORTEST, keeping.SHARE = 0.0, 1.0  # a checkpoint after almost every round
    how: dict[str, Any] = {"rounds": ROUNDS, "workers": workers, "on_round": pause}
    return small_run(name, out=out, **how).fingerprint


def pause(report: object) -> None:
    """Rounds of these small problems are too short to be hit."""
    time.sleep(0.002)


def killed(name: str, workers: int, out: Path, after: float) -> bool:
    """True if the run was killed; False if it had ended before."""
    child = os.fork()
    if child == 0:
        try:
            run(name, workers, out)
        finally:
            os._exit(0)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def trial(name: str, workers: int, kills: int, chance: random.Random) -> tuple[int, int, int]:
    """Kills that hit, runs that were finished, and fingerprints that were wrong."""
    begin = time.perf_counter()
    wanted = run(name, 0, None)
    length = time.perf_counter() - begin
    hits = finished = wrong = 0
    while hits < kills:
        folder = Path(tempfile.mkdtemp(prefix="fedrift-kill-"))
        longest = length / 4 + workers * 1.0
        for _ in range(min(12, kills - hits)):
            hits += killed(name, workers, folder / "run", chance.uniform(0.0, longest))
        wrong += run(name, workers, folder / "run") != wanted
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
