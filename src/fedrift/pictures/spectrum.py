"""A spectrum of a few nodes as a smooth curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SHARE = 100  # a bell's width is this part of the spectrum's span
POINTS = 400
AROUND = 7  # widths beyond the outermost nodes: their bells end below what is drawn


def span(nodes: Sequence[Any]) -> float:
    """From the lowest node of all probes to the highest."""
    return max(max(map(np.max, nodes)) - min(map(np.min, nodes)), 1e-12)


def smoothed(
    nodes: Sequence[Any], weights: Sequence[Any], width: float | None = None, points: int = POINTS
) -> tuple[Floats, Floats]:
    """The mean over probes of Gaussians at their nodes, on a grid that covers all of them."""
    sigma = span(nodes) / SHARE if width is None else width
    low, high = min(map(np.min, nodes)), max(map(np.max, nodes))
    grid = np.linspace(low - AROUND * sigma, high + AROUND * sigma, points)
    total = np.zeros(points)
    for at, share in zip(nodes, weights, strict=True):
        bells = np.exp(-0.5 * ((grid[:, None] - np.asarray(at)) / sigma) ** 2)
        total += bells @ np.asarray(share) / (sigma * np.sqrt(2 * np.pi))
    return grid, total / len(nodes)
