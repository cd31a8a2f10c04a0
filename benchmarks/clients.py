"""What it costs that clients report: processor time of rounds with it against rounds without.

    python benchmarks/clients.py [training evaluation memory ...] [--rounds N]

Loss and accuracy of local training are on in every second round of one run and off in the others
(they are taken out by this file; no option does that), so both sides share data, cohorts, memory
and the machine's moods. One process, one thread. Two minutes.

Evaluation at clients happens in every tenth round of one run. Memory is the peak of a process that
visits every client of a FedPer run once, and the rows it writes. A minute each.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedrift as fr
from fedrift.backends.stacking.loop import Cells, RowStep, RowTrace
from fedrift.core.site import Site
from fedrift.engine.callbacks import Callback, RoundReport

CLASSES = 10
SAMPLES, BATCH = 500, 32
ROWS = (  # model, side of its images, clients of a round, what is promised
    ("cnn-mcmahan", 28, 1, 1.01),
    ("mlp", 28, 10, 1.03),
    ("mlp", 8, 10, None),  # so small that four clients stand in a stack
    ("logistic", 28, 10, None),
)
ROUNDS = 60
console = Console()


def images(n: int, side: int) -> tuple[Tensor, Tensor]:
    """Noise: speed does not depend on what it shows."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, side, side, generator=g), torch.randint(0, CLASSES, (n,), generator=g)


class Alternating(Callback):
    """Takes the reports away in every second round, and notes what each round took."""

    def __init__(self) -> None:
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._is_on, self._since = True, 0.0
        self._kept = Site._watched, RowTrace.add, RowTrace.trainings, RowStep.gradients

    def on_round(self, report: RoundReport) -> None:
        now = time.process_time()
        if report.round > 2:  # the first two warm up
            self.seconds[self._is_on].append(now - self._since)
        self._is_on = not self._is_on
        self.switch(self._is_on)
        self._since = time.process_time()

    def switch(self, on: bool) -> None:
        watched, add, trainings, gradients = self._kept
        if not on:
            watched = lambda site, step, is_reported=True: nullcontext()  # noqa: E731
            add = lambda trace, seen, y, sizes: Cells(0, 0, 0)  # noqa: E731
            trainings = lambda trace, cells, sizes: [None] * sizes.shape[1]  # noqa: E731
            gradients = _unseen(gradients)
        Site._watched, RowTrace.add = watched, add  # type: ignore[method-assign]
        RowTrace.trainings = trainings  # type: ignore[method-assign]
        RowStep.gradients = gradients  # type: ignore[method-assign]


def _unseen(gradients: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """What is seen is let go at once, as it was before anybody looked at it."""

    def without(step: RowStep, at: Tensor | None = None) -> list[Tensor]:
        made = gradients(step, at)
        step.seen.clear()
        return made

    return without


def training(rounds: int) -> Table:
    table = Table(
        "model", "inputs", "clients", "without ms", "with ms", "ratio", "target",
        title=f"Loss and accuracy of training, {rounds} rounds of each kind",
    )  # fmt: skip
    for model, side, clients, target in ROWS:
        watch = Alternating()
        try:
            fr.run(
                "fedavg",
                model=model,
                clients=fr.split(*images(clients * SAMPLES, side), "iid", clients=clients),
                rounds=2 * rounds + 2,
                batch_size=BATCH,
                lr=0.01,
                workers=0,
                callbacks=[watch],
            )
        finally:
            watch.switch(True)
        off, on = (statistics.median(watch.seconds[which]) for which in (False, True))
        said = "" if target is None else f"≤ {target}"
        took = f"{off * 1e3:.2f}", f"{on * 1e3:.2f}", f"{on / off:.4f}"
        table.add_row(model, f"{side**2}", str(clients), *took, said)
    return table


POPULATION, EACH, COHORT, SAMPLE, EVERY = 10_000, 8, 100, 200, 10
MOST_SHARE, MOST_BYTES = 0.10, 3e9


def population() -> fr.Split:
    """Many clients of eight images each, two of them to test on."""
    return fr.split(*images(POPULATION * EACH, 28), "iid", clients=POPULATION, test=0.25)


class Clock(Callback):
    """Processor time of every round, its evaluation included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since = time.process_time()

    def on_round(self, report: RoundReport) -> None:
        now = time.process_time()
        self.seconds.append(now - self._since)
        self._since = now


def evaluation(rounds: int) -> Table:
    clock, rounds = Clock(), max(2 * EVERY, rounds)
    fr.run(
        "fedavg",
        model="cnn",
        clients=population(),
        test=images(10, 28),
        rounds=rounds,
        per_round=COHORT,
        workers=0,
        eval_every=rounds,
        eval_clients=f"every={EVERY},sample={SAMPLE}",
        callbacks=[clock],
    )
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for number, seconds in enumerate(clock.seconds, start=1):
        if number > 2:
            kinds[number % EVERY == 0].append(seconds)
    plain, more = (statistics.median(kinds[which]) for which in (False, True))
    table = Table(
        "clients", "asked", "round ms", "evaluation ms", "share of rounds", "target",
        title=f"Evaluation at clients every {EVERY} rounds, {COHORT} clients a round, cnn",
    )  # fmt: skip
    share = (more - plain) / EVERY / plain
    took = f"{plain * 1e3:.1f}", f"{(more - plain) * 1e3:.1f}", f"{100 * share:.1f} %"
    table.add_row(f"{POPULATION:,}", str(SAMPLE), *took, f"< {100 * MOST_SHARE:.0f} %")
    return table


def visit_all() -> None:
    """FedPer until every client was visited once; prints the peak of memory and the rows."""
    with tempfile.TemporaryDirectory() as folder:
        fr.run(
            "fedper",
            model="cnn",
            clients=population(),
            rounds=POPULATION // 500,
            per_round=500,
            sampling="cyclic",
            workers=0,
            eval_clients=f"every={POPULATION},sample={SAMPLE}",
            out=Path(folder) / "run",
        )
        rows = sum(file.stat().st_size for file in (Path(folder) / "run" / "clients").iterdir())
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, rows)


def memory(rounds: int) -> Table:
    done = subprocess.run(
        [sys.executable, __file__, "--visit-all"], capture_output=True, check=True, text=True
    )
    peak, rows = map(int, done.stdout.split()[-2:])
    table = Table(
        "clients", "rows on disk MB", "resident GB", "target", title="Personal heads of cnn, FedPer"
    )
    took = f"{rows / 1e6:.0f}", f"{peak / 1e9:.2f}", f"≤ {MOST_BYTES / 1e9:g} GB"
    table.add_row(f"{POPULATION:,}", *took)
    return table


MEASURES = {"training": training, "evaluation": evaluation, "memory": memory}

if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", nargs="*", help=" or ".join(MEASURES))
    reader.add_argument("--rounds", type=int, default=ROUNDS, help="of each kind")
    reader.add_argument("--visit-all", action="store_true", help=argparse.SUPPRESS)
    given = reader.parse_args()
    torch.set_num_threads(1)
    if given.visit_all:
        visit_all()
        sys.exit()
    for chosen in given.what or MEASURES:
        console.print(MEASURES[chosen](given.rounds))
