"""Data as a frozen model sees them: `features:DATA`, what comes before its last layer, projected.

Features are computed once, in blocks that are kept: an interrupted computation goes on. Where files
alone decide the samples, their hash finds what was made of them before, and nothing is decoded.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import backends, models
from fedrift.config.models import DIMENSIONS, choose_model, extractor_text
from fedrift.core.isolation import one_thread
from fedrift.core.problem import define
from fedrift.data import datasets, files
from fedrift.data.checks import Targets
from fedrift.data.samples import DataSet
from fedrift.engine.feature_cache import (
    FORM,
    cache_folder,
    hash_of,
    origin_of,
    read,
    read_both,
    recalled,
    remember,
    write,
)
from fedrift.errors import InputError
from fedrift.grammar import Named, number, parse
from fedrift.rng import torch_seed

BATCH = 16  # images at a time: more do not fit into a core's cache
BLOCK = 2048  # samples in a file
WEIGHTS = "mobilenet_v2-imagenet.safetensors"
"""What MobileNetV2's weights are called in the data folder."""
Tell = Callable[[str], None]


def load(text: str, data_dir: Path | None = None, targets: Targets = "labels") -> DataSet:
    """Any data set by name; `features:DATA` is computed, or read where that was done before."""
    named = datasets.check(text)
    if named.name != datasets.FEATURES:
        return datasets.load(text, data_dir, targets)
    place, origin = cache_folder(), _origin(named, data_dir, targets)
    record = place / f"data-{hash_of(named, targets)}.safetensors"
    if origin is not None and (known := recalled(record, origin)) is not None:
        return known
    data, projection = _seen(named, data_dir, targets, place)
    # Files that changed while they were read are not known to be what was read.
    if origin is not None and origin == _origin(named, data_dir, targets):
        remember(record, origin, data, projection)
    return data


def _origin(named: Named, data_dir: Path | None, targets: Targets) -> str | None:
    """None where the reader's code or a service has a part in what comes out."""
    network = extractor_text(named)
    listed = datasets.source_files(datasets.seen_data(named), data_dir)
    if listed is None or choose_model(network).attribute is not None:
        return None
    network = with_weights(network, data_dir)
    weights = parse(network, "model").options.get("weights")
    more = [] if weights is None else [Path(weights).expanduser()]
    return origin_of((str(named), network, targets), [*listed, *more])


def _seen(
    named: Named, data_dir: Path | None, targets: Targets, place: Path
) -> tuple[DataSet, Path]:
    """The data set, and the file that its features are kept in."""
    source = datasets.load(datasets.seen_data(named), data_dir, targets)
    if source.generated is not None:
        raise InputError(
            f"data set '{named}': '{source.name}' is made on demand and cannot be seen"
        )
    network = extractor_text(named)
    make = factory(network, source, data_dir)
    seen_by = extractor(network, make, torch.from_numpy(source.x[:2]))
    dimensions = _dimensions(named, seen_by, source)
    x, x_test, path = projected(seen_by, source.x, source.x_test, dimensions, folder=place)
    name = f"features:{source.name}"
    return replace(source, name=name, x=x, x_test=x_test, mean=(), std=()), path


def _dimensions(named: Named, source: Extractor, data: DataSet) -> int | None:
    """None: all of them."""
    if (text := named.options.get("dim", DIMENSIONS)) == "all":
        return None
    field = f"data set '{named}': dim (or all)"
    most = min(source.width, len(data.x))
    usual = "dim" not in named.options
    return min(int(text), most) if usual else number(text, field, kind=int, low=1, high=most)


# The model.


class Missing(InputError):
    """A file that this extractor needs is not there; others can go on without it."""


@dataclass(frozen=True, eq=False)
class Extractor:
    """A module that turns samples into features, in evaluation mode."""

    name: str
    module: nn.Module
    width: int


def with_weights(text: str, data_dir: Path | None) -> str:
    """The model with MobileNetV2's weights filled in from the data folder."""
    named = parse(text, "model")
    if named.name != "mobilenet-v2" or "weights" in named.options:
        return text
    folders = [place.folder for place in files.user_folders(data_dir)]
    weights = next((f / WEIGHTS for f in folders if (f / WEIGHTS).is_file()), None)
    if weights is None:
        raise Missing(
            f"model '{text}': there is no {WEIGHTS} in the data folder; put torchvision's weights "
            "there, or write weights=FILE"
        )
    return str(Named(named.name, named.value, {**named.options, "weights": str(weights)}))


