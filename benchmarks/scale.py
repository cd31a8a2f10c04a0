"""Whether many rounds of many clients stay as they begin: SCAFFOLD on features, states on disk.

    python benchmarks/scale.py [CLIENTS [ROUNDS]]        100,000 and 1,000 unless said

Generated features of 256 dimensions and ten classes, five samples a client, a logistic model, 100
clients a round with one step each, two workers, kept in a folder. Prints time per round, memory of
all processes and bytes on disk, tenth by tenth, and writes the part "scale" of docs/performance.md
when nothing is said. Needs 4 GB of memory and 3 GB of disk; `TMPDIR` says where.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.table import Table
from torch import nn

import fedrift as fr
import history
import page
from fedrift.engine.callbacks import Passive, RoundReport
from overhead import WORKERS, console
from peers.watch import held

CLIENTS, ROUNDS = 100_000, 1_000
COHORT, SAMPLES, WIDTH, CLASSES, TENTHS = 100, 5, 256, 10, 10


def on_disk(folder: Path) -> float:
    """Megabytes that are really there: rows that nobody has written yet take no place."""
    return sum(p.stat().st_blocks for p in folder.rglob("*") if p.is_file()) / 2048


class Gauge(Passive):
    """Notes the time of every round, and after every tenth of them memory and disk."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self._folder, self._every, self._since = folder, max(1, rounds // TENTHS), 0.0
        self._seconds: list[float] = []
        self._seen: set[int] = set()
        self.rows: list[tuple[int, float, float, float, int]] = []

    def on_round(self, report: RoundReport) -> None:
        now = time.perf_counter()
        self._seconds += [now - self._since] if self._since else []
        self._seen.update(report.cohort)
        if report.round % self._every == 0:
            workers = multiprocessing.active_children()
            everybody = [os.getpid(), *(p.pid for p in workers if p.pid)]
            memory = sum(map(held, everybody)) / 2**20
            usual = statistics.median(self._seconds or [0.0]) * 1e3
            row = (report.round, usual, memory, on_disk(self._folder), len(self._seen))
            console.print(
                "round {}: {:.1f} ms, {:,.0f} MB, disk {:,.0f} MB, {:,} seen".format(*row)
            )
            self.rows.append(row)
            self._seconds = []
        self._since = time.perf_counter()


def features(clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes in 256 dimensions, drawn."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, clients * SAMPLES)
    x = rng.standard_normal((len(y), WIDTH), dtype=np.float32)
    x += rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)[y] / 4
    return torch.from_numpy(x), torch.from_numpy(y)


def measure(clients: int, rounds: int) -> list[tuple[int, float, float, float, int]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        gauge = Gauge(folder, rounds)
        fr.run(
            "scaffold",
            model=lambda: nn.Linear(WIDTH, CLASSES),
            clients=fr.split(*features(clients), "iid", clients=clients),
            test=features(400),
            rounds=rounds,
            per_round=COHORT,
            steps=1,
            lr=0.05,
            workers=WORKERS,
            eval_every=10,
            out=folder,
            callbacks=[gauge],
        )
        return gauge.rows


if __name__ == "__main__":
    said = [int(text) for text in sys.argv[1:]]
    clients, rounds = (*said, *(CLIENTS, ROUNDS)[len(said) :])
    found = measure(clients, rounds)
    shown = Table("after round", "ms per round", "memory, MB", "disk, MB", "clients seen")
    for n, ms, memory, disk, seen in found:
        shown.add_row(f"{n:,}", f"{ms:.1f}", f"{memory:,.0f}", f"{disk:,.0f}", f"{seen:,}")
    console.print(shown)
    if not said:
        samples = clients * SAMPLES * WIDTH * 4 / 2**20
        intro = (
            f"## Scale\n\nSCAFFOLD on {clients:,} clients, {COHORT} a round, with a control "
            f"variate of {WIDTH * CLASSES + CLASSES:,} numbers each: generated features, a "
            f"logistic model, two workers, kept in a folder. Written by `benchmarks/scale.py` on "
            f"{history.machine()}. Time: the median of a tenth of the rounds. Memory: all "
            f"processes without pages of files, {samples:,.0f} MB of it are the samples. Disk: a "
            "row for every client that was seen, and what is recorded of every round."
        )
        columns = ("after round", "ms per round", "memory, MB", "disk, MB", "clients seen")
        head = f"| {' | '.join(columns)} |\n|{'--:|' * len(columns)}"
        lines = [f"| {n:,} | {ms:.1f} | {m:,.0f} | {d:,.0f} | {s:,} |" for n, ms, m, d, s in found]
        page.write("scale", "\n".join([intro, "", head, *lines]))
