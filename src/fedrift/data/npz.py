"""npz files: sizes and types are checked from the headers before anything is allocated."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedrift.data.files import LARGEST, damaged, reason
from fedrift.errors import InputError

# Deflate cannot pack tighter than about 1032 to 1: a header that claims more is lying.
TIGHTEST = 1040
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that the file holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = set(archive.namelist())
            wanted = [name for name in names if f"{name}.npy" in held]
            total = sum(archive.getinfo(f"{name}.npy").file_size for name in wanted)
            if total > LARGEST:
                raise damaged(path, f"it claims to unpack to {total} bytes")
            return {name: _array(path, archive, name) for name in wanted}
    except InputError:
        raise
    except Exception as problem:  # zipfile and numpy raise about a dozen kinds on garbled bytes
        raise damaged(path, f"it cannot be read as npz ({reason(problem)})") from problem


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
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
