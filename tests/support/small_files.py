"""The published file formats with a few samples each, and a world without network."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrift.data import files
from fedrift.data.samples import Samples
from fedrift.data.sources import cifar, mnist
from fedrift.data.sources.cifar import Batch, Strips
from fedrift.grammar import Named

NOBODY = Named("nobody")


def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no data folder, an empty cache."""

    def offline(*_: object) -> Path:
        raise files.Unreachable("no connection")

    monkeypatch.setattr(files, "download", offline)
    monkeypatch.delenv("FEDRIFT_DATA", raising=False)
    monkeypatch.setenv("FEDRIFT_CACHE", str(tmp_path / "cache"))


Families = tuple[mnist.Family, mnist.Family]
SMALL = {name: (20 if "train" in name else 10, *shape[1:]) for name, shape in mnist.SHAPES.items()}


def idx(name: str, seed: int) -> bytes:
    shape = SMALL[name]
    numbers = np.random.default_rng(seed).integers(0, 10, shape, dtype=np.uint8)
    return mnist._header(name) + numbers.tobytes()


def small_families(monkeypatch: pytest.MonkeyPatch) -> Families:
    monkeypatch.setattr(mnist, "SHAPES", SMALL)
    made = tuple(
        replace(
            family,
            sha256=tuple(hashlib.sha256(idx(name, seed)).hexdigest() for name in SMALL),
            system=(),
        )
        for seed, family in enumerate((mnist.MNIST, mnist.FASHION))
    )
    monkeypatch.setattr(mnist, "FAMILIES", made)
    return made[0], made[1]


def write_idx(folder: Path, seed: int, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SMALL:
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(name, seed)))
        else:
            (folder / name).write_bytes(idx(name, seed))
    return folder


def is_family(samples: Samples, seed: int) -> bool:
    return samples.y.tobytes() == idx("train-labels-idx1-ubyte", seed)[8:]


def webp(images: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(images.reshape(-1, 32, 3)).save(out, "WEBP", lossless=True)
    return out.getvalue()


def write_strips(path: Path, x: np.ndarray, y: np.ndarray, shuffle: bool) -> Strips:
    order = np.random.default_rng(9).permutation(len(y)) if shuffle else np.arange(len(y))
    x, y = x[order], y[order]
    packed = webp(x)
    np.savez(path, webp=np.frombuffer(packed, np.uint8), ends=np.array([len(packed)]), label=y)
    return Strips(
        path.name,
        len(y),
        hashlib.sha256(x.tobytes()).hexdigest(),
        hashlib.sha256(y.tobytes()).hexdigest(),
    )


def small_cifar(folder: Path, of: cifar.Cifar, labels: int) -> cifar.Cifar:
    """Writes 125 + 125 images as strips, as .bin files and as an archive, below `folder`."""
    random = np.random.default_rng(3)
    batches: list[tuple[Batch, ...]] = []
    strips: list[Strips] = []
    for name in ("strips", "bin", "tar"):
        (folder / name).mkdir(parents=True)
    (folder / "bin" / of.folder).mkdir()
    for half, file in (("train", of.train[0].file), ("test", of.test[0].file)):
        x = random.integers(0, 256, (125, 32, 32, 3), dtype=np.uint8)
        y = random.integers(0, 10, 125, dtype=np.uint8)
        x[7], y[7] = x[5], y[5] + 1  # the same picture twice, under two labels
        strips.append(
            write_strips(folder / "strips" / f"{of.name}-{half}.npz", x, y, shuffle=labels == 2)
        )
        columns = [np.full((125, labels - 1), 99, np.uint8), y[:, None]]
        records = np.hstack([*columns, x.transpose(0, 3, 1, 2).reshape(125, -1)])
        (folder / "bin" / of.folder / file).write_bytes(records.tobytes())
        sha1 = hashlib.sha1(records.tobytes()).hexdigest()
        batches.append((Batch(file, 125, sha1, labels),))
    with tarfile.open(folder / "tar" / of.archive, "w:gz") as tar:
        tar.add(folder / "bin" / of.folder, of.folder)
    return replace(of, train=batches[0], test=batches[1], strips=(strips[0], strips[1]))
