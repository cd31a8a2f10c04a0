"""Collections of many users: generated with the shape of the published ones, or read from a table.

A generated one holds features, not images: class means, an offset for every user and noise. Sizes
of users are log-normal; a user's classes come from a Chinese restaurant process over a long-tailed
prior, so that most users hold few classes, as photographers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.data import datasets, places
from fedrift.data.samples import DataSet
from fedrift.data.sizes import above
from fedrift.errors import InputError, unknown
from fedrift.streams import stream


@dataclass(frozen=True)
class Shape:
    """How large a published collection is, and what its table is called in the data folder."""

    clients: int
    classes: int
    images: int
    file: str


SHAPES = {
    "iNaturalist-User-120k": Shape(9_275, 1_203, 120_300, "inaturalist-user-120k.csv"),
    "Landmarks-User-160k": Shape(1_262, 2_028, 164_172, "landmarks-user-160k.csv"),
}


@dataclass(frozen=True)
class Collection:
    """Features or images of users, with a test set."""

    x: np.ndarray
    y: np.ndarray
    users: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int


def shape_of(name: str) -> Shape:
    if name not in SHAPES:
        raise unknown("collection", name, SHAPES)
    return SHAPES[name]


def real(name: str, data: Path | None, size: int) -> DataSet | None:
    """The published collection, if its table and images are in the data folder."""
    files = [place.folder / shape_of(name).file for place in places.given(data)]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return None
    found = datasets.load(f"csv:{path},root={path.parent},size={size}", data)
    if found.users is None:
        raise InputError(f"'{path}' has no column 'user'; a collection needs one")
    return found


def generated(name: str, said: Mapping[str, Any], seed: int) -> Collection:
    """As many users, classes and samples as the published one has, divided by `scale`."""
    whole = shape_of(name)
    clients, classes = (max(2, int(n / said["scale"])) for n in (whole.clients, whole.classes))
    samples = max(clients, int(whole.images / said["scale"]))
    rng = stream(seed, f"collection {name}")
    sizes = above(said["sigma"] * rng.standard_normal(clients), samples, 1)[0]
    tail = rng.lognormal(0, said["class_sigma"], classes)
    prior = tail / tail.sum()
    users = np.repeat(np.arange(clients), sizes)
    y = _labels(rng, sizes, prior, said["concentration"])
    means = said["separation"] * rng.standard_normal((classes, said["width"]))
    offsets = said["shift"] * rng.standard_normal((clients, said["width"]))
    y_test = rng.choice(classes, said["tests"], p=prior)
    strangers = said["shift"] * rng.standard_normal((said["tests"], said["width"]))

    def noisy(labels: np.ndarray, moved: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal((len(labels), said["width"]))
        return (means[labels] + moved + noise).astype(np.float32)

    return Collection(noisy(y, offsets[users]), y, users, noisy(y_test, strangers), y_test, classes)


def _labels(
    rng: np.random.Generator, sizes: np.ndarray, prior: np.ndarray, concentration: float
) -> np.ndarray:
    """User by user: a new class with probability c/(c+i), else the class of an earlier sample."""
    total = int(sizes.sum())
    fresh = rng.choice(len(prior), total, p=prior)
    position = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_new = rng.random(total) < concentration / (concentration + position)
    earlier = np.arange(total) - position + (rng.random(total) * position).astype(np.int64)
    labels = fresh.copy()
    for i in np.flatnonzero(~is_new).tolist():  # in order: earlier ones are decided
        labels[i] = labels[earlier[i]]
    return labels
