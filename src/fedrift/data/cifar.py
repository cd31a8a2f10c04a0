"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the binary version, or npz files of WebP strips.

The pickled Python version is never read: unpickling a file runs whatever it says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrift.data import cifar_binary, cifar_strips, places
from fedrift.data.cifar_binary import Batch
from fedrift.data.cifar_strips import Strips
from fedrift.data.places import Unreachable
from fedrift.data.samples import Samples
from fedrift.grammar import Named
from fedrift.streams import stream

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


def load(cifar: Cifar, _: Named, data_dir: Path | None) -> Samples:
    """The samples from the first place that has them in a form we read, else downloaded."""
    notes: list[str] = []
    for place in places.places(data_dir):
        for folder in cifar.subfolders:
            if (halves := _read(cifar, place.folder / folder, notes)) is not None:
                return _samples(cifar, halves)
    try:
        url = HOST + cifar.archive
        archive = places.fetch([url], cifar.md5, places.cache() / cifar.name)
    except Unreachable as why:
        strips = ", ".join(part.file for part in cifar.strips)
        files = f"{cifar.archive}, {cifar.folder}/{cifar.train[0].file} …, or {strips}"
        raise places.not_found(cifar.name, files, data_dir, notes, str(why)) from why
    return _samples(cifar, cifar_binary.archive(archive, cifar.folder, cifar.train, cifar.test))


def _read(cifar: Cifar, folder: Path, notes: list[str]) -> Halves | None:
    """Train and test from one folder, in whichever form lies there; the fastest form first."""
    train, test = cifar.train, cifar.test
    for unpacked in (folder / cifar.folder, folder):
        if _complete(unpacked, [batch.file for batch in (*train, *test)], notes) and (
            unpacked.name == cifar.folder or _fits(unpacked, (*train, *test), notes)
        ):
            return cifar_binary.folder(unpacked, train, test)
    if os.path.isfile(folder / cifar.archive):
        return cifar_binary.archive(folder / cifar.archive, cifar.folder, train, test)
    if _complete(folder, [part.file for part in cifar.strips], notes):
        first, second = (cifar_strips.read(folder / part.file, part) for part in cifar.strips)
        return first, second
    for name in cifar.pickled:
        if os.path.exists(folder / name):
            notes.append(
                f"'{folder / name}' is the pickled Python version, which is never opened: take "
                f"the binary version, {cifar.archive}"
            )
    return None


def _complete(folder: Path, files: Sequence[str], notes: list[str]) -> bool:
    """Whether all files are there; some but not all of them is worth a note."""
    missing = [file for file in files if not os.path.isfile(folder / file)]
    if missing and len(missing) < len(files):
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
    order = by_content[np.argsort(stream(0, "cifar100").random(len(y)), kind="stable")]
    return x[order], y[order]
