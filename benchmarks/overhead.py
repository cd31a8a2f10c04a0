"""What fedrift adds to the gradient steps themselves: ratios measured side by side in one run.

    python benchmarks/overhead.py [rounds|diloco|population ...]

The bare limit is the same minibatch steps and the same evaluation in a plain PyTorch loop,
channels-last, one thread, divided by the number of workers. Run nothing else meanwhile.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fedrift as fr
from fedrift import models
from fedrift.core.evaluation import EVALUATION_CHUNK
from fedrift.engine.callbacks import Callback, Passive, Plan, RoundReport
from peers import bare

WORKERS = 2
CLIENTS, SAMPLES, COHORT, BATCH, TEST = 100, 500, 10, 32, 2000
console = Console()


def images(n: int) -> tuple[Tensor, Tensor]:
    """MNIST-shaped noise: speed does not depend on what it shows."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, 28, 28, generator=g)
    return x, torch.randint(0, 10, (n,), generator=g)


class Clock(Passive):
    """Notes when every round ends."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_start(self, plan: Plan) -> None:
        self.marks.append(time.perf_counter())

    def on_round(self, report: RoundReport) -> None:
        self.marks.append(time.perf_counter())


def bare_rounds(name: str, rounds: int) -> float:
    """Seconds per round of nothing but gradient steps and evaluation, one thread."""
    module = models.factory(name, (1, 28, 28), 10)()
    times = bare.steps(
        module,
        images(COHORT * SAMPLES),
        images(TEST),
        visits=COHORT,
        samples=SAMPLES,
        batch=BATCH,
        lr=0.05,
        rounds=rounds + 1,
        evaluation_batch=EVALUATION_CHUNK,
    )
    return statistics.mean(list(times)[1:])


def side_by_side(name: str, rounds: int) -> float:
    """Seconds per round of as many bare loops at once as there are workers."""
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        return statistics.mean(pool.map(partial(bare_rounds, name), [rounds] * WORKERS))


def our_rounds(name: str, rounds: int, **changes: Any) -> float:
    """Seconds per whole round: sampling, transport, training, folding, evaluation."""
    clock = Clock()
    x, y = images(CLIENTS * SAMPLES)
    settings: dict[str, Any] = {
        "model": models.factory(name, (1, 28, 28), 10),
        "clients": fr.split(x, y, "iid", clients=CLIENTS),
        "test": images(TEST),
        "rounds": rounds + 4,
        "per_round": COHORT,
        "batch_size": BATCH,
        "lr": 0.05,
        "workers": WORKERS,
        "callbacks": [clock],
    }
    fr.run("fedavg", **(settings | changes))
    # a round is told of when its evaluation is done, two rounds later with workers
    return (clock.marks[-3] - clock.marks[1]) / (len(clock.marks) - 4)


def measure_rounds() -> Table:
    table = Table(
        "model", "bare s/round", "side by side", "fedrift", "÷ bare", "÷ side by side", "target",
        title=f"{CLIENTS}×{SAMPLES} samples, {COHORT} a round, batch {BATCH}, {WORKERS} workers",
    )  # fmt: skip
    for name, rounds, repeats, target in (("mlp", 40, 5, 1.30), ("cnn-mcmahan", 4, 3, 1.10)):
        bare, beside, ours = [], [], []
        for _ in range(repeats):
            bare.append(bare_rounds(name, rounds) / WORKERS)
            ours.append(our_rounds(name, rounds))
            beside.append(side_by_side(name, rounds) / WORKERS)
        b, s, o = min(bare), min(beside), min(ours)
        table.add_row(
            name, f"{b:.4f}", f"{s:.4f}", f"{o:.4f}", f"{o / b:.3f}", f"{o / s:.3f}", f"≤ {target}"
        )
    return table


GPT = "gpt:layers=2,width=64,heads=4,context=128"
SYMBOLS, CONTEXT, WINDOWS, STEPS, WINDOW_BATCH = 64, 128, 160, 20, 16


def windows(n: int) -> tuple[Tensor, Tensor]:
    """Texts of no meaning, and each one's next symbols."""
    drawn = torch.randint(0, SYMBOLS, (n, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def bare_text(turns: Any) -> None:
    """A worker's loop in plain PyTorch: whenever it is its turn, as many AdamW steps as a visit
    has. Sends the processor's seconds of each."""
    torch.set_num_threads(1)
    module = models.factory(GPT, (CONTEXT,), SYMBOLS)()
    adamw = torch.optim.AdamW(  # as DiLoCo's inner one, in torch's fastest form
        module.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    x, y = windows(WINDOWS)
    module.train()
    while turns.recv():
        start = time.process_time()
        order = torch.cat([torch.randperm(WINDOWS) for _ in range(2)])[: STEPS * WINDOW_BATCH]
        for some in order.split(WINDOW_BATCH):
            adamw.zero_grad()
            nn.functional.cross_entropy(module(x[some]), y[some]).backward()
            adamw.step()
        turns.send(time.process_time() - start)


@dataclass
class Spent:
    """Seconds of each round, by the clock and of the processors."""

    clock: list[float] = field(default_factory=list[float])
    processor: list[float] = field(default_factory=list[float])


class Interleaved(Callback):
    """After every round of ours, as many bare loops as there are workers make theirs, so that both
    meet the same moods of the machine."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(WORKERS)]
        self._turns = [here for here, _ in pipes]
        self._loops = [
            spawn.Process(target=bare_text, args=(there,), daemon=True) for _, there in pipes
        ]
        for loop in self._loops:
            loop.start()
        self.bare, self.ours = Spent(), Spent()
        self._since = 0.0, 0.0

    def on_start(self, plan: Plan) -> None:
        self._since = self._now()

    def on_round(self, report: RoundReport) -> None:
        clock, processor = self._now()
        self.ours.clock.append(clock - self._since[0])
        self.ours.processor.append(processor - self._since[1])
        start = time.perf_counter()
        for turn in self._turns:
            turn.send(True)
        self.bare.processor.append(sum(turn.recv() for turn in self._turns))
        self.bare.clock.append(time.perf_counter() - start)
        self._since = self._now()

    def on_end(self, result: fr.Result) -> None:
        for turn in self._turns:
            turn.send(False)

    def _now(self) -> tuple[float, float]:
        workers = [p for p in multiprocessing.active_children() if p not in self._loops]
        spent = time.process_time() + sum(processor_seconds(p.pid) for p in workers)
        return time.perf_counter(), spent


def processor_seconds(process: int | None) -> float:
    """Of another process of this machine (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_diloco(rounds: int = 30) -> Table:
    """Rounds of DiLoCo against the same steps alone, in turns; the first round warms up."""
    turns = Interleaved()
    x, y = windows(WORKERS * WINDOWS)
    fr.run(
        "diloco",
        model=GPT,
        clients=fr.split(x, y, "iid", clients=WORKERS),
        rounds=rounds + 1,
        steps=STEPS,
        batch_size=WINDOW_BATCH,
        workers=WORKERS,
        callbacks=[turns],
    )
    table = Table(
        "seconds of a round", "bare, side by side", "fedrift", "ratio", "target",
        title=f"DiLoCo, {GPT}\n{STEPS} steps of {WINDOW_BATCH} windows, {WORKERS} workers",
    )  # fmt: skip
    for name, alone, ours, target in (
        ("by the clock", turns.bare.clock, turns.ours.clock, "≤ 1.05"),
        ("of the processors", turns.bare.processor, turns.ours.processor, ""),
    ):
        b, o = statistics.median(alone[1:]), statistics.median(ours[1:])
        table.add_row(name, f"{b:.3f}", f"{o:.3f}", f"{o / b:.3f}", target)
    return table


def measure_population() -> Table:
    """Rounds of 100 clients out of 100 and of 10,000: nothing may grow with the population.

    The same 100,000 samples in all, and the same work a visit: one step on ten of them."""
    table = Table(
        "clients",
        "s/round",
        "ratio",
        "peak MB",
        "ratio",
        "target",
        title="100 clients a round, mlp",
    )
    seconds: dict[int, list[float]] = {100: [], 10_000: []}
    memory: dict[int, float] = {}
    for _ in range(3):
        for population in seconds:
            with multiprocessing.get_context("spawn").Pool(1) as fresh:
                taken, memory[population] = fresh.apply(population_round, (population,))
            seconds[population].append(taken)
    few = min(seconds[100])
    for population, measured in seconds.items():
        best, held = min(measured), memory[population]
        table.add_row(
            f"{population:,}", f"{best:.4f}", f"{best / few:.3f}",
            f"{held:,.0f}", f"{held / memory[100]:.3f}", "≤ 1.10",
        )  # fmt: skip
    return table


def population_round(population: int) -> tuple[float, float]:
    """Seconds and peak megabytes of this process for rounds of 100 clients out of so many."""
    parts = fr.split(*images(100_000), "iid", clients=population)
    seconds = our_rounds("mlp", 20, clients=parts, per_round=100, steps=1, batch_size=10, workers=0)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


MEASURES = {
    "rounds": measure_rounds,
    "diloco": measure_diloco,
    "population": measure_population,
}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or MEASURES:
        console.print(MEASURES[chosen]())
