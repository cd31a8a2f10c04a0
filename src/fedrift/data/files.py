"""Reading files nobody vouches for: bounded in size, checked by hash, never unpickled."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from fedrift.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12 on

# What one file may unpack to; data is held in memory, so more is a mistake or an attack.
LARGEST = 16 << 30
UNREADABLE = (OSError, EOFError, zlib.error, ValueError)


def existing(text: str, field: str, *, folder: bool = False) -> Path:
    """The path a user gave, or an error that names it."""
    path = Path(os.path.expanduser(text))
    # os.path answers False where pathlib raises: no permission, a name too long.
    if not (os.path.isdir(path) if folder else os.path.isfile(path)):
        what = "folder" if folder else "file"
        raise InputError(f"{field} '{text}' is not a {what}; give an existing one")
    return path


def at_most(path: Path, size: int) -> bytes:
    """The bytes of a file, unpacked if it is .gz; more than `size` are never produced."""
    try:
        with _opened(path) as source:
            data = source.read(size + 1)
    except UNREADABLE as problem:
        raise damaged(path, reason(problem)) from problem
    if len(data) > size:
        raise damaged(path, f"it holds more than the {size} bytes expected")
    return data


def exactly(path: Path, size: int) -> bytes:
    """The bytes of a file that must unpack to `size` of them."""
    data = at_most(path, size)
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
