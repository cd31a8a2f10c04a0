"""Extractors for closed-form classifiers: from a file, pre-trained here, random, one's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import models
from fedrift.api import run
from fedrift.core.problem import define
from fedrift.data import files
from fedrift.data.samples import DataSet
from fedrift.engine.execute import one_thread
from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, parse
from fedrift.presets.findings import Tell
from fedrift.presets.studies.common import cores, load
from fedrift.rng import torch_seed
from fedrift.storage.jsonl import replace_bytes

# Features are computed once and kept: per extractor, data and transform.

FORM = 1  # of the files; another number makes everything anew
BATCH = 16  # images at a time: more do not fit into a core's cache
BLOCK = 2048  # samples in a file


@dataclass(frozen=True, eq=False)
class Extractor:
    """A module that turns samples into features, in evaluation mode."""

    name: str
    module: nn.Module
    width: int


def extractor(
    name: str,
    make: Callable[[], nn.Module],
    example: Tensor,
    *,
    seed: int = 0,
    head: str | None = None,
) -> Extractor:
    """What a classifier computes before its head; a factory draws its weights from the seed."""
    probe = example[:2], torch.zeros(len(example[:2]), dtype=torch.int64)
    problem = define(
        make,
        nn.functional.cross_entropy,
        probe,
        init_seed=torch_seed(seed, "init"),
        population=1,
        participation=1.0,
        rounds=1,
        head=head,
    )
    problem.head_names()  # refuses a model without one
    module = problem.module(problem.w0, {})
    module.set_submodule(problem.head or "", nn.Identity())
    return Extractor(name, module.eval().requires_grad_(False), problem.feature_dim or 0)


@torch.no_grad()
def extract(source: Extractor, x: Any, cores: int = 1) -> Tensor:
    """One row of features per sample; every batch on one thread, so the bits are the same."""
    images = torch.as_tensor(x)
    module = source.module
    if images.dim() == 4:
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def some(start: int) -> Tensor:
        with torch.no_grad():
            part = images[start : start + BATCH]
            if part.dim() == 4:
                part = part.to(memory_format=torch.channels_last)
            return module(part).flatten(1)

    starts = range(0, len(images), BATCH)
    with one_thread(), ThreadPoolExecutor(max(1, cores)) as threads:
        return torch.cat(list(threads.map(some, starts)))


def cached(
    source: Extractor,
    x: np.ndarray,
    *,
    folder: Path | None = None,
    cores: int = 1,
    tell: Tell | None = None,
) -> Tensor:
    """The features of x, from the folder (that of downloads unless given) as far as they are."""
    place = (folder or files.cache_folder() / "features") / fingerprint(source, x)
    place.mkdir(parents=True, exist_ok=True)
    blocks: list[Tensor] = []
    for start in range(0, len(x), BLOCK):
        path = place / f"{start:08d}.safetensors"
        part = x[start : start + BLOCK]
        features = _read(path, len(part), source.width)
        if features is None:
            if tell is not None:
                tell(f"features of {source.name}: {start:,} of {len(x):,} samples")
            features = extract(source, part, cores)
            _write(path, features)
        blocks.append(features)
    return torch.cat(blocks)


def fingerprint(source: Extractor, x: np.ndarray) -> str:
    """Names the features: structure, weights and samples in one hash."""
    digest = hashlib.sha256(f"{FORM} {BATCH} {source.module!r} {x.dtype} {x.shape}".encode())
    for piece in _pieces(source.module):
        digest.update(piece)
    digest.update(np.ascontiguousarray(x).view(np.uint8).data)
    return digest.hexdigest()[:32]


def _pieces(module: nn.Module) -> Iterator[bytes]:
    for name, value in sorted(module.state_dict().items()):
        yield name.encode()
        yield value.detach().cpu().contiguous().numpy().tobytes()


def _write(path: Path, features: Tensor) -> None:
    from safetensors.torch import save

    replace_bytes(path, save({"features": features.contiguous()}))


def _read(path: Path, rows: int, width: int) -> Tensor | None:
    """What a file holds; None if there is none or it is not what it should be."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        features = load_file(path).get("features")
    except (OSError, SafetensorError):
        return None
    return features if features is not None and features.shape == (rows, width) else None


WEIGHTS = "mobilenet_v2-imagenet.safetensors"
"""What MobileNetV2's weights are called in the data folder."""
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


class Missing(InputError):
    """A file that this extractor needs is not there; others can go on without it."""


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


def model_text(text: str, data: Path | None) -> str:
    """The model with MobileNetV2's weights filled in from the data folder."""
    named = parse(text, "model")
    if named.name != "mobilenet-v2" or "weights" in named.options:
        return text
    folders = [place.folder for place in files.user_folders(data)]
    weights = next((f / WEIGHTS for f in folders if (f / WEIGHTS).is_file()), None)
    if weights is None:
        raise Missing(
            f"model '{text}': there is no {WEIGHTS} in the data folder; put torchvision's weights "
            "there, or write weights=FILE"
        )
    return str(Named(named.name, named.value, {**named.options, "weights": str(weights)}))


def factory(text: str, data_set: DataSet, data: Path | None) -> partial[nn.Module]:
    """Builds the model for the data set."""
    was = (data_set.mean, data_set.std) if data_set.mean else None
    make = models.factory(model_text(text, data), data_set.x.shape[1:], data_set.classes, was)
    assert isinstance(make, partial)
    return make


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
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
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
