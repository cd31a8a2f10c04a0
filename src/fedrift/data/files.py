"""Data files: where they are looked for, how missing ones are fetched, how they are read.

Nobody vouches for their content: it is bounded in size, checked by hash, never unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fedrift.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer


# What one file may unpack to; data is held in memory, so more is a mistake or an attack.
LARGEST = 16 << 30
UNREADABLE = (OSError, EOFError, zlib.error, ValueError)


def existing_path(text: str, field: str, *, folder: bool = False) -> Path:
    """The path a user gave, or an error that names it."""
    path = Path(os.path.expanduser(text))
    # os.path answers False where pathlib raises: no permission, a name too long.
    if not (os.path.isdir(path) if folder else os.path.isfile(path)):
        what = "folder" if folder else "file"
        raise InputError(f"{field} '{text}' is not a {what}; give an existing one")
    return path


def read_at_most(path: Path, size: int) -> bytes:
    """The bytes of a file, unpacked if it is .gz; more than `size` are never produced."""
    try:
        with _opened(path) as source:
            data = source.read(size + 1)
    except UNREADABLE as problem:
        raise damaged(path, reason(problem)) from problem
    if len(data) > size:
        raise damaged(path, f"it holds more than the {size} bytes expected")
    return data


def read_exactly(path: Path, size: int) -> bytes:
    """The bytes of a file that must unpack to `size` of them."""
    data = read_at_most(path, size)
    if len(data) < size:
        raise damaged(path, f"it holds {len(data)} bytes instead of {size}")
    return data


def damaged(path: Path, why: str) -> InputError:
    """The error for a file that is not what its name promises."""
    return InputError(f"'{path}' is damaged: {why}; replace or remove the file")


def reason(problem: BaseException) -> str:
    """What a library said, as a part of one sentence: its first line, or the kind of error."""
    lines = str(problem).split("\n")
    return lines[0].strip()[:200] or type(problem).__name__


def sha256(data: bytes | memoryview) -> str:
    """The hash by which files are recognised."""
    return hashlib.sha256(data).hexdigest()


class Limited(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes, for archives that may be bombs."""

    def __init__(self, source: io.BufferedIOBase, limit: int) -> None:
        self.source = source
        self.left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        count = self.source.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise ValueError("it unpacks to far more than it should")
        return count


def _opened(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


# npz files: sizes and types are checked from the headers before anything is allocated.

# Deflate cannot pack tighter than about 1032 to 1: a header that claims more is lying.
TIGHTEST = 1040
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that the file holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = set(archive.namelist())
            wanted = [name for name in names if f"{name}.npy" in members]
            total = sum(archive.getinfo(f"{name}.npy").file_size for name in wanted)
            if total > LARGEST:
                raise damaged(path, f"it claims to unpack to {total} bytes")
            return {name: _read_array(path, archive, name) for name in wanted}
    except InputError:
        raise
    except Exception as problem:  # zipfile and numpy raise about a dozen kinds on garbled bytes
        raise damaged(path, f"it cannot be read as npz ({reason(problem)})") from problem


def _read_array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise damaged(path, f"array '{name}' is packed in a way numpy does not use")
    if member.file_size > TIGHTEST * (member.compress_size + 1):
        raise damaged(path, f"array '{name}' claims {member.file_size} bytes")
    with archive.open(member) as source:
        _check_header(path, name, source, member.file_size)
    with archive.open(member) as source:
        return npy.read_array(source, allow_pickle=False)


def _check_header(path: Path, name: str, source: IO[bytes], size: int) -> None:
    version = npy.read_magic(source)
    if version not in HEADERS:
        raise damaged(path, f"array '{name}' has npy version {version}")
    shape, _, dtype = HEADERS[version](source)
    if dtype.hasobject:
        raise InputError(f"'{path}': array '{name}' holds Python objects; store plain numbers")
    if dtype.itemsize < 1 or any(length < 0 for length in shape):
        raise damaged(path, f"array '{name}' claims shape {shape} of {dtype}")
    if math.prod(shape) * dtype.itemsize != size - source.tell():
        raise damaged(path, f"array '{name}' claims shape {shape}, which does not fit its bytes")


# Where data files are looked for, in order, and how missing ones are fetched.

CONNECT_SECONDS = 5
SILENCE_SECONDS = 30


class DataFolder(NamedTuple):
    """A folder and who named it."""

    folder: Path
    origin: str

    def __str__(self) -> str:
        return f"{self.origin} '{self.folder}'"


class Unreachable(Exception):
    """A download that did not work; says why."""


def user_folders(data_dir: Path | None) -> Iterator[DataFolder]:
    """The folders the user named: the argument, then the environment."""
    if data_dir is not None:
        yield DataFolder(existing_path(str(data_dir), "--data-dir", folder=True), "--data-dir")
    if text := os.environ.get("FEDRIFT_DATA"):
        yield DataFolder(existing_path(text, "FEDRIFT_DATA", folder=True), "FEDRIFT_DATA")


def data_folders(data_dir: Path | None, system: Sequence[Path] = ()) -> Iterator[DataFolder]:
    """All folders to look in, in order; those after the user's own may not exist."""
    yield from user_folders(data_dir)
    yield from (DataFolder(folder, "the system's") for folder in system)
    yield DataFolder(cache_folder(), "the cache")


def cache_folder() -> Path:
    """Where downloads are kept."""
    if text := os.environ.get("FEDRIFT_CACHE"):
        return Path(os.path.expanduser(text))
    import pooch

    return Path(pooch.os_cache("fedrift"))


def download(urls: Sequence[str], md5: str, folder: Path) -> Path:
    """Downloads one file into `folder` from the first host that has it; its hash must fit."""
    import pooch

    timeout = (CONNECT_SECONDS, SILENCE_SECONDS)
    problems: list[str] = []
    for url in urls:
        load: Any = pooch.HTTPDownloader(timeout=timeout)
        name = url.rpartition("/")[2]
        try:
            return Path(pooch.retrieve(url, f"md5:{md5}", name, folder, downloader=load))
        except Exception as problem:  # no network, a changed file, a full disk: all end here
            problems.append(f"{url}: {type(problem).__name__}")
    raise Unreachable(", ".join(problems))


def not_found(
    name: str, files: str, data_dir: Path | None, notes: Sequence[str], why: str
) -> InputError:
    """The one error for data that is neither here nor to be had; names both ways out."""
    looked = " and ".join(map(str, user_folders(data_dir)))
    where = f" in {looked}" if looked else ""
    noted = "".join(f"; {note}" for note in notes)
    return InputError(
        f"data set '{name}' was not found: looked for {files}{where}{noted}; the download failed "
        f"({why}); give a folder that holds them with --data-dir or FEDRIFT_DATA, or go online"
    )
