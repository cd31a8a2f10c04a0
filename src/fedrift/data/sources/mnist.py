"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017), from their idx files.

Both bear the same file names, so the hash of the unpacked bytes says which one a file is of.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrift.data import files
from fedrift.data.files import Unreachable, damaged, read_exactly, sha256
from fedrift.data.samples import Samples
from fedrift.errors import InputError
from fedrift.grammar import Named

SIDE = 28
SHAPES = {
    "train-images-idx3-ubyte": (60_000, SIDE, SIDE),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, SIDE, SIDE),
    "t10k-labels-idx1-ubyte": (10_000,),
}
SMALLEST = "t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class Family:
    """One of the two: where its files lie, and what they must be."""

    name: str
    title: str
    subfolders: tuple[str, ...]
    urls: tuple[str, ...]
    sha256: tuple[str, ...]  # of the unpacked files, in the order of SHAPES
    md5: tuple[str, ...]  # of the published .gz files
    class_names: tuple[str, ...]
    mean: float
    std: float
    system: tuple[Path, ...] = ()


MNIST = Family(
    name="mnist",
    title="MNIST",
    subfolders=("mnist", "MNIST/raw", ""),
    urls=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    sha256=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    class_names=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
)
FASHION = Family(
    name="fashion-mnist",
    title="Fashion-MNIST",
    subfolders=("fashion-mnist", "FashionMNIST/raw", ""),
    urls=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    sha256=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    mean=0.2860,
    std=0.3530,
    system=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
)
FAMILIES = (MNIST, FASHION)


def load(family: Family, _: Named, data_dir: Path | None) -> Samples:
    """The family's samples from the first place that has its files, else downloaded."""
    notes: list[str] = []
    if (paths := _find(family, data_dir, notes)) is not None:
        return _read(paths, family)
    try:
        return _read(_download(family), family)
    except Unreachable as why:
        named = ", ".join(f"{name}[.gz]" for name in SHAPES)
        raise files.not_found(family.name, named, data_dir, notes, str(why)) from why


def source_files(family: Family, _: Named, data_dir: Path | None) -> Sequence[Path] | None:
    """The files that `load` reads; None if they would be downloaded."""
    paths = _find(family, data_dir, [])
    return None if paths is None else tuple(paths.values())


def _find(family: Family, data_dir: Path | None, notes: list[str]) -> dict[str, Path] | None:
    for place in files.data_folders(data_dir, family.system):
        for folder in family.subfolders:
            paths = _find_in(place.folder / folder, notes)
            if paths is not None and _belongs(paths[SMALLEST], family, notes):
                return paths
    return None


def _find_in(folder: Path, notes: list[str]) -> dict[str, Path] | None:
    """The four files, unpacked or not; some but not all of them is worth a note."""
    paths: dict[str, Path] = {}
    for name in SHAPES:
        dotted = name.replace("-idx", ".idx")  # as some archives of the web spell it
        for spelling in (name, dotted, f"{name}.gz", f"{dotted}.gz"):
            if os.path.isfile(folder / spelling):
                paths[name] = folder / spelling
                break
    missing = [name for name in SHAPES if name not in paths]
    if paths and missing:
        notes.append(f"'{folder}' lacks {', '.join(missing)}")
    return None if missing else paths


def _belongs(labels: Path, family: Family, notes: list[str]) -> bool:
    """Whether a folder is of this family: a folder of several data sets may hold the other one
    under these names, so the search goes on."""
    owner = _owner(_unpack(labels, SMALLEST), SMALLEST)
    if owner is None or owner is family:
        return True
    notes.append(
        f"'{labels.parent}' holds {owner.title}, not {family.title}; ask for '{owner.name}', or "
        f"put {family.title}'s files into '{labels.parent / family.name}'"
    )
    return False


def _read(files: Mapping[str, Path], family: Family) -> Samples:
    x, y, x_test, y_test = (_array(files[name], name, family) for name in SHAPES)
    return Samples(
        x[:, None],
        y,
        family.class_names,
        x_test[:, None],
        y_test,
        top=255.0,
        mean=(family.mean,),
        std=(family.std,),
    )


def _array(path: Path, name: str, family: Family) -> np.ndarray:
    data = _unpack(path, name)
    owner = _owner(data, name)
    if owner is None:
        raise damaged(path, f"its content (sha256) is not that of {family.title}'s {name}")
    if owner is not family:
        raise InputError(f"'{path}' is a file of {owner.title}, not of {family.title}")
    return np.frombuffer(data, np.uint8, offset=len(_header(name))).reshape(SHAPES[name])


def _unpack(path: Path, name: str) -> bytes:
    header = _header(name)
    data = read_exactly(path, len(header) + math.prod(SHAPES[name]))
    if not data.startswith(header):
        raise damaged(path, f"it begins with {data[: len(header)].hex()}, not {header.hex()}")
    return data


def _header(name: str) -> bytes:
    """Two zero bytes, 8 for unsigned bytes, the number of axes, their lengths."""
    shape = SHAPES[name]
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


def _owner(data: bytes, name: str) -> Family | None:
    at, digest = list(SHAPES).index(name), sha256(data)
    return next((family for family in FAMILIES if family.sha256[at] == digest), None)


def _download(family: Family) -> dict[str, Path]:
    folder = files.cache_folder() / family.name
    return {
        name: files.download([f"{host}{name}.gz" for host in family.urls], md5, folder)
        for name, md5 in zip(SHAPES, family.md5, strict=True)
    }
