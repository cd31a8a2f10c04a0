"""A thousand rounds with two workers: does memory grow, are files or processes left behind?

    python tests/stress/soak.py [--rounds 1000] [--growth 1] [--picture FILE] [ALGORITHM …]

Each algorithm runs to its end while memory (anonymous and shared, of all processes) and open files
are watched. Then a shorter run is interrupted by Ctrl-C, and another's main process is killed; each
time nothing may be left, and going on must give the fingerprint of one that was left alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.stress.family import Family, Held

ALGORITHMS = ("fedavg", "scaffold")
LOOK = 0.1  # seconds between two looks
BROKEN = 60  # rounds of the runs that are interrupted and killed
WARM = 0.2  # of the rounds, until caches and lines are as they stay
SETTINGS = """--data digits --partition dirichlet:0.3 --clients 20 --per-round 3 --steps 2 --lr 0.05
    --model mlp:hidden=32 --eval-every 10 --workers 2 --seed 1 --json"""


@dataclass(frozen=True)
class Curve:
    """What was seen of one run, by round."""

    rounds: list[float]
    held: list[Held]

    def growth(self) -> float:
        """Memory in the last fifth of the rounds against that after the warm-up, in per cent."""
        early, late = self._ends([h.memory for h in self.held])
        return 100.0 * (late / early - 1.0)

    def more_files(self) -> float:
        early, late = self._ends([h.files for h in self.held])
        return late - early

    def _ends(self, values: Sequence[int]) -> tuple[float, float]:
        last = self.rounds[-1]
        parts = [(WARM, 2 * WARM), (1.0 - WARM, 1.0)]
        chosen = [
            [v for r, v in zip(self.rounds, values, strict=True) if low * last <= r <= high * last]
            for low, high in parts
        ]
        return statistics.median(chosen[0]), statistics.median(chosen[1])


def start(algorithm: str, rounds: int, place: Path, name: str) -> Family:
    words = ["run", algorithm, *SETTINGS.split(), "--rounds", str(rounds)]
    return Family([*words, "--out", str(place / name)], place / f"{name}-temporary")


def finished(folder: Path) -> int:
    """Rounds that a run has written down."""
    path = folder / "ledger.jsonl"  # one line a round, evaluated or not
    return path.read_bytes().count(b"\n") if path.exists() else 0


def watched(algorithm: str, rounds: int, place: Path, name: str) -> tuple[Curve, str, list[str]]:
    """A run that is left alone: its curve, its fingerprint and what is left of it."""
    family, curve = start(algorithm, rounds, place, name), Curve([], [])
    while family.main.poll() is None:
        done = finished(place / name)
        if 0 < done < rounds:  # neither its beginning nor its end
            curve.rounds.append(done)
            curve.held.append(family.held())
        time.sleep(LOOK)
    code, out = family.ended()
    assert code == 0, f"{algorithm} ended with exit code {code}"
    return curve, json.loads(out)["fingerprint"], family.left()


def broken(algorithm: str, rounds: int, place: Path, how: str) -> tuple[str, list[str]]:
    """A run ended on its way, and gone on with: its fingerprint and what was left of it."""
    family = start(algorithm, rounds, place, how)
    while finished(place / how) < rounds // 4 and family.main.poll() is None:
        time.sleep(LOOK)
    (family.interrupt if how == "interrupted" else family.kill)()
    code, _ = family.ended()
    left = family.left()
    wanted = 130 if how == "interrupted" else -9
    assert code == wanted, f"{algorithm}, {how}: exit code {code}, not {wanted}"
    again = Family(["resume", str(place / how), "--json"], place / f"{how}-again")
    code, out = again.ended(600.0)
    assert code == 0, f"{algorithm}, {how}: going on ended with exit code {code}"
    return json.loads(out)["fingerprint"], left + again.left()


def soak(algorithm: str, rounds: int, most: float) -> tuple[Curve, list[str]]:
    """The curve of a run, and whatever is wrong."""
    with tempfile.TemporaryDirectory(prefix="fedrift-soak-") as folder:
        place = Path(folder)
        curve, fingerprint, left = watched(algorithm, rounds, place, "whole")
        few = min(rounds, BROKEN)
        if few < rounds:
            _, fingerprint, more = watched(algorithm, few, place, "short")
            left += more
        wrong = [f"success: {what} is left" for what in left]
        for how in ("interrupted", "killed"):
            again, left = broken(algorithm, few, place, how)
            wrong += [f"{how}: {what} is left" for what in left]
            wrong += [] if again == fingerprint else [f"{how}: another fingerprint"]
    growth, files = curve.growth(), curve.more_files()
    print(
        f"{algorithm:<10} {rounds} rounds, {len(curve.held)} looks: memory "
        f"{max(h.memory for h in curve.held) / 1e6:.0f} MB at most, {growth:+.2f} % after the "
        f"warm-up; {max(h.files for h in curve.held)} open files, {files:+.0f}; "
        f"{max(h.processes for h in curve.held)} processes; ended, interrupted, killed: "
        f"{'nothing left, same fingerprint' if not wrong else 'see below'}",
        flush=True,
    )
    wrong += [f"memory grew by {growth:.2f} %"] if growth > most else []
    wrong += [f"{files:.0f} more files are open"] if files > 0 else []
    return curve, [f"{algorithm}: {one}" for one in wrong]


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Memory and open files by round."""
    from fedrift.figures.style import colour, legend, panels, sheet

    figure = sheet()
    axes = panels(figure, 2, width=5.0)
    for place, (name, curve) in enumerate(curves.items()):
        memory = [h.memory / 1e6 for h in curve.held]
        axes[0].plot(curve.rounds, memory, color=colour(place), lw=1, label=name)
        files = [h.files for h in curve.held]
        axes[1].plot(curve.rounds, files, color=colour(place), lw=1, label=name)
    for axis, label in zip(axes, ("memory of all processes, MB", "open files"), strict=True):
        axis.set_ylim(0, 1.25 * axis.get_ylim()[1])
        axis.set_xlabel("round")
        axis.set_ylabel(label)
    legend(figure, axes)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS), metavar="ALGORITHM")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--growth", type=float, default=1.0, help="per cent that are allowed")
    parser.add_argument("--picture", type=Path)
    said = parser.parse_args()
    # A shell starts what is in the background deaf to Ctrl-C, and that would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    curves: dict[str, Curve] = {}
    wrong: list[str] = []
    for algorithm in said.algorithms:
        curves[algorithm], found = soak(algorithm, said.rounds, said.growth)
        wrong += found
    if said.picture is not None:
        draw(curves, said.picture)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
