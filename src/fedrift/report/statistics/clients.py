"""What clients found on test data of their own, and runs that are judged by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MEAN, WORST, BEST = "client_accuracy", "client_accuracy_worst", "client_accuracy_best"
STD, JAIN, NOT_VISITED = "client_accuracy_std", "client_accuracy_jain", "clients_not_visited"
FIGURES = {
    MEAN: "mean",
    "client_accuracy_weighted": "weighted mean",
    WORST: "worst tenth",
    BEST: "best tenth",
    STD: "standard deviation",
    JAIN: "Jain's index",
}
"""Columns of rounds.jsonl, and what they are called; all but the last are accuracies."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What the clients that were asked after a round found, in the order of clients."""

    round: int
    client: Ints
    accuracy: Floats
    visited: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AtClients:
    """Of the rounds after which clients evaluated."""

    rounds: Ints
    columns: Mapping[str, Floats]
    """A figure for each of these rounds, by the names of `FIGURES`."""
    not_visited: Ints
    """How many of those asked had never taken part."""
    table: tuple[Asked, ...]
    """Client by client; empty where the run did not keep it."""

    def final(self, column: str, last: int) -> float:
        """Mean over the last of these rounds."""
        return float(self.columns[column][-last:].mean())


def at_clients(
    rows: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]
) -> AtClients | None:
    """From the rows of a run and its table of clients; None if clients had no accuracy."""
    known = [row for row in rows if row.get(MEAN) is not None]
    if not known:
        return None
    columns = {name: np.array([row[name] for row in known], np.float64) for name in FIGURES}
    return AtClients(
        rounds=np.array([row["round"] for row in known], np.int64),
        columns=columns,
        not_visited=np.array([row[NOT_VISITED] for row in known], np.int64),
        table=tuple(_asked(line) for line in lines if "accuracy" in line),
    )


def _asked(line: Mapping[str, Any]) -> Asked:
    return Asked(
        int(line["round"]),
        np.array(line["client"], np.int64),
        np.array(line["accuracy"], np.float64),
        np.array(line["visited"], np.bool_),
    )


def are_judged_at_clients(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the accuracy of a run is that of its clients."""
    return bool(rows) and all(
        row.get("accuracy") is not None and row.get(MEAN) == row["accuracy"] for row in rows
    )
