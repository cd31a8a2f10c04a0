"""Thousands of users: Fed3R in one pass against gradient methods, as in Hsu, Qi, Brown, ECCV 2020.

Collections with the shape of iNaturalist-User-120k and Landmarks-User-160k; where the real ones are
in the data folder, the features of a frozen extractor on them, else generated features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedrift.comparison import Item
from fedrift.data import datasets
from fedrift.data.arrays import split
from fedrift.data.files import user_folders as given_places
from fedrift.data.samples import DataSet
from fedrift.data.schemes import sizes_above
from fedrift.data.split import Split
from fedrift.engine.features import cached, extractor, factory
from fedrift.engine.result import Result
from fedrift.errors import InputError, unknown
from fedrift.figures.style import colour_of, legend, panels
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    OverSeeds,
    accuracies,
    cores,
    draw,
    findings_of,
    from_objects,
    mean,
    one_pass,
    over_rounds,
    over_seeds,
    percent,
    run_all,
    seeds,
    with_defaults,
)
from fedrift.rng import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Collections of many users: generated with the shape of the published ones, or read from a table.


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
    files = [place.folder / shape_of(name).file for place in given_places(data)]
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return None
    data_set = datasets.load(f"csv:{path},root={path.parent},size={size}", data)
    if data_set.users is None:
        raise InputError(f"'{path}' has no column 'user'; a collection needs one")
    return data_set


def generated(name: str, options: Mapping[str, Any], seed: int) -> Collection:
    """As many users, classes and samples as the published one has, divided by `scale`."""
    whole = shape_of(name)
    clients, classes = (max(2, int(n / options["scale"])) for n in (whole.clients, whole.classes))
    samples = max(clients, int(whole.images / options["scale"]))
    rng = generator(seed, f"collection {name}")
    sizes = sizes_above(options["sigma"] * rng.standard_normal(clients), samples, 1)[0]
    tail = rng.lognormal(0, options["class_sigma"], classes)
    prior = tail / tail.sum()
    users = np.repeat(np.arange(clients), sizes)
    y = _labels(rng, sizes, prior, options["concentration"])
    means = options["separation"] * rng.standard_normal((classes, options["width"]))
    offsets = options["shift"] * rng.standard_normal((clients, options["width"]))
    y_test = rng.choice(classes, options["tests"], p=prior)
    strangers = options["shift"] * rng.standard_normal((options["tests"], options["width"]))

    def noisy(labels: np.ndarray, moved: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal((len(labels), options["width"]))
        return (means[labels] + moved + noise).astype(np.float32)

    return Collection(noisy(y, offsets[users]), y, users, noisy(y_test, strangers), y_test, classes)


def inaturalist() -> DataSet:
    """A quarter of iNaturalist-User-120k, generated so hard that pooled ridge is at 52 %."""
    return _quarter("iNaturalist-User-120k", 0.3)


def landmarks() -> DataSet:
    """A quarter of Landmarks-User-160k, generated so hard that pooled ridge is at 58 %."""
    return _quarter("Landmarks-User-160k", 0.36)


def _quarter(name: str, separation: float) -> DataSet:
    one = generated(name, {**USUAL, "scale": 4.0, "separation": separation}, 0)
    parts = (one.x, one.y, one.x_test, one.y_test, one.classes)
    return DataSet(name, *parts, tuple(map(str, range(one.classes))), one.users)


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


USUAL: dict[str, Any] = {
    "collections": ["Landmarks-User-160k"],
    "algorithms": ["fedavg", "fedavgm"],
    "scale": 1.0,
    "width": 128,
    "sigma": 1.2,
    "class_sigma": 1.0,
    "concentration": 5.0,
    "separation": 0.6,
    "shift": 0.3,
    "tests": 5000,
    "per_round": 50,
    "rounds": 0,
    "epochs": 5,
    "batch_size": 64,
    "lr": 0.1,
    "weight_decay": 0.0,
    "ridge": 0.01,
    "eval_every": 5,
    "last": 5,
    "model": "mobilenet-v2:size=224",
    "size": 224,
}
CLOSED = "fed3r"


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Every algorithm on every collection."""
    options = with_defaults(settings, USUAL)
    results: dict[tuple[str, str], list[Result]] = {}
    sizes: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for name in options["collections"]:
        for seed in seeds(options):
            collection, note = _collection(name, options, data, seed, tell)
            clients = split(
                collection.x, collection.y, "natural", users=collection.users, seed=seed
            )
            sizes.setdefault(name, clients.sizes)
            notes += [note] if note not in notes else []
            algorithms = (CLOSED, *options["algorithms"])
            items = [
                _item(name, one, collection, clients, options, folder, seed) for one in algorithms
            ]
            for one, result in zip(algorithms, run_all(items, options, tell), strict=True):
                results.setdefault((name, one), []).append(result)
    return _findings(folder, options, results, sizes, notes)


