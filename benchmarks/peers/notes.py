"""What a peer writes down while it works: when each round ended, and the loss after it."""

from __future__ import annotations

import json
import time
from pathlib import Path


class Notes:
    """Times are those of the wall clock, which the harness shares."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._ends: dict[int, float] = {}
        self._losses: dict[int, float] = {}

    def began(self, at: float | None = None) -> None:
        """The data are read and everything is made; the first round is to begin."""
        self._began = time.time() if at is None else at

    def ended(self, round: int, loss: float | None = None, at: float | None = None) -> None:
        """A round (counted from 1) is over, its evaluation too."""
        self._ends[round] = time.time() if at is None else at
        if loss is not None:
            self._losses[round] = loss

    def write(self, out: Path) -> None:
        rounds = sorted(self._ends)
        written = {
            "began": self._began,
            "ends": [self._ends[r] for r in rounds],
            "losses": [self._losses.get(r) for r in rounds],
        }
        out.write_text(json.dumps(written))
