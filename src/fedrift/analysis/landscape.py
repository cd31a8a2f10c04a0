"""The loss between and around models: lines, planes through three models, random planes.

Lengths and angles in a plane are those of a filter-normalised metric: every filter of a difference
is divided by the length of that filter in the central model (Li, Xu, Taylor, Studer, Goldstein,
NeurIPS 2018), so that models whose layers are scaled differently can be compared. Biases and
normalisation layers have no length in it. The plane itself goes through the models exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.next_round import Unwatched, Visited, Watch
from fedrift.core import evaluation
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Evaluator
from fedrift.core.flat import Batch, Layout, Vec, dot, norm
from fedrift.core.problem import Problem
from fedrift.errors import InputError
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import curvature as pictures
from fedrift.rng import generator
from fedrift.storage.jsonl import Record

PARALLEL = 1e-5  # of a direction that stands upright on another: less is rounding

Score = Callable[[Vec], "tuple[float, float | None]"]
"""Loss and accuracy of some weights on fixed data; no accuracy where there are no classes."""


def scorer(problem: Problem, data: Batch, shown: EvaluatedModel) -> Score:
    """Measures any weights as the run measures its model: same buffers, mask and temperature."""
    evaluator = Evaluator(problem, *data, evaluation.evaluate_chunk)

    def score(w: Vec) -> tuple[float, float | None]:
        sums = evaluator.chunks(replace(shown, w=w))
        metrics = evaluation.combine(sums)  # type: ignore[arg-type]
        return float(metrics["loss"]), metrics.get("accuracy")

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
    return plane_by(filter_scale(layout, origin), origin, first, second)


def plane_by(scale: Vec, origin: Vec, first: Vec, second: Vec) -> Plane:
    """The same with another metric; ones are the distances of weights."""
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
class Surface:
    """Loss and accuracy on a grid: rows go up, columns to the right."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    loss: tuple[tuple[float, ...], ...]
    accuracy: tuple[tuple[float, ...], ...]


def measure_surface(
    score: Score,
    point: Callable[[float, float], Vec],
    x: Sequence[float],
    y: Sequence[float],
    watch: Watch | None = None,
) -> Surface:
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
    return Surface(tuple(map(float, x)), tuple(map(float, y)), tuple(losses), tuple(accuracies))


