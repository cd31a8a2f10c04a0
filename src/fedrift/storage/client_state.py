"""Client state between rounds: sparse memory-mapped rows, flipped together at the end of a round.

A visit writes its new row to a free slot and never touches the old one; the index changes when
the round is committed, for exactly the replies that were folded. Dropped, repeated, void and
killed visits therefore leave the old state, and the rows of the last two checkpoints stay as they
are: when the newer one turns out to be damaged, the older one is whole.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from fedrift.core.algorithm import Algorithm
from fedrift.core.codecs import Unsent
from fedrift.core.composition import client_start, is_host, parts, resolve, state_path
from fedrift.core.messages import Packed, hints, outline, pack, unpack
from fedrift.core.problem import Problem
from fedrift.storage.shared_memory import (
    DTYPES,
    Ref,
    aligned,
    anonymous_file,
    grow,
    name_of,
    view,
)

MOST_GROWTH = 64 << 20  # bytes by which a file grows at once
PAGE = 512  # words that are summed into one
_NUMBERS: dict[str, Any] = {"int": int, "float": float, "bool": bool}


@dataclass(frozen=True)
class Number:
    """A number inside a row, and its kind."""

    offset: int
    kind: str

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + 8)


@dataclass(frozen=True)
class RowLayout:
    """Where the leaves of one client's state stand in its row."""

    like: Any
    """A state of this kind, without values."""
    leaves: tuple[tuple[str, Ref | Number], ...]
    """Path → place of a tensor or number; lengths of tuples are constants."""
    constants: tuple[tuple[str, int], ...]
    nbytes: int

    @staticmethod
    def of(example: Any, w: Tensor, inner: Tensor | None = None) -> RowLayout:
        """The layout of a state like this one; an absent vector gets room for the parameters, in
        the state of an algorithm inside for `inner`."""
        packed, prefix = pack(example), "inner." if isinstance(example, Unsent) else ""
        constants = tuple((p, v) for p, v in packed.items() if p.endswith("#"))
        plain = [(p, v) for p, v in packed.items() if not p.endswith("#")]
        end = aligned(len(plain))  # one byte per leaf says whether it is there
        leaves: list[tuple[str, Ref | Number]] = []
        for path, value in plain:
            if value is None:
                is_inner = inner is not None and path.startswith(f"{prefix}inner.")
                value = _stand_in(example, path, inner if is_inner else w)
            if isinstance(value, Tensor):
                leaves.append((path, Ref(end, name_of(value.dtype), tuple(value.shape))))
                end += aligned(value.nbytes)
            else:
                leaves.append((path, Number(end, type(value).__name__)))
                end += aligned(8)
        return RowLayout(outline(example), tuple(leaves), constants, end)


def _stand_in(state: Any, path: str, w: Tensor | None) -> Any:
    *above, name = path.split(".")
    for part in above:
        state = getattr(state, part)
    cls = type(state)
    hint = str(hints(cls).get(name))
    if "Tensor" in hint:
        return w
    for kind in (float, int, bool):
        if kind.__name__ in hint:
            return kind()
    if hint == str(Any):  # of an algorithm inside that keeps nothing
        return 0
    raise TypeError(f"{cls.__name__}.{path}: a client state that starts as None must be a vector")


def kept_states(
    root: Algorithm[Any, Any], problem: Problem
) -> Iterator[tuple[str, Any, RowLayout | None]]:
    """Path of an algorithm, what its clients begin with, and its rows; None if nothing is kept."""
    for path, _ in parts(root):
        if state_path(root, path) != path:  # it stands in that of the wrapper around it
            continue
        node, view = resolve(root, problem, path)
        example = client_start(root, problem, path)
        if example is None:
            yield path, None, None
            continue
        inside = node.view("inner", view).w0 if is_host(node) else None
        yield path, example, RowLayout.of(example, view.w0, inside)


