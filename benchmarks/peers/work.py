"""The five pieces of work, defined once: model, data, local steps, cohort, rounds, evaluation.

Needs torch and numpy only, because every peer imports it from its own environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10
TEST = 2_000
EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Work:
    """One row of the table. Every client trains one epoch with plain SGD; the mean is the model."""

    row: str
    title: str
    model: str
    shape: tuple[int, int, int]
    clients: int
    samples: int
    cohort: int
    batch: int
    lr: float
    separation: float  # of the classes' pictures, in units of the noise: losses must fall visibly
    rounds: int
    warmup: int  # rounds that do not count as steady state
    repeats: int
    algorithm: str = "fedavg"

    @property
    def visits(self) -> int:
        return self.cohort * self.rounds

    def shortened(self, rounds: int | None) -> Work:
        """The same with fewer rounds, to try things out."""
        if rounds is None:
            return self
        return replace(self, rounds=rounds, warmup=min(self.warmup, rounds - 1))


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
ROWS = {
    work.row: work
    for work in (
        Work("a", "MLP", "mlp", MNIST, 100, 500, 10, 32, 0.05, 0.2, 20, 4, repeats=3),
        Work("b", "CNN", "cnn-mcmahan", MNIST, 100, 500, 10, 32, 0.05, 0.2, 5, 2, repeats=2),
        Work("c", "LeNet", "lenet", CIFAR, 1000, 50, 50, 10, 0.1, 0.5, 5, 2, repeats=2),
        Work("d", "logistic", "logistic", MNIST, 1000, 60, 100, 10, 0.02, 0.2, 10, 2, repeats=2),
        Work(
            "e", "SCAFFOLD, CNN", "cnn-mcmahan", MNIST, 100, 500, 10, 32, 0.05, 0.2, 5, 2,
            repeats=2, algorithm="scaffold",
        ),
    )
}  # fmt: skip


class Data(NamedTuple):
    """Client c owns the samples c·n to (c+1)·n of x and y."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def of(self, client: int, samples: int) -> tuple[Tensor, Tensor]:
        mine = slice(client * samples, (client + 1) * samples)
        return self.x[mine], self.y[mine]


def path_of(work: Work) -> Path:
    folder = Path(os.environ["PEERS_DATA"])
    size = f"{'x'.join(map(str, work.shape))}-{work.clients}x{work.samples}"
    return folder / f"{size}-{work.separation}.npz"


def generate(work: Work) -> None:
    """Write the data of a row, once: blurred random pictures of ten classes, in noise, as bytes."""
    path, (channels, high, wide) = path_of(work), work.shape
    if path.exists():
        return
    rng = np.random.default_rng(0)
    coarse = rng.standard_normal((CLASSES, channels, high // 4, wide // 4), np.float32)
    pictures = work.separation * np.kron(coarse, np.ones((1, 1, 4, 4), np.float32))
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("", work.clients * work.samples), ("test_", TEST)):
        y = rng.integers(0, CLASSES, count)
        x = rng.standard_normal((count, *work.shape), np.float32) + pictures[y]
        arrays |= {f"{part}x": np.clip(x * 32 + 128, 0, 255).astype(np.uint8), f"{part}y": y}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp.npz")
    np.savez(unfinished, allow_pickle=False, **arrays)
    unfinished.replace(path)


@cache
def data(work: Work) -> Data:
    """The arrays of a row, read once by each process."""
    with np.load(path_of(work)) as file:
        x, test_x = (
            torch.from_numpy(file[name]).float().sub_(128).div_(32) for name in ("x", "test_x")
        )
        return Data(x, torch.from_numpy(file["y"]), test_x, torch.from_numpy(file["test_y"]))


def _logistic(shape: tuple[int, int, int]) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), CLASSES))


def _mlp(shape: tuple[int, int, int]) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(int(np.prod(shape)), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, CLASSES),
    )


def _convolutions(
    shape: tuple[int, int, int], channels: tuple[int, int], hidden: tuple[int, ...], padding: int
) -> nn.Sequential:
    """Two 5×5 convolutions, pooled before the activation, then linear layers."""
    layers: list[nn.Module] = []
    before, side = shape[0], shape[1]
    for after in channels:
        layers += [
            nn.Conv2d(before, after, 5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
        ]
        before, side = after, (side + 2 * padding - 4) // 2
    layers.append(nn.Flatten())
    sizes = (before * side * side, *hidden)
    for fan_in, fan_out in zip(sizes, hidden, strict=False):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))


MODELS = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn-mcmahan": partial(_convolutions, channels=(32, 64), hidden=(512,), padding=2),
    "lenet": partial(_convolutions, channels=(64, 64), hidden=(384, 192), padding=0),
}


def model(work: Work) -> nn.Sequential:
    """The row's model with the same first weights for everybody."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[work.model](work.shape)


@torch.no_grad()
def evaluate(module: nn.Module, x: Tensor, y: Tensor, batch: int = EVALUATION_BATCH) -> float:
    """Mean test loss, for those who leave the evaluation to the user."""
    module.eval()
    total = 0.0
    for some_x, some_y in zip(x.split(batch), y.split(batch), strict=True):
        total += float(nn.functional.cross_entropy(module(some_x), some_y, reduction="sum"))
    return total / len(y)
