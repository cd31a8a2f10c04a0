"""Damaged and hostile files of every format: one sentence that names the file, nothing else."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedrift.data import files
from fedrift.data.files import read_at_most
from fedrift.data.samples import Samples
from fedrift.data.sources import bundled, cifar, mnist
from fedrift.errors import InputError
from tests.support.product import load_data
from tests.support.small_files import (
    NOBODY,
    SMALL,
    Families,
    isolate,
    small_cifar,
    small_families,
    write_idx,
    write_strips,
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Families:
    return small_families(monkeypatch)


def test_a_header_that_claims_terabytes_is_refused(families: Families, tmp_path: Path):
    write_idx(tmp_path / "d", 0, packed=False)
    file = tmp_path / "d" / "train-images-idx3-ubyte"
    body = file.read_bytes()
    file.write_bytes(body[:4] + b"\xff" * 12 + body[16:])
    with pytest.raises(InputError, match="begins with 00000803ffffffff"):
        mnist.load(families[0], NOBODY, tmp_path / "d")


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(InputError, match=r"bomb.gz' is damaged: it holds more than the 1000 bytes"):
        read_at_most(tmp_path / "bomb.gz", 1000)


def test_an_archive_bomb_is_not_unpacked(tmp_path: Path):
    small = small_cifar(tmp_path / "d", cifar.CIFAR10, 1)
    with tarfile.open(tmp_path / "d" / "tar" / small.archive, "w:gz") as tar:
        big = tarfile.TarInfo("zeros")
        big.size = 50_000_000
        tar.addfile(big, io.BytesIO(bytes(big.size)))
    with pytest.raises(InputError, match="unpacks to far more than it should"):
        cifar.load(small, NOBODY, tmp_path / "d" / "tar")


def test_an_archive_may_not_lead_outside(tmp_path: Path):
    small = small_cifar(tmp_path / "d", cifar.CIFAR10, 1)
    with tarfile.open(tmp_path / "d" / "tar" / small.archive, "w:gz") as tar:
        link = tarfile.TarInfo(f"{small.folder}/{small.train[0].file}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(InputError, match="damaged"):
        cifar.load(small, NOBODY, tmp_path / "d" / "tar")


def lying(path: Path, header: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        text = header.ljust(118) + b"\n"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return path


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }",
        b"{'descr': 'S0', 'fortran_order': False, 'shape': (1000000000000,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': ('a',), }",
        b"((((((((((((((((((((((",
        b"{'descr': ",
    ],
)
def test_npz_headers_are_not_believed(tmp_path: Path, header: bytes):
    with pytest.raises(InputError, match=r"own\.npz"):
        files.read_npz(lying(tmp_path / "own.npz", header), ["x"])


def test_npz_sizes_are_not_believed(tmp_path: Path):
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.zeros(1000))
    data = path.read_bytes()
    size = (8 * 1000 + 128).to_bytes(4, "little")
    assert data.count(size) == 2
    path.write_bytes(data.replace(size, (1 << 31).to_bytes(4, "little")))
    with pytest.raises(InputError, match=r"array 'x' claims 2147483648 bytes"):
        files.read_npz(path, ["x"])
    lying(path, b"{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", zipfile.ZIP_LZMA)
    with pytest.raises(InputError, match="packed in a way numpy does not use"):
        files.read_npz(path, ["x"])


def damages(data: bytes) -> Iterator[bytes]:
    """Cut short, grown, garbled at random places, replaced."""
    random = np.random.default_rng(0)
    for length in (0, 1, 7, len(data) // 3, len(data) - 9, len(data) - 1):
        yield data[:length]
    for seed in range(25):
        garbled = bytearray(data)
        # Headers are where readers trip, so half of the damage goes there.
        reach = len(data) if seed % 2 else min(len(data), 200)
        for at in random.integers(0, reach, 1 + seed % 4):
            garbled[at] ^= int(random.integers(1, 256))
        yield bytes(garbled)
    yield random.bytes(len(data))
    yield data + data


def survives(file: Path, read: Callable[[], Samples]) -> None:
    """Every damage is refused in one sentence that names the file, or has changed nothing."""
    whole = read()
    original, refusals = file.read_bytes(), 0
    for damage in damages(original):
        file.write_bytes(damage)
        try:
            found = read()
        except InputError as problem:
            refusals += 1
            assert file.name in str(problem) and "\n" not in str(problem)
        else:
            assert np.array_equal(found.x, whole.x) and np.array_equal(found.y, whole.y)
    file.write_bytes(original)
    assert refusals > 20


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", list(SMALL))
def test_damaged_idx(families: Families, tmp_path: Path, name: str, packed: bool):
    folder = write_idx(tmp_path / "d", 0, packed)
    file = folder / (f"{name}.gz" if packed else name)
    survives(file, lambda: mnist.load(families[0], NOBODY, folder))


@pytest.mark.parametrize("form", ["strips", "bin", "tar"])
def test_damaged_cifar(tmp_path: Path, form: str):
    small = small_cifar(tmp_path / "d", cifar.CIFAR10, 1)
    folder = tmp_path / "d" / form
    file = {
        "strips": folder / "cifar10-train.npz",
        "bin": folder / small.folder / small.train[0].file,
        "tar": folder / small.archive,
    }[form]
    survives(file, lambda: cifar.load(small, NOBODY, folder))


def test_another_pixel_or_label_is_noticed(tmp_path: Path):
    small = small_cifar(tmp_path / "d", cifar.CIFAR10, 1)
    folder, part = tmp_path / "d" / "strips", small.strips[0]
    x, y = cifar.read_strips(folder / part.file, part)
    x = x.transpose(0, 2, 3, 1).copy()
    x[3, 2, 1, 0] ^= 1
    write_strips(folder / part.file, x, y, shuffle=False)
    with pytest.raises(InputError, match=r"cifar10-train.npz.*its images are not"):
        cifar.load(small, NOBODY, folder)
    x[3, 2, 1, 0] ^= 1
    write_strips(folder / part.file, x, y[::-1].copy(), shuffle=False)
    with pytest.raises(InputError, match=r"cifar10-train.npz.*its labels are not"):
        cifar.load(small, NOBODY, folder)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz(tmp_path: Path, save: Callable[..., None]):
    file = tmp_path / "own.npz"
    x = np.random.default_rng(1).random((30, 4), np.float32)
    save(file, x=x, y=np.arange(30) % 3, x_test=x, y_test=np.arange(30) % 3)

    def read() -> Samples:
        data = load_data(f"npz:{file}")
        return Samples(data.x, data.y, data.class_names)

    survives(file, read)


def test_damaged_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = bundled._inside("sklearn", "datasets/data/digits.csv.gz", "scikit-learn")
    file = tmp_path / "digits.csv.gz"
    file.write_bytes(source.read_bytes())
    monkeypatch.setattr(bundled, "_inside", lambda *_: file)
    survives(file, lambda: bundled.digits(NOBODY, None))
    for text in (b"", b"1,2,3", b"a,b\n", b"300," * 116805, b"\xff\xfe"):
        file.write_bytes(gzip.compress(text))
        with pytest.raises(InputError, match=r"digits\.csv\.gz"):
            bundled.digits(NOBODY, None)