class StateRows:
    """Rows of one layout in one file; every process may open it."""

    def __init__(self, descriptor: int, layout: RowLayout, writes: bool = True) -> None:
        self.descriptor, self.layout = descriptor, layout
        self._access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_COPY
        self._map: mmap.mmap | None = None

    def _row(self, slot: int) -> np.ndarray:
        start, size = slot * self.layout.nbytes, self.layout.nbytes
        if self._map is None or start + size > len(self._map):
            size_now = os.fstat(self.descriptor).st_size
            self._map = mmap.mmap(self.descriptor, size_now, access=self._access)
        return np.frombuffer(self._map, np.uint8, size, start)

    def _tensor(self, slot: int, ref: Ref) -> Tensor:
        """A view of a tensor of the row in a slot, which is mapped."""
        return view(self._map, ref, slot * self.layout.nbytes)

    def read(self, slot: int) -> Any:
        """The state in a slot; its tensors are views of the file."""
        row = self._row(slot)
        packed: Packed = dict(self.layout.constants)
        for i, (path, place) in enumerate(self.layout.leaves):
            if not row[i]:
                packed[path] = None
            elif isinstance(place, Ref):
                packed[path] = self._tensor(slot, place)
            else:
                packed[path] = _NUMBERS[place.kind](row[place.place].view(np.float64)[0])
        return unpack(type(self.layout.like), packed, self.layout.like)

    def write(self, slot: int, state: Any) -> None:
        row, packed = self._row(slot), pack(state)
        if any(packed.get(path) != length for path, length in self.layout.constants):
            raise TypeError("a client state changed the length of a tuple: keep its shape fixed")
        for i, (path, place) in enumerate(self.layout.leaves):
            value = packed[path]
            row[i] = value is not None
            if value is None:
                continue
            if isinstance(place, Ref):
                if tuple(value.shape) != place.shape or value.dtype != DTYPES[place.dtype]:
                    raise TypeError(f"client state '{path}' changed its shape or dtype")
                self._tensor(slot, place).copy_(value)
            else:
                row[place.place].view(np.float64)[0] = value

    def checksum(self, slot: int) -> int:
        """Tells a damaged row from a good one: sums of pages, then their CRC, at memory speed."""
        words = self._row(slot).view(np.uint64)
        pages = np.add.reduceat(words, np.arange(0, len(words), PAGE))
        return zlib.crc32(pages.tobytes())

    def holds(self) -> int:
        """Slots for which the file has room."""
        return os.fstat(self.descriptor).st_size // self.layout.nbytes