def _collection(
    name: str, options: Mapping[str, Any], data: Path | None, seed: int, tell: Tell
) -> tuple[Collection, str]:
    data_set = real(name, data, options["size"])
    if data_set is None:
        tell(f"{name}: generating features with its shape")
        collection = generated(name, options, seed)
        opening = f"Generated features of width {options['width']} with the shape of {name}"
        return collection, (
            f"{opening}: {len(np.unique(collection.users)):,} users, {collection.classes:,} "
            "classes, "
            f"{len(collection.y):,} samples; not the photographs, so accuracies cannot be "
            "compared with "
            f"published ones. With {shape_of(name).file} (columns path,label,user,split) and its "
            "images in the data folder the same command takes those."
        )
    example = torch.from_numpy(data_set.x[:2])
    source = extractor(
        options["model"], factory(options["model"], data_set, data), example, seed=seed
    )
    x, x_test = (
        cached(source, part, cores=cores(options), tell=tell).numpy()
        for part in (data_set.x, data_set.x_test)
    )
    assert data_set.users is not None
    note = f"{name}: {len(data_set.y):,} photographs, features of {options['model']}."
    return Collection(
        x, data_set.y, data_set.users, x_test, data_set.y_test, data_set.classes
    ), note


def _item(
    name: str,
    algorithm: str,
    collection: Collection,
    clients: Split,
    options: Mapping[str, Any],
    folder: Path,
    seed: int,
) -> Item:
    closed = algorithm == CLOSED
    whole = one_pass(len(clients), options)
    local = (
        {}
        if closed
        else {key: options[key] for key in ("epochs", "batch_size", "lr", "weight_decay")}
    )
    return from_objects(
        f"{name}, {algorithm}",
        f"{CLOSED}:ridge={options['ridge']}" if closed else algorithm,
        folder,
        seed,
        model=partial(nn.Linear, collection.x.shape[1], collection.classes),
        clients=clients,
        test=(collection.x_test, collection.y_test),
        rounds=whole if closed else options["rounds"] or whole,
        per_round=min(options["per_round"], len(clients)),
        eval_every=options["eval_every"],
        **local,
    )


def _findings(
    folder: Path,
    options: Mapping[str, Any],
    results: Mapping[tuple[str, str], Sequence[Result]],
    sizes: Mapping[str, np.ndarray],
    notes: Sequence[str],
) -> Findings:
    rows: list[list[Any]] = []
    shown: dict[str, dict[str, Curve]] = {}
    for (name, algorithm), many in results.items():
        totals = [one.ledger.total for one in many]
        near = 0.9 * mean([one.accuracy[-1] for one in results[name, CLOSED]])
        rows.append(
            [
                f"{name}, {algorithm}",
                many[0].rounds[-1],
                percent([_level(one, algorithm, options) for one in many]),
                _reached(many, near),
                mean([t.bytes_up for t in totals]) / 1e6,
                mean([t.bytes_down for t in totals]) / 1e6,
                mean([t.gradients for t in totals]),
            ]
        )
        shown.setdefault(name, {})[algorithm] = over_rounds(many[0])
    columns = (
        "method",
        "rounds",
        "accuracy (%)",
        "rounds to 90 % of Fed3R's",
        "MB up",
        "MB down",
        "gradient evaluations",
    )
    spread = Draft(
        "Users",
        ("collection", "users", "samples", "median", "largest", "users below 10 samples (%)"),
        [
            [
                name,
                len(n),
                int(n.sum()),
                float(np.median(n)),
                int(n.max()),
                100 * float((n < 10).mean()),
            ]
            for name, n in sizes.items()
        ],
    )
    figures = [
        accuracies(folder, "large-scale-rounds", shown),
        draw(folder, "large-scale-sizes", partial(_sizes, sizes=sizes)),
    ]
    about = (
        f"{options['per_round']} users a round; gradient methods: {options['epochs']} epochs, "
        "batches of "
        f"{options['batch_size']}, rate {options['lr']}; the model is one linear layer on the "
        "features; accuracy is the mean of the last "
        f"{options['last']} evaluations. Fed3R's rounds are one pass over all users, and its "
        "accuracy that after the last."
    )
    drafts = [Draft("Accuracy and cost", columns, rows), spread]
    return findings_of(drafts, options, figures, [*notes, about], shown)


def _level(result: Result, algorithm: str, options: Mapping[str, Any]) -> float:
    """Of a gradient method the mean of the last evaluations; Fed3R ends when all are counted."""
    return mean(result.accuracy[-1 if algorithm == CLOSED else -options["last"] :])


def _reached(many: Sequence[Result], target: float) -> OverSeeds | str:
    """The first evaluated round with that accuracy."""
    rounds = [
        next((r for r, a in zip(one.rounds, one.accuracy, strict=True) if a >= target), None)
        for one in many
    ]
    known = [float(r) for r in rounds if r is not None]
    return over_seeds(known, 0) if len(known) == len(many) else "not reached"


def _sizes(figure: Figure, sizes: Mapping[str, np.ndarray]) -> None:
    """Samples of each user, largest first."""
    (axis,) = panels(figure, 1)
    for place, (name, n) in enumerate(sizes.items()):
        axis.plot(np.arange(1, len(n) + 1), np.sort(n)[::-1], color=colour_of(place), label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("user, by number of samples")
    axis.set_ylabel("samples")
    legend(figure, [axis])
