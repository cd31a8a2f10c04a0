"""Small problems with known answers, for tests: heterogeneous quadratics and a toy classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fedrift as fr

A = torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64)
B = torch.tensor([[3.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)
MINIMISER = (-0.2, 4.0 / 3.0)


class Point(nn.Module):
    """A model that is nothing but a point w; its samples are (a, b)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, a: Tensor) -> Tensor:
        return torch.stack([a, self.weight.expand_as(a)])


def quadratic_loss(output: Tensor, b: Tensor) -> Tensor:
    """½ Σ a (w − b)²."""
    a, w = output
    return 0.5 * (a * (w - b) ** 2).sum(-1).mean()


def quadratic_clients(copies: tuple[int, ...] = (1, 1)) -> list[tuple[Tensor, Tensor]]:
    """The two functions of the golden table; copies of a sample only change its weight."""
    pick = [i % 2 for i in range(len(copies))]
    return [(A[i].repeat(n, 1), B[i].repeat(n, 1)) for i, n in zip(pick, copies, strict=True)]


def alternating(rounds: int) -> list[list[int]]:
    """Mode A: one client a round, in turn."""
    return [[t % 2] for t in range(rounds)]


def trajectory(algorithm: Any, rounds: int = 10, **options: Any) -> list[tuple[float, ...]]:
    """w after every round on the golden problem."""
    path: list[tuple[float, ...]] = []

    def note(report: fr.RoundReport) -> None:
        path.append(tuple(report.weights.tolist()))

    settings: dict[str, Any] = {
        "model": Point,
        "loss": quadratic_loss,
        "clients": quadratic_clients(),
        "rounds": rounds,
        "dtype": "float64",
        "workers": 0,
        "on_round": note,
    }
    if isinstance(algorithm, str):
        settings |= {"lr": 0.1, "batch_size": None}
        if not algorithm.startswith("fedsgd") and "epochs" not in options:
            settings["steps"] = 5
    fr.run(algorithm, **(settings | options))
    return path


class Net(nn.Module):
    """A small classifier without dropout or normalisation."""

    head = "out"

    def __init__(self, inputs: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, 16)
        self.out = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


class Wide(nn.Sequential):
    """A base of 48 · width² bytes: twelve matrices, since products copy parts of a large one."""

    def __init__(self, width: int) -> None:
        many = (nn.Linear(width, width) for _ in range(12))
        super().__init__(nn.Linear(8, width), nn.ReLU(), *many, nn.Linear(width, 4))


def own_bytes(pid: int) -> int:
    """Memory that a process has written itself; no file's, and no block's."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous")) * 1024


def blobs(n: int = 600, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Four overlapping classes in eight dimensions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(99)) * 1.5
    return centres[y] + torch.randn(n, 8, generator=g), y


def uneven_clients(clients: int = 7, seed: int = 0, samples: int = 600) -> fr.Split:
    """Skewed labels, unequal sizes, sizes that are no multiple of the batch."""
    x, y = blobs(samples, seed)
    return fr.split(x, y, "dirichlet:0.3", clients=clients, seed=seed)


def small_run(algorithm: Any, **options: Any) -> fr.Result:
    """A short run of a named algorithm with unequal clients, three of seven a round."""
    settings: dict[str, Any] = {
        "model": Net,
        "clients": uneven_clients(),
        "test": blobs(200, seed=5),
        "rounds": 5,
        "per_round": 3,
        "workers": 0,
    }
    if isinstance(algorithm, str):
        settings |= {"lr": 0.1, "batch_size": 16}
    return fr.run(algorithm, **(settings | options))