class Table:
    """The states of one algorithm's clients: which slot is whose, and which are free."""

    def __init__(
        self,
        layout: RowLayout,
        population: int,
        file: Path | None,
        keeps: bool,
        writes: bool = True,
    ) -> None:
        if file is None:
            descriptor = anonymous_file(folder=tempfile.gettempdir())
        elif not writes:
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.rows = StateRows(descriptor, layout, writes)
        self.index = np.full(population, -1, dtype=np.int64)
        self.sums = np.zeros(population, dtype=np.int64)
        """Checksums of the rows, as of the last checkpoint."""
        self.high = 0
        self._keeps = keeps
        self._free: list[int] = []
        self._points: list[np.ndarray] = []
        """The index of each of the last two checkpoints."""
        self._in_checkpoint = np.zeros(0, dtype=bool)
        """Slots that a checkpoint refers to."""
        self._pending: dict[int, int] = {}

    def slot(self, client: int) -> int:
        """Where the client's state is now, −1 if it has none yet."""
        return self._pending.get(client, int(self.index[client]))

    def reserve(self) -> int:
        """A free slot for a new row."""
        if self._free:
            return self._free.pop()
        if self.high >= self.rows.holds():
            more = max(1, min(self.high, 64, MOST_GROWTH // self.rows.layout.nbytes))
            grow(self.rows.descriptor, (self.high + more) * self.rows.layout.nbytes)
        self.high += 1
        return self.high - 1

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def keep(self, client: int, slot: int) -> None:
        """The row just written becomes the client's state when the round is committed."""
        if client in self._pending:
            self._free.append(self._pending[client])
        self._pending[client] = slot

    def drop(self, client: int) -> None:
        """Its reply was dropped: what an earlier exchange of the round wrote is void too."""
        if client in self._pending:
            self._free.append(self._pending.pop(client))

    def commit(self) -> None:
        for client, slot in self._pending.items():
            old = int(self.index[client])
            if old >= 0 and not (old < len(self._in_checkpoint) and self._in_checkpoint[old]):
                self._free.append(old)
            self.index[client] = slot
        self._pending.clear()

    def discard(self) -> None:
        self._free.extend(self._pending.values())
        self._pending.clear()

    def sync(self) -> None:
        """Bring the rows to the disk, and the checksums of those that changed up to date."""
        last = self._points[-1] if self._points else np.full_like(self.index, -1)
        for client in np.flatnonzero(self.index != last):
            self.sums[client] = self.rows.checksum(int(self.index[client]))
        os.fsync(self.rows.descriptor)

    def saved(self) -> None:
        """A checkpoint was written: rows that only the one before the last needed are free."""
        if not self._keeps:
            return
        self._points = [*self._points, self.index.copy()][-2:]
        in_checkpoint = np.zeros(self.high, dtype=bool)
        for index in self._points:
            in_checkpoint[index[index >= 0]] = True
        before = len(self._in_checkpoint)
        self._free.extend(np.flatnonzero(self._in_checkpoint & ~in_checkpoint[:before]).tolist())
        self._in_checkpoint = in_checkpoint

    def check(self, index: np.ndarray, sums: np.ndarray) -> None:
        """ValueError if the rows of a checkpoint are not all there and whole."""
        if index.shape != self.index.shape or sums.shape != index.shape or index.min() < -1:
            raise ValueError("its clients are not those of the run")
        if index.dtype != np.int64 or sums.dtype != np.int64:
            raise ValueError("its rows are not numbered")
        used = index[index >= 0]
        if len(used) and (used.max() >= self.rows.holds() or len(np.unique(used)) < len(used)):
            raise ValueError("rows of client state are missing")
        for client in np.flatnonzero(index >= 0):
            if self.rows.checksum(int(index[client])) != sums[client]:
                raise ValueError(f"the state of client {client} is damaged")

    def restore(self, index: np.ndarray, sums: np.ndarray) -> None:
        """Take up the index of a checkpoint; every other slot is free."""
        used = index[index >= 0]
        self.index[:], self.sums[:] = index, sums
        self.high = int(used.max()) + 1 if len(used) else 0
        free = np.ones(self.high, dtype=bool)
        free[used] = False
        self._free = np.flatnonzero(free).tolist()
        self._pending.clear()
        self._points, self._in_checkpoint = [], np.zeros(0, dtype=bool)
        self.saved()

    def close(self) -> None:
        os.close(self.rows.descriptor)


class States(Protocol):
    """Client states as the engine handles them, wherever they lie."""

    @property
    def tables(self) -> Mapping[str, Any]: ...

    scratch: str
    """Where what does not fit into memory goes."""

    def row_bytes(self) -> int: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...
    def sync(self) -> None: ...
    def saved(self) -> None: ...
    def restore(self, rows: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None: ...
    def close(self) -> None: ...


class Committable(Protocol):
    """A table whose changes count from the end of a round on."""

    def commit(self) -> None: ...
    def discard(self) -> None: ...
    def saved(self) -> None: ...


T = TypeVar("T", bound=Committable)


class Tables(Generic[T]):
    """The tables of one run, which change together."""

    def __init__(self) -> None:
        self.tables: dict[str, T] = {}

    def commit(self) -> None:
        for table in self.tables.values():
            table.commit()

    def discard(self) -> None:
        for table in self.tables.values():
            table.discard()

    def saved(self) -> None:
        for table in self.tables.values():
            table.saved()


class Store(Tables[Table]):
    """One table for each algorithm (the root, what it wraps) whose clients keep a state."""

    def __init__(
        self,
        root: Algorithm[Any, Any],
        problem: Problem,
        folder: Path | None = None,
        writes: bool = True,
    ) -> None:
        super().__init__()
        self.scratch = tempfile.gettempdir() if folder is None else str(folder)
        self.initial: dict[str, Any] = {}
        for path, example, layout in kept_states(root, problem):
            self.initial[path] = example
            if layout is None:
                continue
            file = folder / f"{path or 'root'}.rows" if folder is not None else None
            keeps = folder is not None
            self.tables[path] = Table(layout, problem.population, file, keeps, writes)

    def read(self, path: str, client: int) -> Any:
        table = self.tables.get(path)
        slot = table.slot(client) if table else -1
        return table.rows.read(slot) if table and slot >= 0 else self.initial[path]

    def keep(self, path: str, client: int, state: Any) -> None:
        """Write a new state; it counts when the round is committed."""
        table = self.tables.get(path)
        if table is not None:
            slot = table.reserve()
            table.rows.write(slot, state)
            table.keep(client, slot)

    def drop(self, path: str, client: int) -> None:
        """The reply was dropped, and with it what the client wrote in this round."""
        table = self.tables.get(path)
        if table is not None:
            table.drop(client)

    def row_bytes(self) -> int:
        """Bytes one client's state takes."""
        return sum(table.rows.layout.nbytes for table in self.tables.values())

    def sync(self) -> None:
        for table in self.tables.values():
            table.sync()

    def check(self, rows: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """ValueError if a checkpoint's rows are not all there and whole."""
        if set(rows) != set(self.tables) or set(sums) != set(rows):
            raise ValueError("its client state is that of another algorithm")
        for path, table in self.tables.items():
            table.check(rows[path], sums[path])

    def restore(self, rows: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Take up a checkpoint; ValueError says what does not fit."""
        self.check(rows, sums)
        for path, table in self.tables.items():
            table.restore(rows[path], sums[path])

    def close(self) -> None:
        for table in self.tables.values():
            table.close()
