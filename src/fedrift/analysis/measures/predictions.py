"""Test images with what the global model and each client's model take them for."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

import numpy as np
import torch

from fedrift.analysis import classes, predictions
from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.exchange import Shown
from fedrift.flat import Vec, take
from fedrift.pictures import predictions as pictures
from fedrift.records import Record

IMAGES = 10  # shown, one of each class in turn


def measure(case: Case, options: Options) -> Finding:
    """The same images for every model; a client's model is the one after its local steps."""
    data = case.test(options.images)
    if case.problem.classes is None or not classes.is_labelled(data[1]):
        raise NotMeasured("it has no classes to predict, one for each sample")
    if not predictions.is_image(data[0]):
        raise NotMeasured("its inputs are not images")
    true = data[1].cpu().numpy().astype(np.int64)
    shown = predictions.chosen(true, IMAGES)
    try:
        local, why = case.trained(case.few(options.clients), options.watch), ""
    except NotMeasured as reason:
        local, why = {}, f"Only the global model is shown: {reason}."
    models: dict[str, tuple[Vec, Shown]] = {"global": (case.weights, case.shown)}
    for client, seen in local.items():
        own = replace(case.shown, w=seen.w, buffers=seen.buffers or case.shown.buffers)
        models[f"client {client}"] = seen.w, own
    number = len(models) * classes.passes(data)
    options.watch.begin("batches of test images", number, 0.0)
    rows: Record = {}
    for name, (_, model) in models.items():
        _, labels = classes.outputs(case.model(model.buffers), model, data, options.watch)
        rows[name] = asdict(predictions.predicted(labels, true, shown))
    images = predictions.pixels(take(data[0], torch.tensor(shown)))
    numbers: Record = {
        "round": case.round,
        "data": f"{len(true):,} test samples",
        "true": [int(true[i]) for i in shown],
        "models": rows,
        "images": images.tolist(),
    }
    figures = {"images": partial(pictures.images, runs={case.name: numbers})}
    about = tuple(filter(None, (_said(numbers), why)))
    return Finding("Predictions", about, numbers, figures)


def _said(numbers: Record) -> str:
    rows = dict(numbers["models"])
    whole = rows.pop("global")["accuracy"]
    words = f"The global model is right on {100 * whole:.1f} % of {numbers['data']}"
    if not rows:
        return f"{words}."
    shares = [row["accuracy"] for row in rows.values()]
    worst, best = 100 * min(shares), 100 * max(shares)
    return (
        f"{words}; after their local steps the models of {len(rows)} clients are right on "
        f"{worst:.1f} to {best:.1f} %. All see the same images; wrong answers are marked."
    )
