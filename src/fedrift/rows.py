"""A client's state as a row of bytes: its layout, and the file of rows that all processes share."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.messages import Packed, hints, pack, unpack
from fedrift.shared import DTYPES, Ref, aligned, name_of

PAGE = 512  # words that are summed into one


@dataclass(frozen=True)
class RowLayout:
    """Where the leaves of one client's state stand in its row."""

    cls: type
    leaves: tuple[tuple[str, Ref | str], ...]
    """Path → place of a tensor, or the kind of a number; lengths of tuples are constants."""
    constants: tuple[tuple[str, int], ...]
    nbytes: int

    @staticmethod
    def of(example: Any, w: Tensor) -> RowLayout:
        """The layout of a state like this one; an absent vector gets room for the parameters."""
        packed = pack(example)
        constants = tuple((p, v) for p, v in packed.items() if p.endswith("#"))
        plain = [(p, v) for p, v in packed.items() if not p.endswith("#")]
        end = aligned(len(plain))  # one byte per leaf says whether it is there
        leaves: list[tuple[str, Ref | str]] = []
        for path, value in plain:
            if value is None:
                value = _stand_in(type(example), path, w)
            if isinstance(value, Tensor):
                leaves.append((path, Ref(end, name_of(value.dtype), tuple(value.shape))))
                end += aligned(value.nbytes)
            else:
                leaves.append((path, type(value).__name__))
                end += 8
                end = aligned(end)
        return RowLayout(type(example), tuple(leaves), constants, end)


def _stand_in(cls: type, path: str, w: Tensor) -> Any:
    hint = str(hints(cls).get(path))
    if "Tensor" in hint:
        return w
    for kind in (float, int, bool):
        if kind.__name__ in hint:
            return kind()
    raise TypeError(f"{cls.__name__}.{path}: a client state that starts as None must be a vector")


class Rows:
    """Rows of one layout in one file; every process may open it."""

    def __init__(self, descriptor: int, layout: RowLayout) -> None:
        self.descriptor, self.layout = descriptor, layout
        self._map: mmap.mmap | None = None

    def _row(self, slot: int) -> np.ndarray:
        start, size = slot * self.layout.nbytes, self.layout.nbytes
        if self._map is None or start + size > len(self._map):
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return np.frombuffer(self._map, np.uint8, size, start)

    def read(self, slot: int) -> Any:
        """The state in a slot; its tensors are views of the file."""
        row = self._row(slot)
        packed: Packed = dict(self.layout.constants)
        for i, (path, place, piece) in enumerate(self._pieces(row)):
            if not row[i]:
                packed[path] = None
            elif isinstance(place, Ref):
                packed[path] = torch.from_numpy(piece).view(DTYPES[place.dtype]).view(place.shape)
            else:
                packed[path] = _NUMBERS[place](piece.view(np.float64)[0])
        return unpack(self.layout.cls, packed)

    def write(self, slot: int, state: Any) -> None:
        row, packed = self._row(slot), pack(state)
        if any(packed.get(path) != length for path, length in self.layout.constants):
            raise TypeError("a client state changed the length of a tuple: keep its shape fixed")
        for i, (path, place, piece) in enumerate(self._pieces(row)):
            value = packed[path]
            row[i] = value is not None
            if value is None:
                continue
            if isinstance(place, Ref):
                if tuple(value.shape) != place.shape or name_of(value.dtype) != place.dtype:
                    raise TypeError(f"client state '{path}' changed its shape or dtype")
                target = torch.from_numpy(piece).view(value.dtype).view(place.shape)
                target.copy_(value)
            else:
                piece.view(np.float64)[0] = value

    def checksum(self, slot: int) -> int:
        """Tells a damaged row from a good one: sums of pages, then their CRC, at memory speed."""
        words = self._row(slot).view(np.uint64)
        pages = np.add.reduceat(words, np.arange(0, len(words), PAGE))
        return zlib.crc32(pages.tobytes())

    def holds(self) -> int:
        """Slots for which the file has room."""
        return os.fstat(self.descriptor).st_size // self.layout.nbytes

    def _pieces(self, row: np.ndarray) -> Iterator[tuple[str, Ref | str, np.ndarray]]:
        end = aligned(len(self.layout.leaves))
        for path, place in self.layout.leaves:
            size = place.nbytes if isinstance(place, Ref) else 8
            yield path, place, row[end : end + size]
            end = aligned(end + size)


_NUMBERS: dict[str, Any] = {"int": int, "float": float, "bool": bool}
