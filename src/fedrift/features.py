"""Features of a frozen extractor, computed once and kept: per extractor, data and transform.

The name under which they are kept is a hash of the extractor's structure and weights and of the
data, so that what has changed is computed anew. Files are written whole, a block of samples each:
an interrupted extraction goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.data import places
from fedrift.problem import define
from fedrift.records import replace_bytes
from fedrift.session import one_thread
from fedrift.streams import torch_seed

FORM = 1  # of the files; another number makes everything anew
BATCH = 16  # images at a time: more do not fit into a core's cache
BLOCK = 2048  # samples in a file
Tell = Callable[[str], None]


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
    place = (folder or places.cache() / "features") / fingerprint(source, x)
    place.mkdir(parents=True, exist_ok=True)
    blocks: list[Tensor] = []
    for start in range(0, len(x), BLOCK):
        path = place / f"{start:08d}.safetensors"
        part = x[start : start + BLOCK]
        held = _read(path, len(part), source.width)
        if held is None:
            if tell is not None:
                tell(f"features of {source.name}: {start:,} of {len(x):,} samples")
            held = extract(source, part, cores)
            _write(path, held)
        blocks.append(held)
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
        held = load_file(path).get("features")
    except (OSError, SafetensorError):
        return None
    return held if held is not None and held.shape == (rows, width) else None
