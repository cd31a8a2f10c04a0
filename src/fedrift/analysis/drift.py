"""How far and in which directions clients move away from the global model and from each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fedrift.flat import Vec, cosine, dot, norm

BLOCK = 1 << 16  # weights


@dataclass(frozen=True)
class Geometry:
    """Updates Δ_i of a cohort: distances, angles to their average D and to each other."""

    distances: tuple[float, ...]
    """‖w − w_i‖."""
    to_average: tuple[float, ...]
    """cos(Δ_i, D)."""
    pairs: tuple[tuple[float, ...], ...]
    """cos(Δ_i, Δ_j)."""
    length: float
    """‖D‖."""

    def summary(self) -> dict[str, float]:
        """The means, as `Running` gives them."""
        m, held = len(self.distances), np.array(self.distances)
        pairs = np.array(self.pairs)
        between = (pairs.sum() - np.trace(pairs)) / (m * (m - 1)) if m > 1 else np.nan
        return {
            "distance": float(held.mean()),
            "squared_distance": float((held**2).mean()),
            "cosine_to_average": float(np.mean(self.to_average)),
            "cosine_between": float(between),
            "average_length": self.length,
            "count": m,
        }


def geometry(updates: Sequence[Vec], weights: Sequence[float]) -> Geometry:
    """`weights` are those of the average; they need not add up to one."""
    average = _average(updates, weights)
    return Geometry(
        distances=tuple(float(norm(u)) for u in updates),
        to_average=tuple(float(cosine(u, average)) for u in updates),
        pairs=tuple(map(tuple, _cosines(updates))),
        length=float(norm(average)),
    )


def _cosines(updates: Sequence[Vec]) -> list[list[float]]:
    """Of every two; 0 with a vector of zeros. Block by block: all in float64 would not fit."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for start in range(0, updates[0].numel(), BLOCK):
        part = torch.stack([u[start : start + BLOCK] for u in updates]).double().cpu()
        total += part @ part.T
    lengths = total.diagonal().sqrt()
    return (total / torch.outer(lengths, lengths).clamp_min(1e-24)).tolist()


def _average(vectors: Sequence[Vec], weights: Sequence[float]) -> Vec:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total.add_(vector, alpha=weight / sum(weights))
    return total.to(vectors[0].dtype)


@dataclass
class Running:
    """The same means from updates that are seen one after another and not kept.

    With u_i = Δ_i/‖Δ_i‖ the mean of cos(Δ_i, D) is ⟨Σu_i, D⟩/(M‖D‖), and the sum of all
    cos(Δ_i, Δ_j) is ‖Σu_i‖²: two vectors are enough for any number of clients.
    """

    distances: list[float] = field(default_factory=list)
    _units: Vec | None = None
    _total: Vec | None = None
    _weight: float = 0.0

    def add(self, update: Vec, weight: float) -> None:
        if self._units is None or self._total is None:
            self._units, self._total = torch.zeros_like(update), torch.zeros_like(update)
        length = float(norm(update))
        self.distances.append(length)
        self._units.add_(update, alpha=1.0 / max(length, 1e-12))
        self._total.add_(update, alpha=weight)
        self._weight += weight

    def summary(self) -> dict[str, float]:
        """Empty if nothing was seen."""
        if self._units is None or self._total is None:
            return {}
        held, m = np.array(self.distances), len(self.distances)
        length = float(norm(self._total))
        moved = int((held > 0).sum())  # the cosine of a zero vector with itself counts as 0
        all_pairs = float(dot(self._units, self._units)) - moved
        return {
            "distance": float(held.mean()),
            "squared_distance": float((held**2).mean()),
            "cosine_to_average": float(dot(self._units, self._total)) / max(m * length, 1e-24),
            "cosine_between": all_pairs / (m * (m - 1)) if m > 1 else float("nan"),
            "average_length": length / self._weight,
            "count": m,
        }


def dissimilarity(gradients: Sequence[Vec], weights: Sequence[float]) -> dict[str, float]:
    """How much client gradients differ at one model.

    `ratio` is √(Σp‖g_i‖² / ‖Σp g_i‖²), FedProx's B: 1 if all agree; `variance` is Σp‖g_i − ḡ‖².
    """
    share = np.array(weights, np.float64) / sum(weights)
    mean = _average(gradients, weights)
    squares = np.array([float(norm(g)) ** 2 for g in gradients])
    apart = np.array([float(norm(g - mean)) ** 2 for g in gradients])
    length = float(norm(mean))
    return {
        "ratio": float(np.sqrt(share @ squares) / max(length, 1e-24)),
        "variance": float(share @ apart),
        "mean_length": length,
    }
