"""Two clients in two dimensions: the losses that `fedrift explain` walks on.

A client's loss is a bowl ½(w − b)ᵀA(w − b) with pits −h·exp(−‖w − m‖²/2s²) in it. Two bowls of
different curvature make FedAvg drift; narrow pits beside a wide one tell flat minima from sharp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedrift.conform.problem import Pairs

Point: TypeAlias = tuple[float, float]
Pit: TypeAlias = tuple[float, Point, float]
"""Depth, middle, width."""
NO_PIT: Pit = (0.0, (0.0, 0.0), 1.0)
GRID = 81  # points along each side of the map


class Spot(nn.Module):
    """A model that is nothing but a point; a client's only sample describes its loss."""

    def __init__(self, start: Point) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, shape: Tensor) -> tuple[Tensor, Tensor]:
        return shape, self.weight


def bowl_with_pits(output: tuple[Tensor, Tensor], bottom: Tensor) -> Tensor:
    """The loss that is trained on."""
    shape, w = output
    return heights(shape, w, bottom).mean()


def heights(shape: Tensor, w: Tensor, bottom: Tensor) -> Tensor:
    """The loss at points (…, 2). `shape`: A₁₁, A₁₂, A₂₂, then depth, middle, width of two pits."""
    away = w - bottom
    first, second = away[..., 0], away[..., 1]
    bent = shape[..., 0] * first**2 + 2 * shape[..., 1] * first * second + shape[..., 2] * second**2
    total = 0.5 * bent
    for at in (3, 7):
        depth, middle, width = shape[..., at], shape[..., at + 1 : at + 3], shape[..., at + 3]
        distance = ((w - middle) ** 2).sum(-1)
        total = total - depth * torch.exp(-distance / (2 * width**2))
    return total


def grid(x: Tensor, y: Tensor) -> Tensor:
    """Every point of a map: rows go up, columns to the right."""
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


@dataclass(frozen=True)
class Bowl:
    """One client: where its bowl is lowest, how steep it is along two axes, what pits are in it."""

    bottom: Point
    steep: Point
    turned: float
    """Degrees from the first axis to the first direction of `steep`."""
    pits: tuple[Pit, ...] = ()

    def sample(self) -> tuple[Tensor, Tensor]:
        """The client's data: shape and bottom."""
        c, s = math.cos(math.radians(self.turned)), math.sin(math.radians(self.turned))
        p, q = self.steep
        bent = [p * c * c + q * s * s, (p - q) * c * s, p * s * s + q * c * c]
        first, second = (*self.pits, NO_PIT, NO_PIT)[:2]
        pits = [number for h, m, width in (first, second) for number in (h, *m, width)]
        shape = torch.tensor([[*bent, *pits]], dtype=torch.float64)
        return shape, torch.tensor([self.bottom], dtype=torch.float64)


@dataclass(frozen=True)
class Terrain:
    """Both clients, the start, the part of the plane that is drawn, and how steps are made."""

    name: str
    clients: tuple[Bowl, Bowl]
    start: Point
    low: Point
    high: Point
    lr: float
    steps: int
    about: str
    places: Mapping[str, Point] = field(default_factory=dict[str, Point])
    """What is worth a name on the map."""

    def model(self) -> partial[Spot]:
        return partial(Spot, self.start)

    def data(self) -> Pairs:
        return tuple(bowl.sample() for bowl in self.clients)

    def losses(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Both clients' losses at points (…, 2)."""
        losses = [heights(shape[0], points.double(), bottom[0]) for shape, bottom in self.data()]
        return losses[0], losses[1]

    def axes(self, low: Point, high: Point) -> tuple[Tensor, Tensor]:
        """Coordinates of a map of a part of the plane."""
        lines = [
            torch.linspace(a, b, GRID, dtype=torch.float64) for a, b in zip(low, high, strict=True)
        ]
        return lines[0], lines[1]

    def lowest(self, clients: Sequence[int] = (0, 1)) -> Point:
        """Where the mean loss of the clients is least."""
        from scipy.optimize import minimize  # slow to import

        def total(at: Tensor) -> Tensor:
            losses = self.losses(at)
            return sum((losses[client] for client in clients), torch.zeros(()))

        x, y = self.axes(self.low, self.high)
        best = total(grid(x, y)).argmin()
        start = [float(x[best % len(x)]), float(y[best // len(x)])]
        lowest = minimize(
            lambda at: float(total(torch.tensor(at, dtype=torch.float64))),
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13},
        ).x
        return float(lowest[0]), float(lowest[1])


BOWLS = Terrain(
    name="bowls",
    clients=(Bowl((-1.6, 0.6), (3.0, 0.4), -40.0), Bowl((1.8, 0.0), (1.2, 0.3), 0.0)),
    start=(-0.4, -2.3),
    low=(-3.2, -3.0),
    high=(3.4, 3.0),
    lr=0.2,
    steps=6,
    about="Two bowls of different shape: each client is pulled to its own bottom.",
)

WELLS = Terrain(
    name="wells",
    clients=(
        Bowl((1.3, 1.3), (0.5, 0.3), 20.0, ((0.8, (-0.5, -0.1), 0.36),)),
        Bowl((1.9, -0.8), (0.3, 0.5), 20.0, ((0.8, (-0.5, -0.5), 0.36),)),
    ),
    start=(-2.5, -1.7),
    low=(-3.0, -2.5),
    high=(3.3, 2.5),
    lr=0.12,
    steps=6,
    about="A narrow pit on the way to a wide valley: a sharp and a flat minimum.",
    places={"narrow pit": (-0.38, -0.27), "wide valley": (1.71, 0.0)},
)

TERRAINS: Mapping[str, Terrain] = {"bowls": BOWLS, "wells": WELLS}