def factory(text: str, data: DataSet, data_dir: Path | None) -> partial[nn.Module]:
    """Builds the model for the data set."""
    was = (data.mean, data.std) if data.mean else None
    make = models.factory(with_weights(text, data_dir), data.x.shape[1:], data.classes, was)
    assert isinstance(make, partial)
    return make


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


# The features.


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
    name: str | None = None,
) -> Tensor:
    """The features of x, from the folder (that of downloads unless given) as far as they are; their
    `name` is their fingerprint, where it is known already."""
    place = (folder or cache_folder()) / (name or fingerprint(source, x))
    place.mkdir(parents=True, exist_ok=True)
    blocks: list[Tensor] = []
    computed, seconds = 0, 0.0
    for start in range(0, len(x), BLOCK):
        path = place / f"{start:08d}.safetensors"
        part = x[start : start + BLOCK]
        features = read(path, "features", (len(part), source.width))
        if features is None:
            if tell is not None:
                left = seconds / computed * (len(x) - start) if computed else None
                tell(f"features of {source.name}: {start:,} of {len(x):,} samples{_left(left)}")
            began = time.perf_counter()
            features = extract(source, part, cores)
            write(path, {"features": features})
            computed, seconds = computed + len(part), seconds + time.perf_counter() - began
        blocks.append(features)
    return torch.cat(blocks)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"


def say(words: str) -> None:
    """On the screen: one line that changes on a terminal, a line each elsewhere."""
    begin, end = ("\x1b[2K", "\r") if sys.stderr.isatty() else ("", "\n")
    print(f"{begin}{words}", end=end, file=sys.stderr, flush=True)


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


# Fewer dimensions: the directions in which the training features vary most.


def projected(
    source: Extractor,
    x: np.ndarray,
    x_test: np.ndarray,
    dimensions: int | None,
    *,
    folder: Path | None = None,
    tell: Tell = say,
) -> tuple[np.ndarray, np.ndarray, Path]:
    """Training and test features, centred, projected and divided by the overall deviation; and the
    file that holds both.

    Mean, directions and deviation are those of the training samples. Kept beside the features.
    """
    place = folder or cache_folder()
    names, width = [fingerprint(source, one) for one in (x, x_test)], dimensions or source.width
    path = place / f"projected-{hash_of(FORM, names, dimensions)}.safetensors"
    both = read_both(path, (len(x), len(x_test)), width)
    if both is None:
        raw, raw_test = (
            cached(source, v, folder=place, cores=backends.cores(), tell=tell, name=name)
            for name, v in zip(names, (x, x_test), strict=True)
        )
        tell(f"features of {source.name}: projecting {source.width} dimensions to {width}")
        train, test = _project(raw, raw_test, dimensions)
        write(path, {"train": train, "test": test})
        tell(f"features of {source.name}: done, kept in {place}")
        both = train.numpy(), test.numpy()
    return *both, path


@torch.no_grad()
def _project(train: Tensor, test: Tensor, dimensions: int | None) -> tuple[Tensor, Tensor]:
    """In float64 on one thread, so that the bits do not depend on the number of cores."""
    with one_thread():
        mean = torch.stack([block.double().sum(0) for block in train.split(BLOCK)]).sum(0)
        mean /= len(train)
        turn = torch.eye(len(mean), dtype=torch.float64)
        if dimensions is not None:
            turn = _directions(train, mean)[:, :dimensions]
        both = [
            torch.cat([(block.double() - mean) @ turn for block in x.split(BLOCK)])
            for x in (train, test)
        ]
        scale = both[0].std(correction=0).clamp_min(torch.finfo(torch.float32).tiny)
        return (both[0] / scale).float(), (both[1] / scale).float()


def _directions(train: Tensor, mean: Tensor) -> Tensor:
    """Principal directions as columns, strongest first; the largest entry of each is positive."""
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for block in train.split(BLOCK):
        centred = block.double() - mean
        covariance += centred.T @ centred
    turn = torch.linalg.eigh(covariance / len(train)).eigenvectors.flip(1)
    largest = turn.gather(0, turn.abs().argmax(0, keepdim=True))
    return turn * largest.sign()
