"""How the time of a round grows with clients, population, parameters and workers.

    python benchmarks/growth.py [cohort|population|parameters|workers ...]

Fits time ∝ size^exponent to the upper half of each series and writes the part "growth" of
docs/performance.md. Run nothing else meanwhile; the parameters take some 5 GB of memory.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import nn

import fedrift as fr
import history
import page
from overhead import Clock

SIDE = 64  # numbers in an input
console = Console()


@dataclass(frozen=True)
class Series:
    """What is varied, over which values, and how a round of each is made."""

    title: str
    values: tuple[int, ...]
    settings: Callable[[int], dict[str, Any]]
    rounds: int = 12


def data(clients: int, samples: int) -> Any:
    g = torch.Generator().manual_seed(0)
    n = clients * samples
    x = torch.randn(n, SIDE, generator=g)
    return fr.split(x, torch.randint(0, 10, (n,), generator=g), "iid", clients=clients)


def network(parameters: int) -> Callable[[], nn.Module]:
    """One hidden layer, of the width that gives about so many parameters."""
    width = max(1, parameters // (SIDE + 11))
    return lambda: nn.Sequential(nn.Linear(SIDE, width), nn.ReLU(), nn.Linear(width, 10))


def usual(**changes: Any) -> dict[str, Any]:
    return {"model": network(200_000), "batch_size": 32, "workers": 2, "lr": 0.01} | changes


SERIES = {
    "cohort": Series(
        "clients per round (of 200)",
        (10, 20, 40, 80, 160),
        lambda n: usual(clients=data(200, 96), per_round=n),
    ),
    "population": Series(
        "population (20 per round)",
        (100, 1_000, 10_000, 100_000),
        lambda n: usual(clients=data(n, 8), per_round=20, steps=3, batch_size=8),
    ),
    "parameters": Series(
        "parameters (4 clients per round)",
        (10**3, 10**4, 10**5, 10**6, 10**7, 10**8),
        lambda n: usual(model=network(n), clients=data(4, 8), steps=2, batch_size=8),
        rounds=5,
    ),
    "workers": Series(
        "workers (40 clients per round)",
        (0, 1, 2),
        lambda n: usual(clients=data(40, 320), workers=n),
    ),
}


def seconds(series: Series, value: int) -> float:
    clock = Clock()
    fr.run("fedavg", rounds=series.rounds + 3, callbacks=[clock], **series.settings(value))
    steps = [b - a for a, b in zip(clock.marks[2:], clock.marks[3:], strict=False)]
    return statistics.median(steps)


def exponent(values: list[int], times: list[float]) -> float:
    """Slope of log time against log value, by least squares over the upper half."""
    pairs = list(zip(values, times, strict=True))[len(values) // 2 :]
    x, y = ([math.log(p[i]) for p in pairs] for i in (0, 1))
    return statistics.linear_regression(x, y).slope


def measure(name: str) -> str:
    series = SERIES[name]
    times = [seconds(series, value) for value in series.values]
    shown = ", ".join(f"{v:,}: {t * 1e3:.3g}" for v, t in zip(series.values, times, strict=True))
    grows = "–"
    if name == "workers":
        grows = f"{times[0] / times[-1]:.2f} × faster with {series.values[-1]}"
    else:
        slope = exponent(list(series.values), times)
        grows = f"{slope:.2f}"
        history.keep({f"growth with {name}, exponent": slope})
    row = f"| {series.title} | {shown} | {grows} |"
    console.print(row)
    return row


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(SERIES)
    found = [measure(name) for name in chosen]
    if chosen == list(SERIES):
        head = "| grows with | milliseconds per round | exponent |\n|---|---|--:|"
        intro = (
            "## Growth\n\nFedAvg on one hidden layer (200,000 parameters unless varied), two "
            "workers. Time ∝ size^exponent, fitted to the upper half of each series. Written by "
            f"`benchmarks/growth.py` on {history.machine()}."
        )
        page.write("growth", "\n".join([intro, "", head, *found]))
