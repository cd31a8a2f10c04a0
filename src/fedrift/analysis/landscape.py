"""The loss between and around models: lines, planes through three models, random planes.

Lengths and angles in a plane are those of a filter-normalised metric: every filter of a difference
is divided by the length of that filter in the central model (Li, Xu, Taylor, Studer, Goldstein,
NeurIPS 2018), so that models whose layers are scaled differently can be compared. Biases and
normalisation layers have no length in it. The plane itself goes through the models exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrift import metrics
from fedrift.analysis.patience import Unwatched, Watch
from fedrift.backends.evaluation import Evaluator
from fedrift.errors import InputError
from fedrift.exchange import Shown
from fedrift.flat import Batch, Layout, Vec, dot, norm
from fedrift.problem import Problem

PARALLEL = 1e-5  # of a direction that stands upright on another: less is rounding

Score = Callable[[Vec], "tuple[float, float | None]"]
"""Loss and accuracy of some weights on fixed data; no accuracy where there are no classes."""


def scorer(problem: Problem, data: Batch, shown: Shown) -> Score:
    """Measures any weights as the run measures its model: same buffers, mask and temperature."""
    evaluator = Evaluator(problem, *data, metrics.evaluate_chunk)

    def score(w: Vec) -> tuple[float, float | None]:
        sums = evaluator.chunks(replace(shown, w=w))
        found = metrics.combine(sums)  # type: ignore[arg-type]
        return float(found["loss"]), found.get("accuracy")

    return score


@dataclass(frozen=True)
class Line:
    """Loss and accuracy at a + t·(b − a)."""

    at: tuple[float, ...]
    loss: tuple[float, ...]
    accuracy: tuple[float, ...]
    """Empty without classes."""

    def barrier(self) -> float:
        """How far the loss between 0 and 1 rises above the straight line between its ends."""
        ends = np.interp((0.0, 1.0), self.at, self.loss)
        inside = [(t, f) for t, f in zip(self.at, self.loss, strict=True) if 0 <= t <= 1]
        rises = [f - ((1 - t) * ends[0] + t * ends[1]) for t, f in inside]
        return max(0.0, float(max(rises, default=0.0)))


def line(score: Score, a: Vec, b: Vec, at: Sequence[float], watch: Watch | None = None) -> Line:
    """Along the straight line through two models."""
    watch = watch or Unwatched()
    losses: list[float] = []
    accuracies: list[float] = []
    for t in at:
        loss, accuracy = score(torch.lerp(a, b, float(t)))
        losses.append(loss)
        accuracies += [] if accuracy is None else [accuracy]
        watch.step()
    return Line(tuple(map(float, at)), tuple(losses), tuple(accuracies))


def filter_scale(layout: Layout, w: Vec) -> Vec:
    """One over the length of each weight's filter in w; 0 for biases, normalisation layers, zeros.

    A filter is a row of a matrix or an output channel of a convolution. A model that has nothing
    but vectors is measured plainly.
    """
    scale = torch.zeros_like(w)
    for view, value in zip(layout.views(scale), layout.views(w), strict=True):
        if value.dim() > 1:
            lengths = norm(value.flatten(1))
            inverse = torch.where(lengths > 0, 1.0 / lengths, 0.0)  # a dead filter has no unit
            view.copy_(inverse.to(w.dtype).reshape(-1, *[1] * (value.dim() - 1)))
    return scale if bool(scale.any()) else torch.ones_like(w)


def filter_normalised(layout: Layout, w: Vec, direction: Vec) -> Vec:
    """The direction with every filter as long as that of w; biases and norm layers are zeroed.

    In a model that has nothing but vectors the direction is as long as w as a whole.
    """
    if max(map(len, layout.shapes), default=0) < 2:
        return direction * (norm(w) / norm(direction).clamp_min(1e-12)).to(w.dtype)
    new = torch.zeros_like(direction)
    views = zip(layout.views(new), layout.views(direction), layout.views(w), strict=True)
    for view, towards, value in views:
        if value.dim() > 1:
            own = norm(towards.flatten(1)).clamp_min(1e-12)
            scale = (norm(value.flatten(1)) / own).to(w.dtype)
            view.copy_(towards * scale.reshape(-1, *[1] * (value.dim() - 1)))
    return new


@dataclass(frozen=True)
class Plane:
    """Points origin + x·right + y·up; coordinates are taken by the metric's inner product."""

    origin: Vec
    right: Vec
    up: Vec
    scale: Vec
    """Filter-normalised: what a difference is multiplied by before its length is taken."""

    def point(self, x: float, y: float) -> Vec:
        """The weights at a place of the plane."""
        return self.origin + x * self.right + y * self.up

    def place(self, w: Vec) -> tuple[float, float, float]:
        """Coordinates of the nearest point of the plane, and the share of w − origin outside."""
        away = (w - self.origin) * self.scale
        x = float(dot(away, self.right * self.scale))
        y = float(dot(away, self.up * self.scale))
        whole = float(norm(away))
        outside = max(0.0, whole**2 - x**2 - y**2) ** 0.5
        return x, y, outside / whole if whole else 0.0


def plane(layout: Layout, origin: Vec, first: Vec, second: Vec) -> Plane:
    """The plane through three models; the first lies to the right of the origin, the second up."""
    scale = filter_scale(layout, origin)
    right = _unit(first - origin, scale, None)
    up = _unit(second - origin, scale, right)
    return Plane(origin, right, up, scale)


def _unit(direction: Vec, scale: Vec, besides: Vec | None) -> Vec:
    whole = float(norm(direction * scale))
    if besides is not None:
        direction = direction - float(dot(direction * scale, besides * scale)) * besides
    length = float(norm(direction * scale))
    if length <= PARALLEL * whole:
        raise InputError("the three models lie on one line: no plane goes through them")
    return direction / length


@dataclass(frozen=True)
class Chart:
    """Loss and accuracy on a grid: rows go up, columns to the right."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    loss: tuple[tuple[float, ...], ...]
    accuracy: tuple[tuple[float, ...], ...]


def chart(
    score: Score,
    point: Callable[[float, float], Vec],
    x: Sequence[float],
    y: Sequence[float],
    watch: Watch | None = None,
) -> Chart:
    """Every point of a grid, measured."""
    watch = watch or Unwatched()
    losses: list[tuple[float, ...]] = []
    accuracies: list[tuple[float, ...]] = []
    for b in y:
        row = []
        for a in x:
            row.append(score(point(float(a), float(b))))
            watch.step()
        losses.append(tuple(loss for loss, _ in row))
        accuracies.append(tuple(share for _, share in row if share is not None))
    return Chart(tuple(map(float, x)), tuple(map(float, y)), tuple(losses), tuple(accuracies))


def around(points: Sequence[tuple[float, float]], number: int) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a square grid that shows all points with a margin."""
    found = np.array(points)
    middle = (found.max(axis=0) + found.min(axis=0)) / 2
    half = 0.65 * float(np.ptp(found, axis=0).max()) or 1.0
    x, y = (np.linspace(m - half, m + half, number) for m in middle)
    return x, y


def projected(plane: Plane, snapshots: Mapping[int, Vec]) -> list[tuple[int, float, float, float]]:
    """Round, coordinates and share outside the plane of every kept global model."""
    return [(round, *plane.place(w)) for round, w in sorted(snapshots.items())]


def random_plane(layout: Layout, w: Vec, draws: tuple[Tensor, Tensor]) -> Plane:
    """Two filter-normalised random directions around a model (Li et al. 2018)."""
    right, up = (filter_normalised(layout, w, draw) for draw in draws)
    return Plane(w, right, up, filter_scale(layout, w))
