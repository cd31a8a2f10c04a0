"""A comparison of several runs against its gradient steps alone, on the same workers.

    python benchmarks/grid.py [repeats]

The wall clock of a grid of eight runs, workers' start included, over what the same steps and
evaluations take in as many bare loops side by side. Run nothing else meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import time

import fedrift as fr
import history
from fedrift import models
from overhead import BATCH, CLIENTS, COHORT, SAMPLES, WORKERS, console, images, side_by_side

MODEL, ROUNDS, TARGET = "cnn-mcmahan", 4, 1.10
ALGORITHMS = ["fedavg", "fedavgm", "fedprox", "fedadam"]
SEEDS = [0, 1]


def grid() -> float:
    """Seconds of the whole comparison."""
    x, y = images(CLIENTS * SAMPLES)
    parts, test = fr.split(x, y, "iid", clients=CLIENTS), images(2000)
    start = time.perf_counter()
    fr.compare(
        ALGORITHMS,
        model=models.factory(MODEL, (1, 28, 28), 10),
        clients=parts,
        test=test,
        rounds=ROUNDS,
        per_round=COHORT,
        batch_size=BATCH,
        lr=0.05,
        seeds=SEEDS,
        workers=WORKERS,
    )
    return time.perf_counter() - start


if __name__ == "__main__":
    runs, ratios = len(ALGORITHMS) * len(SEEDS), list[float]()
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        bare = side_by_side(MODEL, ROUNDS) / WORKERS * ROUNDS * runs
        ours = grid()
        ratios.append(ours / bare)
        console.print(f"bare {bare:.1f} s, grid of {runs} runs {ours:.1f} s: {ours / bare:.3f}")
    ratio = statistics.median(ratios)
    console.print(f"median {ratio:.3f}, target ≤ {TARGET}")
    history.keep({f"grid of {runs} × {MODEL} ÷ bare": ratio})
