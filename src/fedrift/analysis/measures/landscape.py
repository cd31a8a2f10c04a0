"""The loss landscape of a run: between its models, on the plane through three, and around one."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from fedrift.analysis import landscape
from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.rehearsal import Visited
from fedrift.errors import InputError
from fedrift.flat import Vec
from fedrift.pictures import landscape as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record
from fedrift.streams import stream

ALONG = np.linspace(-0.5, 1.5, 21)  # from one model (0) to the other (1) and beyond both
SIDE = 13  # points along each side of a plane
MODELS = 2  # local models in lines and plane
NEAR = 1.5  # times the distance of the local models: earlier models that the map makes room for


def measure(case: Case, options: Options) -> Finding:
    """Lines between global and local models, the plane through three, a random plane."""
    data, said = case.data(options)
    score = landscape.scorer(case.problem, data, case.shown)
    try:
        local, why = case.trained(case.few(MODELS), options.watch), ""
    except NotMeasured as reason:
        local, why = {}, f"Local models are not shown: {reason}."
    pairs = _pairs(case.weights, local)
    points = len(ALONG) * len(pairs) + SIDE**2 * (1 + (len(local) > 1))
    options.watch.begin("points where the loss is taken", points, 0.0)
    lines = {
        name: landscape.line(score, *ends, ALONG.tolist(), options.watch)
        for name, ends in pairs.items()
    }
    numbers: Record = {
        "round": case.round,
        "data": said,
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
    together = {name: draw for name, draw in TOGETHER["landscape"].items() if name in drawn}
    about = tuple(filter(None, (_said(lines, said), why, _path(numbers))))
    return Finding("Loss landscape", about, numbers, figures, together)


def _pairs(w: Vec, local: dict[int, Visited]) -> dict[str, tuple[Vec, Vec]]:
    pairs = {f"global to client {c}": (w, seen.w) for c, seen in local.items()}
    for a, b in pairwise(local):
        pairs[f"client {a} to client {b}"] = local[a].w, local[b].w
    return pairs


def _around(case: Case, score: landscape.Score, options: Options) -> Record:
    """Two random filter-normalised directions, the same for every run of this model."""
    rng, w = stream(0, "landscape"), case.weights
    first, second = (torch.from_numpy(rng.standard_normal(w.numel())).to(w) for _ in range(2))
    made = landscape.random_plane(case.problem.layout, w, (first, second))
    side = np.linspace(-1, 1, SIDE).tolist()
    return asdict(landscape.chart(score, made.point, side, side, options.watch))


def _plane(
    case: Case, local: dict[int, Visited], score: landscape.Score, options: Options
) -> Record:
    (one, first), (two, second) = list(local.items())[:2]
    made = landscape.plane(case.problem.layout, case.weights, first.w, second.w)
    models = {"global": case.weights, f"client {one}": first.w, f"client {two}": second.w}
    places = {name: made.place(w)[:2] for name, w in models.items()}
    path = landscape.projected(made, case.snapshots)
    span = max(abs(value) for place in places.values() for value in place)
    near = [(x, y) for _, x, y, _ in path if max(abs(x), abs(y)) < NEAR * span]
    x, y = landscape.around([*places.values(), *near], SIDE)
    found = landscape.chart(score, made.point, x.tolist(), y.tolist(), options.watch)
    return {**asdict(found), "models": places, "path": path}


def _said(lines: dict[str, landscape.Line], said: str) -> str:
    if not lines:
        return f"Losses are means over {said}."
    name, worst = max(lines.items(), key=lambda pair: pair[1].barrier())
    if worst.barrier() < 1e-3:
        return f"No line between these models climbs a barrier (mean loss over {said})."
    return (
        f"The highest barrier, {worst.barrier():.3g}, stands on the line from {name} (mean loss "
        f"over {said}, above the straight line between its ends)."
    )


def _path(numbers: Record) -> str:
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
