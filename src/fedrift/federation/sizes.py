"""How many samples each client has: learnt as nodes come, remembered in the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrift import keeping
from fedrift.planning import Task
from fedrift.records import dump, read_file, replace_bytes
from fedrift.run_files import CLIENTS


@dataclass
class Sizes:
    """Keeps `clients.json` true when a node joins after the run has begun."""

    folder: Path | None
    sizes: np.ndarray
    """Filled in by the roster."""
    _written: Sequence[int] = field(default_factory=list[int])

    def recall(self) -> None:
        """What an earlier start of the run knew about clients that are not here now."""
        known: Any = None if self.folder is None else (read_file(self.folder / CLIENTS) or {})
        known = known.get("sizes") if isinstance(known, dict) else None
        if not isinstance(known, list) or len(known) != len(self.sizes):
            return
        if all(type(n) is int and n >= 0 for n in known):
            self._written = known
            self.sizes[:] = np.where(self.sizes > 0, self.sizes, known)

    def remember(self, task: Task) -> None:
        """Write them down if somebody new has come."""
        now = self.sizes.tolist()
        if self.folder is None or now == self._written or not (self.folder / CLIENTS).exists():
            return
        text = dump(keeping.clients(task.split, task.problem.classes)) + "\n"
        replace_bytes(self.folder / CLIENTS, text.encode())
        self._written = now
