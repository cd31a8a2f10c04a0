"""Losses of which the curvature is known: quadratics, and a small net with its dense Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.core import Batch, Problem, Vec, define
from tests.support.problems import Net, blobs


class Counting:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.steps = 0

    def begin(self, what: str, steps: int, seconds: float) -> None:
        return None

    def step(self) -> None:
        self.steps += 1


SINGLE: Batch = (torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))


def problem_of(
    make: Callable[[], nn.Module], loss: Any, probe: Batch, dtype: torch.dtype
) -> Problem:
    return define(
        make,
        loss,
        probe,
        init_seed=3,
        population=1,
        participation=1.0,
        rounds=1,
        dtype=dtype,
        classification=loss is nn.functional.cross_entropy,
    )


class Vector(nn.Module):
    """Nothing but its weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight


def quadratic(matrix: np.ndarray, slope: np.ndarray | None = None) -> tuple[Problem, Batch]:
    """½ wᵀAw + bᵀw."""
    a = torch.from_numpy(np.asarray(matrix, np.float64))
    b = torch.zeros(len(a), dtype=torch.float64) if slope is None else torch.from_numpy(slope)

    def loss(w: Tensor, _: Tensor) -> Tensor:
        return 0.5 * w @ a @ w + b @ w

    return problem_of(lambda: Vector(len(a)), loss, SINGLE, torch.float64), SINGLE


def symmetric(spectrum: np.ndarray, seed: int = 0) -> np.ndarray:
    """A matrix with these eigenvalues and random eigenvectors."""
    square = np.random.default_rng(seed).standard_normal((len(spectrum), len(spectrum)))
    q, _ = np.linalg.qr(square)
    return q @ np.diag(spectrum) @ q.T


def net(n: int = 150, dtype: torch.dtype = torch.float64) -> tuple[Problem, tuple[Tensor, Tensor]]:
    """A classifier with 212 weights and a sample whose size is no multiple of a chunk."""
    x, y = blobs(n)
    x = x.to(dtype)
    return problem_of(Net, nn.functional.cross_entropy, (x[:2], y[:2]), dtype), (x, y)


def dense_hessian(problem: Problem, w: Vec, data: Batch) -> Tensor:
    """By autograd, from the definition."""
    module = problem.model.module

    def loss(flat: Tensor) -> Tensor:
        output = torch.func.functional_call(module, problem.layout.named(flat), (data[0],))
        return problem.loss(output, data[1])

    return torch.autograd.functional.hessian(loss, w)  # type: ignore[return-value]
