"""Small federations with known answers: heterogeneous quadratics and a toy classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedrift.config.models import choose_model

MINIMISER = (-0.2, 4.0 / 3.0)
"""Of the sum of the two golden quadratics."""
DRIFTED = (0.229991, 1.378535)
"""Where FedAvg ends with five steps of 0.1: Σ(1−(1−ηa)⁵)b / Σ(1−(1−ηa)⁵), per coordinate."""

GOLDEN_A = ((1.0, 2.0), (4.0, 1.0))
GOLDEN_B = ((3.0, 1.0), (-1.0, 2.0))

Pairs = tuple[tuple[Tensor, Tensor], ...]


class Point(nn.Module):
    """A model that is nothing but a point; its samples are (a, b)."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
        return a, self.weight


class Place(nn.Module):
    """The same point under a name that is no "weight"."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.at = nn.Parameter(torch.zeros(2))

    def forward(self, a: Tensor) -> tuple[Tensor, Tensor]:
        return a, self.at


def quadratic(output: tuple[Tensor, Tensor], b: Tensor) -> Tensor:
    """Mean of ½ Σ a (w − b)²."""
    a, w = output
    distance = w - b
    return (a * distance).mul(distance).sum().mul(0.5 / len(b))


class Pair(nn.Module):
    """A linear model of two parameters with names of their own, which meet in every sample."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.base = nn.Parameter(torch.tensor([0.5]))
        self.own = nn.Parameter(torch.tensor([-0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.base, self.own])


def half_squares(output: Tensor, y: Tensor) -> Tensor:
    """Mean of ½ (prediction − y)²."""
    return (output - y).square().mean() / 2


class Net(nn.Module):
    """A small classifier without dropout or normalisation."""

    head = "out"

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.hidden = nn.Linear(8, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


class Biased(nn.Module):
    """The same under names without "weight"."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.first = nn.Parameter(torch.randn(8, 12) / 3)
        self.second = nn.Parameter(torch.randn(12, 4) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


@dataclass(frozen=True)
class Trial:
    """A small federation: model and data, who takes part, how clients work, for how long."""

    model: str | Callable[[], nn.Module]
    clients: Pairs
    local: Mapping[str, Any]
    """Rate, steps or epochs, batch size and the like, as `fr.run` takes them."""
    rounds: int
    loss: Callable[[Any, Any], Tensor] | None = None
    test: tuple[Tensor, Tensor] | None = None
    dtype: str = "float64"
    per_round: int | None = None
    sampling: str = "fixed"
    participants: tuple[tuple[int, ...], ...] | None = None
    fraction: float | None = None
    augment: tuple[str, ...] = field(default=())
    seed: int = 0
    stack: str = "auto"
    adapter: str | None = None

    def working(self, **local: Any) -> Trial:
        """The same with other local settings; `steps` takes the place of `epochs`."""
        kept = {k: v for k, v in self.local.items() if not (k == "epochs" and "steps" in local)}
        return replace(self, local={**kept, **local})

    def everyone(self) -> Trial:
        """The same with all clients in every round."""
        return replace(self, per_round=None, participants=None, sampling="fixed", fraction=None)


@cache
def golden(copies: tuple[int, ...] = (1, 1), rounds: int = 10) -> Trial:
    """The two quadratics of the golden table, η = 0.1, K = 5; copies only change a weight."""
    double = torch.float64
    clients = tuple(
        (
            torch.tensor([GOLDEN_A[i % 2]] * n, dtype=double),
            torch.tensor([GOLDEN_B[i % 2]] * n, dtype=double),
        )
        for i, n in enumerate(copies)
    )
    local = {"lr": 0.1, "steps": 5, "batch_size": None}
    return Trial(Point, clients, local, rounds, loss=quadratic)


PAIR_X = (((1.0, 0.5), (-0.5, 2.0), (1.5, -1.0)), ((0.5, 1.0), (2.0, 0.5)))
PAIR_Y = ((2.0, -1.0, 3.0), (-2.0, 1.0))


@cache
def pair(rounds: int = 10) -> Trial:
    """Least squares of two parameters at two clients of three and two samples, η = 0.1, K = 3."""
    double = torch.float64
    clients = tuple(
        (torch.tensor(x, dtype=double), torch.tensor(y, dtype=double))
        for x, y in zip(PAIR_X, PAIR_Y, strict=True)
    )
    local = {"lr": 0.1, "steps": 3, "batch_size": None}
    return Trial(Pair, clients, local, rounds, loss=half_squares)


def alternating(trial: Trial) -> Trial:
    """One of two clients a round, in turn."""
    return replace(trial, participants=tuple((t % 2,) for t in range(trial.rounds)))


@cache
def uneven_quadratic(sizes: tuple[int, ...] = (5, 2, 7, 3, 4)) -> Trial:
    """Clients that differ in size and curvature, minibatches of 2, three of five a round."""
    generator = torch.Generator().manual_seed(3)
    clients = tuple(
        (
            0.3 + 2.0 * torch.rand(n, 2, generator=generator, dtype=torch.float64),
            2.0 * torch.randn(n, 2, generator=generator, dtype=torch.float64),
        )
        for n in sizes
    )
    local = {"lr": 0.1, "epochs": 1, "batch_size": 2}
    return Trial(Point, clients, local, 4, loss=quadratic, per_round=3)


@cache
def classifier(sizes: tuple[int, ...] = (20, 9, 26, 5, 17, 12), test: int = 60) -> Trial:
    """Four classes unevenly spread over clients of unequal size, three of six a round."""
    generator = torch.Generator().manual_seed(11)
    centres = 1.5 * torch.randn(4, 8, generator=generator)

    def drawn(n: int, classes: Tensor) -> tuple[Tensor, Tensor]:
        y = classes[torch.randint(0, len(classes), (n,), generator=generator)]
        return centres[y] + torch.randn(n, 8, generator=generator), y

    clients = tuple(
        drawn(n, torch.tensor([i % 4, (i + 1) % 4, i % 3])) for i, n in enumerate(sizes)
    )
    local = {"lr": 0.1, "epochs": 1, "batch_size": 8}
    tested = drawn(test, torch.arange(4))
    return Trial(Net, clients, local, 4, test=tested, dtype="float32", per_round=3)


TOKENS, WINDOW, SIDE = 6, 8, 8


def with_model(model: str) -> Trial:
    """The classifier's clients with a model by name: gray images of 8 × 8, or windows of tokens in
    which a client's own step leads from one token to the next."""
    trial, generator = classifier(), torch.Generator().manual_seed(17)
    pictures = torch.randn(TOKENS, 1, SIDE, SIDE, generator=generator)

    def drawn(client: int, y: Tensor) -> tuple[Tensor, Tensor]:
        if choose_model(model).takes_tokens:
            first = torch.randint(0, TOKENS, (len(y), 1), generator=generator)
            windows = (first + (1 + client % 2) * torch.arange(WINDOW + 1)) % TOKENS
            return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        return (pictures[y] + torch.randn(len(y), 1, SIDE, SIDE, generator=generator)) / 4, y

    clients = tuple(drawn(i, y) for i, (_, y) in enumerate(trial.clients))
    assert trial.test is not None
    return replace(trial, model=model, clients=clients, test=drawn(0, trial.test[1]))


def equal_sizes(trial: Trial) -> Trial:
    """The same with every client as large as the others."""
    least = min(len(y) for _, y in trial.clients if len(y))
    return replace(trial, clients=tuple((x[:least], y[:least]) for x, y in trial.clients))


def pooled(trial: Trial) -> Trial:
    """All samples with one client."""
    x = torch.cat([x for x, _ in trial.clients])
    y = torch.cat([y for _, y in trial.clients])
    return replace(trial.everyone(), clients=((x, y),))


def nameless(trial: Trial) -> Trial:
    """The same with a model none of whose parameters is called a weight."""
    return replace(trial, model=Place if trial.model is Point else Biased)