def grid_around(
    points: Sequence[tuple[float, float]], number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a square grid that shows all points with a margin."""
    corners = np.array(points)
    middle = (corners.max(axis=0) + corners.min(axis=0)) / 2
    half = 0.65 * float(np.ptp(corners, axis=0).max()) or 1.0
    x, y = (np.linspace(m - half, m + half, number) for m in middle)
    return x, y


def project_snapshots(
    plane: Plane, snapshots: Mapping[int, Vec]
) -> list[tuple[int, float, float, float]]:
    """Round, coordinates and share outside the plane of every kept global model."""
    return [(round, *plane.place(w)) for round, w in sorted(snapshots.items())]


def random_plane(layout: Layout, w: Vec, draws: tuple[Tensor, Tensor]) -> Plane:
    """Two filter-normalised random directions around a model (Li et al. 2018)."""
    right, up = (filter_normalised(layout, w, draw) for draw in draws)
    return Plane(w, right, up, filter_scale(layout, w))


# The measurement: between a run's models, on the plane through three of them, and around one.

ALONG = np.linspace(-0.5, 1.5, 21)  # from one model (0) to the other (1) and beyond both
SIDE = 13  # points along each side of a plane
MODELS = 2  # local models in lines and plane
NEAR = 1.5  # times the distance of the local models: earlier models that the map makes room for


def measure(case: Case, options: Options) -> Finding:
    """Lines between global and local models, the plane through three, a random plane."""
    data, data_name = case.data(options)
    score = scorer(case.problem, data, case.shown)
    try:
        local, why = case.trained(case.few(MODELS), options.watch), ""
    except NotMeasured as reason:
        local, why = {}, f"Local models are not shown: {reason}."
    pairs = _pairs(case.weights, local)
    points = len(ALONG) * len(pairs) + SIDE**2 * (1 + (len(local) > 1))
    options.watch.begin("points where the loss is taken", points, 0.0)
    lines = {
        name: line(score, *ends, ALONG.tolist(), options.watch) for name, ends in pairs.items()
    }
    numbers: Record = {
        "round": case.round,
        "data": data_name,
        "lines": {
            name: {**asdict(line), "barrier": line.barrier()} for name, line in lines.items()
        },
        "around": _around(case, score, options),
        "plane": None,
    }
    if len(local) > 1:
        try:
            numbers["plane"] = _plane(case, local, score, options)
        except InputError as reason:  # clients that hold the same, or did nothing
            why = f"No plane is shown: {reason}."
    drawn = {"around": pictures.around}
    drawn |= {"lines": pictures.lines} if lines else {}
    drawn |= {"plane": pictures.plane} if numbers["plane"] else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    together = {name: draw for name, draw in COMMON_FIGURES["landscape"].items() if name in drawn}
    about = tuple(filter(None, (_barrier_sentence(lines, data_name), why, _path_sentence(numbers))))
    return Finding("Loss landscape", about, numbers, figures, together)


def _pairs(w: Vec, local: dict[int, Visited]) -> dict[str, tuple[Vec, Vec]]:
    pairs = {f"global to client {c}": (w, seen.w) for c, seen in local.items()}
    for a, b in pairwise(local):
        pairs[f"client {a} to client {b}"] = local[a].w, local[b].w
    return pairs


def _around(case: Case, score: Score, options: Options) -> Record:
    """Two random filter-normalised directions, the same for every run of this model."""
    rng, w = generator(0, "landscape"), case.weights
    first, second = (torch.from_numpy(rng.standard_normal(w.numel())).to(w) for _ in range(2))
    surface = random_plane(case.problem.layout, w, (first, second))
    side = np.linspace(-1, 1, SIDE).tolist()
    return asdict(measure_surface(score, surface.point, side, side, options.watch))


def _plane(case: Case, local: dict[int, Visited], score: Score, options: Options) -> Record:
    (one, first), (two, second) = list(local.items())[:2]
    through_models = plane(case.problem.layout, case.weights, first.w, second.w)
    models = {"global": case.weights, f"client {one}": first.w, f"client {two}": second.w}
    places = {name: through_models.place(w)[:2] for name, w in models.items()}
    path = project_snapshots(through_models, case.snapshots)
    span = max(abs(value) for place in places.values() for value in place)
    near = [(x, y) for _, x, y, _ in path if max(abs(x), abs(y)) < NEAR * span]
    x, y = grid_around([*places.values(), *near], SIDE)
    surface = measure_surface(score, through_models.point, x.tolist(), y.tolist(), options.watch)
    return {**asdict(surface), "models": places, "path": path}


def _barrier_sentence(lines: dict[str, Line], data_name: str) -> str:
    if not lines:
        return f"Losses are means over {data_name}."
    name, worst = max(lines.items(), key=lambda pair: pair[1].barrier())
    if worst.barrier() < 1e-3:
        return f"No line between these models climbs a barrier (mean loss over {data_name})."
    return (
        f"The highest barrier, {worst.barrier():.3g}, stands on the line from {name} (mean loss "
        f"over {data_name}, above the straight line between its ends)."
    )


def _path_sentence(numbers: Record) -> str:
    chart = numbers["plane"]
    if not chart:
        return ""
    words = (
        "The plane goes through the global and two local models; lengths in it are "
        "filter-normalised: the change of a filter counts relative to the filter's own length."
    )
    if len(chart["path"]) < 2:
        return f"{words} No earlier global models were kept (--analyse what=weights keeps them)."
    outside = max(share for *_, share in chart["path"])
    return f"{words} Up to {100 * outside:.0f} % of the way to earlier models leads out of it."
