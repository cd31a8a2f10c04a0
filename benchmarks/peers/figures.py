"""The figures of results.json as the table needs them: medians over repeats, and ratios."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from peers.environments import PEERS

OURS = "fedrift"


@dataclass(frozen=True)
class Figure:
    """One peer on one row; seconds and bytes."""

    visit: float
    total: float
    start: float
    peak_bytes: float
    repeats: int
    low: float  # the least and most a visit took in the repeats
    high: float


@dataclass(frozen=True)
class Figures:
    """Everything that was measured; `errors` says why a figure is missing."""

    content: Mapping[str, Any]
    known: Mapping[tuple[str, str], Figure]
    errors: Mapping[tuple[str, str], str]

    @staticmethod
    def read(path: Path) -> Figures:
        content = json.loads(path.read_text())
        known: dict[tuple[str, str], Figure] = {}
        errors: dict[tuple[str, str], str] = {}
        for row in content["rows"]:
            for peer in PEERS:
                runs = [r for r in content["runs"] if r["row"] == row and r["peer"] == peer]
                good = [r for r in runs if "error" not in r]
                if good:
                    known[row, peer] = _figure(good)
                elif runs:
                    errors[row, peer] = runs[-1]["error"]
        return Figures(content, known, errors)

    @property
    def rows(self) -> list[str]:
        return sorted(self.content["rows"])

    def work(self, row: str) -> Mapping[str, Any]:
        return self.content["rows"][row]["work"]

    def ratio(self, row: str, peer: str, what: str) -> float | None:
        """How many times as long (or as much) as fedrift; None if one of them is missing."""
        theirs, ours = self.known.get((row, peer)), self.known.get((row, OURS))
        if theirs is None or ours is None:
            return None
        return float(getattr(theirs, what)) / float(getattr(ours, what))

    @property
    def others(self) -> tuple[float, float]:
        """Cores that other processes used during a run, about: median and most."""
        used = [float(run["others"]) for run in self.content["runs"] if "others" in run]
        return (median(used), max(used)) if used else (0.0, 0.0)

    def distance(self, row: str, peer: str) -> float | None:
        return self.content["rows"][row].get("distances", {}).get(peer)


def _figure(runs: list[Mapping[str, Any]]) -> Figure:
    def middle(what: str) -> float:
        return float(median(float(run[what]) for run in runs))

    visits = [float(run["visit"]) for run in runs]
    return Figure(
        middle("visit"),
        middle("total"),
        middle("start"),
        middle("peak_bytes"),
        len(runs),
        min(visits),
        max(visits),
    )
