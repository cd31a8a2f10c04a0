"""What the microscope costs beyond the work it cannot do without: ratios of processor time.

    python benchmarks/microscope.py [eigenvalues|rounds ...] [--images N]

The top eigenvalues stand against as many Hessian-vector products in plain PyTorch; rounds with
norms, cosines and classes against rounds without. Both sides take turns in one process with one
thread. Run nothing else meanwhile; it takes some three minutes. The share of what the search adds
falls with the number of images, hence few of them; single products are also compared on many.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fedrift as fr
from fedrift import models
from fedrift.analysis.hessian import top_eigenvalues
from fedrift.analysis.objective import Objective
from fedrift.engine.callbacks import Passive, RoundReport

MODEL, SHAPE, CLASSES = "lenet", (3, 32, 32), 10
BATCH, TOP, TURNS = 64, 5, 3
IMAGES = 128  # a product over 2,000 takes some 5 s, and about 40 are needed in every turn
MANY = 2000  # images of the single products
CLIENTS, SAMPLES, TEST, ROUNDS = 10, 64, 250, 6  # one step a client: what is added weighs most
console = Console()


def images(n: int) -> tuple[Tensor, Tensor]:
    """CIFAR-shaped noise: speed does not depend on what it shows."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, *SHAPE, generator=g), torch.randint(0, CLASSES, (n,), generator=g)


class Counter:
    """Counts the products that were needed."""

    def __init__(self) -> None:
        self.products = 0

    def begin(self, what: str, steps: int, seconds: float) -> None:
        return None

    def step(self) -> None:
        self.products += 1


def taken(work: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def bare_products(module: nn.Module, x: Tensor, y: Tensor, number: int) -> None:
    """Plain PyTorch: two differentiations of every batch's loss."""
    parameters = list(module.parameters())
    v = [torch.randn_like(p) for p in parameters]
    for _ in range(number):
        total = [torch.zeros_like(p) for p in parameters]
        for part, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
            loss = nn.functional.cross_entropy(module(part), labels)
            first = torch.autograd.grad(loss, parameters, create_graph=True)
            second = torch.autograd.grad(first, parameters, v)
            for t, h in zip(total, second, strict=True):
                t.add_(h, alpha=len(labels) / len(y))
        v = total
        length = torch.sqrt(sum((t.square().sum() for t in v), torch.zeros(())))
        v = [t / length for t in v]


def measure_eigenvalues(number: int) -> Table:
    x, y = images(number)
    make = models.factory(MODEL, SHAPE, CLASSES)
    result = fr.run("fedavg", model=make, clients=[(x, y)], rounds=1, lr=0.01, workers=0)
    module = make().eval()
    objective = Objective(result.problem, (x, y))
    bare_products(module, x, y, 2)  # warms up
    objective.product(result.weights, result.weights)
    ours, bare, products = [], [], 0
    for _ in range(TURNS):
        counter = Counter()
        ours.append(taken(lambda c=counter: top_eigenvalues(objective, result.weights, TOP, c)))
        products = counter.products
        bare.append(taken(lambda n=products: bare_products(module, x, y, n)))
    table = Table(
        "what", "images", "products", "bare s", "ours s", "ratio", "each turn", "target",
        title=f"Top {TOP} eigenvalues of {MODEL}, batch {BATCH}",
    )  # fmt: skip
    table.add_row("eigenvalues", f"{number:,}", f"{products}", *_compared(ours, bare), "≤ 1.2")
    x, y = images(MANY)
    objective, ours, bare = Objective(result.problem, (x, y)), [], []
    for _ in range(TURNS):
        ours.append(taken(lambda: objective.product(result.weights, result.weights)))
        bare.append(taken(lambda: bare_products(module, x, y, 1)))
    table.add_row("one product", f"{MANY:,}", "1", *_compared(ours, bare), "")
    return table


def _compared(ours: list[float], bare: list[float]) -> tuple[str, str, str, str]:
    """The best of both sides, their ratio, and that of every turn."""
    each = " ".join(f"{a / b:.3f}" for a, b in zip(ours, bare, strict=True))
    best = f"{min(bare):.2f}", f"{min(ours):.2f}"
    return *best, f"{min(ours) / min(bare):.3f}", each


class Clock(Passive):
    """Notes the processor time when every round ends."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_round(self, report: RoundReport) -> None:
        self.marks.append(time.process_time())

    def each(self) -> list[float]:
        """Every round but the first, which warms up."""
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]


def round_seconds(algorithm: str, analyse: str | None) -> float:
    """The median round of a run that is kept in a folder."""
    clock = Clock()
    x, y = images(CLIENTS * SAMPLES)
    with tempfile.TemporaryDirectory() as place:
        fr.run(
            algorithm,
            model=models.factory(MODEL, SHAPE, CLASSES),
            clients=fr.split(x, y, "iid", clients=CLIENTS),
            test=images(TEST),
            rounds=ROUNDS,
            batch_size=BATCH,
            lr=0.01,
            workers=0,
            callbacks=[clock],
            out=Path(place) / "run",
            analyse=analyse,
        )
    return statistics.median(clock.each())


def measure_rounds(number: int) -> Table:
    table = Table(
        "algorithm", "without s/round", "with s/round", "ratio", "each turn", "target",
        title=f"Norms, cosines and classes in every round, {MODEL}, {CLIENTS}×{SAMPLES} images",
    )  # fmt: skip
    for algorithm in ("fedavg", "scaffold"):
        without, with_ = [], []
        for _ in range(TURNS):
            without.append(round_seconds(algorithm, None))
            with_.append(round_seconds(algorithm, "every=1,what=drift,classes"))
        each = " ".join(f"{a / b:.3f}" for a, b in zip(with_, without, strict=True))
        a, b = min(with_), min(without)
        table.add_row(algorithm, f"{b:.3f}", f"{a:.3f}", f"{a / b:.3f}", each, "≤ 1.05")
    return table


MEASURES = {"eigenvalues": measure_eigenvalues, "rounds": measure_rounds}

if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", nargs="*", help=" or ".join(MEASURES))
    reader.add_argument("--images", type=int, default=IMAGES, help="of the Hessian's data")
    given = reader.parse_args()
    torch.set_num_threads(1)
    for chosen in given.what or MEASURES:
        console.print(MEASURES[chosen](given.images))
