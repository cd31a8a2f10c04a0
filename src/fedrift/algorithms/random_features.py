"""Random features (Rahimi, Recht, NeurIPS 2007) between a model's body and its head, for Fed3R-RF.

z(x) = √(2/R) cos(Ωᵀφ(x)/σ + θ) approximates the Gaussian kernel of bandwidth σ. Ω and θ are fixed
buffers drawn with the initial weights, the same for everybody: sending their seed is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.algorithm import Redefine
from fedrift.problem import Problem

SOME = 200  # samples a client measures distances between


class RandomFeatures(nn.Module):
    """√(2/R) cos(scale·Ωᵀx + θ); the scale is 1/σ."""

    omega: Tensor
    theta: Tensor
    scale: Tensor

    def __init__(self, width: int, number: int) -> None:
        nn.Module.__init__(self)
        self.register_buffer("omega", torch.randn(width, number))
        self.register_buffer("theta", 2 * math.pi * torch.rand(number))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        number = self.omega.shape[1]
        return math.sqrt(2 / number) * torch.cos(self.scale * (x @ self.omega) + self.theta)


def with_features(
    make: Callable[[], nn.Module], head: str, width: int, number: int, classes: int
) -> nn.Module:
    """The model with random features and a new linear head in the place of its head."""
    module = make()
    new = nn.Sequential(RandomFeatures(width, number), nn.Linear(number, classes))
    if not head:
        return new
    module.set_submodule(head, new)
    return module


def append(p: Problem, number: int, redefine: Redefine) -> Problem:
    """The task with random features before the head."""
    head = p.head or ""
    make = partial(with_features, p.make, head, p.feature_dim or 0, number, p.classes or 0)
    return redefine(make, f"{head}.1" if head else "1")


def layer_of(p: Problem) -> str:
    """The random-feature layer of an adapted task."""
    return (p.head or "").removesuffix("1") + "0"


def scale(p: Problem, sigma: float) -> dict[str, Tensor]:
    """The bandwidth as the model holds it."""
    return {f"{layer_of(p)}.scale": torch.full((1,), 1 / sigma, dtype=p.w0.dtype)}


def median_distance(phi: Tensor, rng: np.random.Generator) -> float | None:
    """Median distance between some of the rows; None if there is only one."""
    few = phi[torch.from_numpy(rng.permutation(len(phi))[:SOME])].double()
    return float(torch.pdist(few).median()) if len(few) > 1 else None
