"""Client states that stay at their nodes: the server knows only which version counts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence

import numpy as np

from fedrift.backends.visit import Visitor
from fedrift.store import Tables


class Versions:
    """Which version of its state each client holds: decided here, kept in files at the nodes."""

    def __init__(self, population: int) -> None:
        self.index = np.full(population, -1, dtype=np.int64)
        self.sums = np.zeros(population, dtype=np.int64)
        """Nodes look after their files themselves."""
        self.kept = self.before = self.index.copy()
        """Those of the last two checkpoints, which a killed server goes back to."""
        self._pending: dict[int, int] = {}

    def slot(self, client: int) -> int:
        return self._pending.get(client, int(self.index[client]))

    def keep(self, client: int, version: int) -> None:
        self._pending[client] = version

    def drop(self, client: int) -> None:
        self._pending.pop(client, None)

    def commit(self) -> None:
        for client, version in self._pending.items():
            self.index[client] = version
        self._pending.clear()

    def discard(self) -> None:
        self._pending.clear()

    def saved(self) -> None:
        self.kept, self.before = self.index.copy(), self.kept

    def restore(self, index: np.ndarray) -> None:
        self.index[:] = index
        self.kept = self.before = self.index.copy()
        self.discard()


class NodeStates(Tables[Versions]):
    """The server's side of client states that stay at their nodes."""

    def __init__(self, visitor: Visitor, paths: Sequence[str]) -> None:
        super().__init__()
        for path in paths:
            node, problem = visitor.owner(path)
            if node.client(problem) is not None:
                self.tables[path] = Versions(problem.population)

    scratch = tempfile.gettempdir()

    def row_bytes(self) -> int:
        return 0  # nothing of it lies here

    def sync(self) -> None:
        return None

    def restore(self, rows: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Take up a checkpoint; ValueError says what does not fit."""
        if set(rows) != set(self.tables):
            raise ValueError("its client state is that of another algorithm")
        for path, table in self.tables.items():
            if rows[path].shape != table.index.shape:
                raise ValueError("its clients are not those of the run")
            table.restore(rows[path])

    def close(self) -> None:
        return None
