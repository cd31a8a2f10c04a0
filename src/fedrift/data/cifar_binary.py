"""CIFAR's binary version: one record per image, its labels, then 3,072 bytes channel by channel."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrift.data.files import Limited, damaged, exactly, reason

PIXELS = 3 * 32 * 32
SLACK = 1 << 20  # what an archive may hold besides the images: headers, names, a web page
Half = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """One .bin file: how many images it holds and its published sha1."""

    file: str
    count: int
    sha1: str
    label_bytes: int = 1  # CIFAR-100 has two, the coarse label first

    @property
    def size(self) -> int:
        return self.count * (self.label_bytes + PIXELS)


def folder(path: Path, train: Sequence[Batch], test: Sequence[Batch]) -> tuple[Half, Half]:
    """Images and labels of both halves from a folder of .bin files."""
    found = {batch.file: exactly(path / batch.file, batch.size) for batch in (*train, *test)}
    return _half(path, found, train), _half(path, found, test)


def archive(
    path: Path, inside: str, train: Sequence[Batch], test: Sequence[Batch]
) -> tuple[Half, Half]:
    """The same from the .tar.gz; its members are read in memory, nothing is extracted."""
    wanted = {f"{inside}/{batch.file}": batch for batch in (*train, *test)}
    try:
        found = _members(path, wanted)
    except Exception as problem:  # tarfile raises many kinds on garbled bytes
        raise damaged(path, f"it cannot be read as tar.gz ({reason(problem)})") from problem
    missing = [name for name, batch in wanted.items() if batch.file not in found]
    if missing:
        raise damaged(path, f"it lacks {', '.join(missing)}")
    return _half(path / inside, found, train), _half(path / inside, found, test)


def _members(path: Path, wanted: Mapping[str, Batch]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    limit = SLACK + sum(batch.size for batch in wanted.values())
    with gzip.open(path) as packed:
        source = Limited(packed, limit)
        with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as tar:
            for member in tar:
                batch = wanted.get(member.name)
                if batch is not None and (data := tar.extractfile(member)) is not None:
                    found[batch.file] = data.read(batch.size + 1)
    return found


def _half(path: Path, found: Mapping[str, bytes], batches: Sequence[Batch]) -> Half:
    records = np.concatenate([_records(path / b.file, found[b.file], b) for b in batches])
    labels = batches[0].label_bytes
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1]


def _records(path: Path, data: bytes, batch: Batch) -> np.ndarray:
    if hashlib.sha1(data, usedforsecurity=False).hexdigest() != batch.sha1:
        raise damaged(path, "its content (sha1) is not the published one")
    return np.frombuffer(data, np.uint8).reshape(batch.count, -1)
