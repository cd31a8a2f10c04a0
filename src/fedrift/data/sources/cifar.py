"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the binary version, or npz files of WebP strips.

The pickled Python version is never read: unpickling a file runs whatever it says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedrift.data import files
from fedrift.data.files import Limited, Unreachable, damaged, read_exactly, reason, sha256
from fedrift.data.samples import Samples
from fedrift.errors import InputError
from fedrift.grammar import Named
from fedrift.rng import generator

# The binary version: one record per image, its labels, then 3,072 bytes channel by channel.

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


def read_folder(path: Path, train: Sequence[Batch], test: Sequence[Batch]) -> tuple[Half, Half]:
    """Images and labels of both halves from a folder of .bin files."""
    contents = {
        batch.file: read_exactly(path / batch.file, batch.size) for batch in (*train, *test)
    }
    return _half(path, contents, train), _half(path, contents, test)


def read_archive(
    path: Path, inside: str, train: Sequence[Batch], test: Sequence[Batch]
) -> tuple[Half, Half]:
    """The same from the .tar.gz; its members are read in memory, nothing is extracted."""
    wanted = {f"{inside}/{batch.file}": batch for batch in (*train, *test)}
    try:
        contents = _members(path, wanted)
    except Exception as problem:  # tarfile raises many kinds on garbled bytes
        raise damaged(path, f"it cannot be read as tar.gz ({reason(problem)})") from problem
    missing = [name for name, batch in wanted.items() if batch.file not in contents]
    if missing:
        raise damaged(path, f"it lacks {', '.join(missing)}")
    return _half(path / inside, contents, train), _half(path / inside, contents, test)


def _members(path: Path, wanted: Mapping[str, Batch]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    limit = SLACK + sum(batch.size for batch in wanted.values())
    with gzip.open(path) as packed:
        source = Limited(packed, limit)
        with tarfile.open(fileobj=source, mode="r|", bufsize=1 << 20) as tar:
            for member in tar:
                batch = wanted.get(member.name)
                if batch is not None and (data := tar.extractfile(member)) is not None:
                    contents[batch.file] = data.read(batch.size + 1)
    return contents


def _half(path: Path, contents: Mapping[str, bytes], batches: Sequence[Batch]) -> Half:
    records = np.concatenate([_records(path / b.file, contents[b.file], b) for b in batches])
    labels = batches[0].label_bytes
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1]


def _records(path: Path, data: bytes, batch: Batch) -> np.ndarray:
    if hashlib.sha1(data, usedforsecurity=False).hexdigest() != batch.sha1:
        raise damaged(path, "its content (sha1) is not the published one")
    return np.frombuffer(data, np.uint8).reshape(batch.count, -1)


# The npz version: lossless WebP strips, each 125 images one below the other, and the labels.

SIDE = 32
IN_STRIP = 125


@dataclass(frozen=True)
class Strips:
    """One npz file: its number of images, the sha256 of the decoded images and of the labels."""

    file: str
    count: int
    images: str
    labels: str


def read_strips(path: Path, strips: Strips) -> tuple[np.ndarray, np.ndarray]:
    """Images (N×3×32×32) and labels, checked after decoding."""
    arrays = files.read_npz(path, ("webp", "ends", "label"))
    for name in ("webp", "ends", "label"):
        if name not in arrays:
            raise damaged(path, f"it has no array '{name}'")
    y = arrays["label"]
    if y.dtype != np.uint8 or y.shape != (strips.count,) or sha256(y.tobytes()) != strips.labels:
        raise damaged(path, "its labels are not the published ones")
    x = _decode(path, arrays["webp"], arrays["ends"], strips.count)
    if sha256(x.data) != strips.images:
        raise damaged(path, "its images are not the published ones")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y


