"""What an algorithm costs beyond its gradients: a round against FedAvg's, or FedSAM's if it takes
two gradients a step. Ratios of one run, measured in turns; run nothing else meanwhile.

    python benchmarks/algorithms.py [name ...]

The model is `lenet`, a client has 500 samples and makes one epoch in batches of 32.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fedrift as fr
from fedrift import models
from fedrift.engine.callbacks import Passive, RoundReport

CLIENTS, SAMPLES, COHORT, BATCH, ROUNDS = 4, 500, 2, 32, 2
REPEATS = 3
TARGET = 1.05
console = Console()

ONE_GRADIENT = (
    "fedavgm", "fedprox", "fednova", "scaffold", "fedadagrad", "fedadam", "fedyogi", "feddyn",
    "fedcm", "ghbm", "localghbm", "fedhbm", "mimelitemom", "diloco", "swa(fedavg)", "wima(fedavg)",
)  # fmt: skip
TWO_GRADIENTS = ("fedasam", "mofedsam", "fedgamma", "fedspeed", "fedsmoo", "fedgf")


class Clock(Passive):
    """Notes the processor time at the end of every round: others on the machine do not count."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_round(self, report: RoundReport) -> None:
        self.marks.append(time.process_time())


def gradients_and_seconds(name: str) -> tuple[int, float]:
    """Examples differentiated and processor seconds per round; the first round warms up."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * SAMPLES, 3, 32, 32, generator=g)
    y = torch.randint(0, 10, (CLIENTS * SAMPLES,), generator=g)
    clock = Clock()
    result = fr.run(
        name,
        model=models.factory("lenet", (3, 32, 32), 10),
        clients=fr.split(x, y, "iid", clients=CLIENTS),
        test=(x[:32], y[:32]),
        rounds=ROUNDS + 1,
        per_round=COHORT,
        batch_size=BATCH,
        lr=0.01,
        workers=0,
        callbacks=[clock],
    )
    done = result.ledger.total.gradients // (ROUNDS + 1)
    return done, (clock.marks[-1] - clock.marks[0]) / ROUNDS


def measure(names: tuple[str, ...], against: str, table: Table) -> None:
    """Each algorithm in turn with the one it is measured against, cost per gradient."""
    for name in track(names, description=f"against {against}", console=console):
        ratios: list[float] = []
        for turn in range(REPEATS):
            pair = (name, against) if turn % 2 else (against, name)
            cost = {n: gradients_and_seconds(n) for n in pair}
            work = cost[name][0] / cost[against][0]  # Mime-like methods do more, and say so
            ratios.append(cost[name][1] / cost[against][1] / work)
        ratio = statistics.median(ratios)
        verdict = "" if ratio <= TARGET else "above"
        spread = f"{min(ratios):.3f} … {max(ratios):.3f}"
        row = name, against, f"{ratio:.3f}", spread, f"≤ {TARGET}", verdict
        table.add_row(*row)
        console.print(*row)  # at once: an interruption loses nothing


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    table = Table("algorithm", "against", "median ratio", "range", "target", "")
    for names, against in ((ONE_GRADIENT, "fedavg"), (TWO_GRADIENTS, "fedsam")):
        measure(tuple(n for n in names if not chosen or n in chosen), against, table)
    console.print(table)
