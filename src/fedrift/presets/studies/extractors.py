"""Extractors of studies: from a file, pre-trained here, random, one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.api import run
from fedrift.core.isolation import drawing_alone
from fedrift.data.samples import DataSet
from fedrift.engine.features import Extractor, cached, extractor, factory
from fedrift.errors import InputError, unknown
from fedrift.presets.findings import Tell
from fedrift.presets.studies.common import cores, load

USUAL: dict[str, Any] = {
    "name": "",
    "data": "",
    "classes": [],
    "model": "",
    "pretrained_on": "",
    "pretrained_classes": [],
    "epochs": 2,
    "lr": 0.05,
    "clients": 100,
}


@dataclass(frozen=True)
class Featured:
    """A data set as an extractor sees it."""

    name: str
    options: Mapping[str, Any]
    width: int
    classes: int
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def read_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one extractor: the data it is used on, and where it comes from."""
    for key in settings:
        if key not in USUAL:
            raise unknown("setting of an extractor", key, USUAL)
    for key in ("name", "data", "model"):
        if not settings.get(key):
            raise InputError(f"an extractor needs the setting '{key}'")
    return {**USUAL, **settings}


def pretrained(
    options: Mapping[str, Any], data: Path | None, folder: Path, seed: int, tell: Tell
) -> nn.Module:
    """The model after some epochs on another data set, which one client holds."""
    source = load(options["pretrained_on"], data, options["pretrained_classes"])
    tell(
        f"pre-training {options['model']} on {options['pretrained_on']}, {options['epochs']} epochs"
    )
    result = run(
        "fedavg",
        model=factory(options["model"], source, data),
        clients=[(source.x, source.y)],
        test=(source.x_test, source.y_test),
        rounds=int(options["epochs"]),
        epochs=1,
        batch_size=32,
        lr=float(options["lr"]),
        seed=seed,
        workers=0,
        out=folder / "runs" / f"pretraining-{options['name'].replace(' ', '-')}-s{seed}",
    )
    tell(f"pre-trained: {100 * result.accuracy[-1]:.1f} % on its own data")
    return result.module()


def base_network(
    options: Mapping[str, Any],
    data_set: DataSet,
    data: Path | None,
    folder: Path,
    seed: int,
    tell: Tell,
) -> nn.Module | partial[nn.Module]:
    """The network whose head is to be replaced: trained before, or as its factory makes it."""
    if options["pretrained_on"]:
        return pretrained(options, data, folder, seed, tell)
    return factory(options["model"], data_set, data)


def make_extractor(
    options: Mapping[str, Any],
    data_set: DataSet,
    data: Path | None,
    folder: Path,
    seed: int,
    tell: Tell,
) -> Extractor:
    """The extractor that the settings describe."""
    network = base_network(options, data_set, data, folder, seed, tell)
    make = (lambda: network) if isinstance(network, nn.Module) else network
    return extractor(options["name"], make, torch.from_numpy(data_set.x[:2]), seed=seed)


def load_features(
    settings: Mapping[str, Any],
    study: Mapping[str, Any],
    data: Path | None,
    folder: Path,
    seed: int,
    tell: Tell,
) -> Featured:
    """Training and test features, from the cache as far as they are there."""
    options = read_options(settings)
    data_set = load(options["data"], data, options["classes"])
    source = make_extractor(options, data_set, data, folder, seed, tell)
    train, test = (
        cached(source, x, cores=cores(study), tell=tell) for x in (data_set.x, data_set.x_test)
    )
    return Featured(
        options["name"],
        options,
        source.width,
        data_set.classes,
        (train.double(), torch.from_numpy(data_set.y)),
        (test.double(), torch.from_numpy(data_set.y_test)),
    )


def fresh_head(network: nn.Module, head: str, classes: int, seed: int) -> nn.Module:
    """The network with a new linear head, drawn from the seed."""
    old = network.get_submodule(head)
    if not isinstance(old, nn.Linear):
        raise InputError(f"head '{head}' is no linear layer")
    with drawing_alone(seed):
        network.set_submodule(head, nn.Linear(old.in_features, classes))
    return network


def pooled_ridge(
    phi: Tensor, y: Tensor, classes: int, ridge: float, normalise: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of ridge regression on all samples at once, in float64, by Cholesky."""
    from scipy.linalg import cho_factor, cho_solve

    x = np.concatenate([phi.numpy(), np.ones((len(phi), 1))], axis=1)
    target = np.eye(classes)[y.numpy()]
    solved = cho_solve(cho_factor(x.T @ x + ridge * np.eye(x.shape[1])), x.T @ target)
    if normalise:
        length = np.linalg.norm(solved[:-1], axis=0)
        solved = solved / np.where(length > 0, length, 1e-6)
    return solved[:-1].T, solved[-1]


def accuracy(weight: np.ndarray, bias: np.ndarray, test: tuple[Tensor, Tensor]) -> float:
    predicted = (test[0].numpy() @ weight.T + bias).argmax(axis=1)
    return float((predicted == test[1].numpy()).mean())