def _decode(path: Path, webp: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    number = count // IN_STRIP
    if webp.dtype != np.uint8 or webp.ndim != 1:
        raise damaged(path, f"'webp' is {webp.dtype} of shape {webp.shape}, not bytes")
    if ends.dtype.kind not in "iu" or ends.shape != (number,):
        raise damaged(path, f"'ends' has shape {ends.shape}; {number} strips are expected")
    edges = [0, *ends.tolist()]
    if sorted(edges) != edges or edges[-1] > len(webp):
        raise damaged(path, "the ends of its strips are not in order")
    x = np.empty((count, SIDE, SIDE, 3), np.uint8)

    def strip(at: int) -> None:
        picture = _picture(path, webp[edges[at] : edges[at + 1]].tobytes())
        x[at * IN_STRIP : (at + 1) * IN_STRIP] = picture.reshape(-1, SIDE, SIDE, 3)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(strip, range(number)))
    return x


def _picture(path: Path, data: bytes) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
            if (image.size, image.mode) != ((SIDE, SIDE * IN_STRIP), "RGB"):
                raise damaged(path, f"a strip is {image.mode} of {image.size} pixels")
            return np.asarray(image)
    except InputError:
        raise
    except Exception as problem:  # Pillow raises many kinds on garbled bytes
        raise damaged(path, f"a strip cannot be decoded ({reason(problem)})") from problem


# The two data sets, and where their samples come from.

