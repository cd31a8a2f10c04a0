"""Test images and what models take them for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrift.analysis import classes
from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.flat import Vec, take
from fedrift.figures import classes as pictures
from fedrift.storage.jsonl import Record

Pixels = npt.NDArray[np.uint8]
LARGEST = 64  # pixels along a side that are kept; larger images are thinned out


@dataclass(frozen=True)
class Predicted:
    """What one model says about some images, and how often it is right on all of the data."""

    labels: tuple[int, ...]
    accuracy: float


def choose_images(labels: npt.NDArray[np.int64], number: int) -> list[int]:
    """Positions of images to show: the classes in turn, in the order of the data."""
    by_class = {c: np.flatnonzero(labels == c).tolist() for c in np.unique(labels[labels >= 0])}
    positions: list[int] = []
    while len(positions) < number and any(by_class.values()):
        for places in by_class.values():
            if places and len(positions) < number:
                positions.append(places.pop(0))
    return positions


def is_image(x: object) -> bool:
    """Samples × channels × height × width with one or three channels, or without channels."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    return (x.dim() == 4 and x.shape[1] in (1, 3)) or (x.dim() == 3 and min(x.shape[1:]) > 1)


def pixels(x: Tensor) -> Pixels:
    """Images as bytes, samples × height × width × channels: dark to light over all of them.

    A normalisation of the inputs is undone as far as it can be: each channel is stretched.
    """
    whole = x.detach().cpu().float()
    whole = whole.unsqueeze(1) if whole.dim() == 3 else whole
    thin = -(-max(whole.shape[2:]) // LARGEST)
    whole = whole[:, :, ::thin, ::thin]
    low = whole.amin(dim=(0, 2, 3), keepdim=True)
    high = whole.amax(dim=(0, 2, 3), keepdim=True)
    bright = (whole - low) / (high - low).clamp_min(1e-12)
    return (255 * bright).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def predictions_of(
    labels: npt.NDArray[np.int64], true: npt.NDArray[np.int64], shown: list[int]
) -> Predicted:
    """The labels of the shown images, and the accuracy over all that have a label."""
    known = true >= 0
    right = float((labels[known] == true[known]).mean()) if known.any() else 0.0
    return Predicted(tuple(int(labels[i]) for i in shown), right)


# The measurement: the global model and each client's model on the same images.

IMAGES = 10  # shown, one of each class in turn


def measure(case: Case, options: Options) -> Finding:
    """The same images for every model; a client's model is the one after its local steps."""
    data = case.test(options.images)
    if case.problem.classes is None or not classes.is_labelled(data[1]):
        raise NotMeasured("it has no classes to predict, one for each sample")
    if not is_image(data[0]):
        raise NotMeasured("its inputs are not images")
    true = data[1].cpu().numpy().astype(np.int64)
    shown = choose_images(true, IMAGES)
    try:
        local, why = case.trained(case.few(options.clients), options.watch), ""
    except NotMeasured as reason:
        local, why = {}, f"Only the global model is shown: {reason}."
    models: dict[str, tuple[Vec, EvaluatedModel]] = {"global": (case.weights, case.shown)}
    for client, seen in local.items():
        own = replace(case.shown, w=seen.w, buffers=seen.buffers or case.shown.buffers)
        models[f"client {client}"] = seen.w, own
    number = len(models) * classes.passes(data)
    options.watch.begin("batches of test images", number, 0.0)
    rows: Record = {}
    for name, (_, model) in models.items():
        _, labels = classes.outputs(case.model(model.buffers), model, data, options.watch)
        rows[name] = asdict(predictions_of(labels, true, shown))
    images = pixels(take(data[0], torch.tensor(shown)))
    numbers: Record = {
        "round": case.round,
        "data": f"{len(true):,} test samples",
        "true": [int(true[i]) for i in shown],
        "models": rows,
        "images": images.tolist(),
    }
    figures = {"images": partial(pictures.images, runs={case.name: numbers})}
    about = tuple(filter(None, (_accuracy_sentence(numbers), why)))
    return Finding("Predictions", about, numbers, figures)


def _accuracy_sentence(numbers: Record) -> str:
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