HOST = "https://www.cs.toronto.edu/~kriz/"
TEN = "airplane automobile bird cat deer dog frog horse ship truck"
HUNDRED = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house
kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew
skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf
woman worm"""
Halves = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Cifar:
    """One of the two: its files in either form, and what they must be."""

    name: str
    subfolders: tuple[str, ...]
    folder: str  # inside the archive, and as people unpack it
    archive: str
    md5: str  # of the archive
    pickled: tuple[str, ...]  # the forms that are not read
    train: tuple[Batch, ...]
    test: tuple[Batch, ...]
    strips: tuple[Strips, Strips]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    # CIFAR-100's strips have lost the original order: both forms are put in one order of our own.
    reorder: bool = False


CIFAR10 = Cifar(
    name="cifar10",
    subfolders=("cifar10", "cifar-10", ""),
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    train=(
        Batch("data_batch_1.bin", 10_000, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        Batch("data_batch_2.bin", 10_000, "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        Batch("data_batch_3.bin", 10_000, "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        Batch("data_batch_4.bin", 10_000, "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        Batch("data_batch_5.bin", 10_000, "26e2849e66a845b7f1e4614ae70f4889ae604628"),
    ),
    test=(Batch("test_batch.bin", 10_000, "67eb016db431130d61cd03c7ad570b013799c88c"),),
    strips=(
        Strips(
            "cifar10-train.npz",
            50_000,
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        ),
        Strips(
            "cifar10-test.npz",
            10_000,
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
    ),
    class_names=tuple(TEN.split()),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
)
CIFAR100 = Cifar(
    name="cifar100",
    subfolders=("cifar100", "cifar-100", ""),
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
    train=(Batch("train.bin", 50_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e", label_bytes=2),),
    test=(Batch("test.bin", 10_000, "8fb6623e830365ff53cf14adec797474f5478006", label_bytes=2),),
    strips=(
        Strips(
            "cifar100-train.npz",
            50_000,
            "35d8ffd3808bdfcf8572d62fbe83d21c2572aef445a882fed9d4090f029b839f",
            "e034274031f53cbf5b89a85b248f571d6be7a8092e753133e88ca6f20f034ee9",
        ),
        Strips(
            "cifar100-test.npz",
            10_000,
            "433c645593131375c874e79d345f846a3fa29ee313906e38bdd886e5bd0abcec",
            "ebbd89737950305952a2d9e489f72c340c8f54610955a8a10e01fca64da5fd5c",
        ),
    ),
    class_names=tuple(HUNDRED.split()),
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    reorder=True,
)


@dataclass(frozen=True)
class Found:
    """Files of one form, and how they are read."""

    paths: tuple[Path, ...]
    read: Callable[[], Halves]


def load(cifar: Cifar, _: Named, data_dir: Path | None) -> Samples:
    """The samples from the first place that has them in a form we read, else downloaded."""
    notes: list[str] = []
    if (found := _find(cifar, data_dir, notes)) is not None:
        return _samples(cifar, found.read())
    try:
        url = HOST + cifar.archive
        archive = files.download([url], cifar.md5, files.cache_folder() / cifar.name)
    except Unreachable as why:
        strips = ", ".join(part.file for part in cifar.strips)
        named = f"{cifar.archive}, {cifar.folder}/{cifar.train[0].file} …, or {strips}"
        raise files.not_found(cifar.name, named, data_dir, notes, str(why)) from why
    return _samples(cifar, read_archive(archive, cifar.folder, cifar.train, cifar.test))


def source_files(cifar: Cifar, _: Named, data_dir: Path | None) -> Sequence[Path] | None:
    """The files that `load` reads; None if they would be downloaded."""
    found = _find(cifar, data_dir, [])
    return None if found is None else found.paths


def _find(cifar: Cifar, data_dir: Path | None, notes: list[str]) -> Found | None:
    for place in files.data_folders(data_dir):
        for folder in cifar.subfolders:
            if (found := _find_in(cifar, place.folder / folder, notes)) is not None:
                return found
    return None


def _find_in(cifar: Cifar, folder: Path, notes: list[str]) -> Found | None:
    """Train and test in one folder, in whichever form lies there; the fastest form first."""
    train, test = cifar.train, cifar.test
    names = [batch.file for batch in (*train, *test)]
    for unpacked in (folder / cifar.folder, folder):
        if _complete(unpacked, names, notes) and (
            unpacked.name == cifar.folder or _fits(unpacked, (*train, *test), notes)
        ):
            return Found(_in(unpacked, names), partial(read_folder, unpacked, train, test))
    if os.path.isfile(archive := folder / cifar.archive):
        return Found((archive,), partial(read_archive, archive, cifar.folder, train, test))
    names = [part.file for part in cifar.strips]
    if _complete(folder, names, notes):
        return Found(_in(folder, names), partial(_read_both_strips, folder, cifar.strips))
    for name in cifar.pickled:
        if os.path.exists(folder / name):
            notes.append(
                f"'{folder / name}' is the pickled Python version, which is never opened: take "
                f"the binary version, {cifar.archive}"
            )
    return None


def _in(folder: Path, names: Iterable[str]) -> tuple[Path, ...]:
    return tuple(folder / name for name in names)


def _read_both_strips(folder: Path, strips: tuple[Strips, Strips]) -> Halves:
    train, test = strips
    return read_strips(folder / train.file, train), read_strips(folder / test.file, test)


def _complete(folder: Path, names: Sequence[str], notes: list[str]) -> bool:
    """Whether all files are there; some but not all of them is worth a note."""
    missing = [file for file in names if not os.path.isfile(folder / file)]
    if missing and len(missing) < len(names):
        notes.append(f"'{folder}' lacks {', '.join(missing)}")
    return not missing


def _fits(folder: Path, batches: Sequence[Batch], notes: list[str]) -> bool:
    """Whether files of such common names as train.bin have the size of ours."""
    for batch in batches:
        size = os.path.getsize(folder / batch.file)
        if size != batch.size:
            notes.append(f"'{folder / batch.file}' has {size} bytes, not {batch.size}")
            return False
    return True


def _samples(cifar: Cifar, halves: Halves) -> Samples:
    (x, y), (x_test, y_test) = (_ordered(*half) for half in halves) if cifar.reorder else halves
    return Samples(
        x, y, cifar.class_names, x_test, y_test, top=255.0, mean=cifar.mean, std=cifar.std
    )


def _ordered(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same samples in an order that does not depend on the one they came in, yet is mixed."""
    record = np.concatenate([x.reshape(len(x), -1), y[:, None]], axis=1)
    by_content = np.argsort(record.view(f"V{record.shape[1]}").ravel(), kind="stable")
    order = by_content[np.argsort(generator(0, "cifar100").random(len(y)), kind="stable")]
    return x[order], y[order]
