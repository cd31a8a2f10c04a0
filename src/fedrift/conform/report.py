"""What a conformance check found: one cell per column, a sentence for each failure.

Reports of runs are in `fedrift.report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """The outcome of one column: `passed` is None where it does not apply."""

    passed: bool | None
    text: str
    """What was seen; for a failure, what is wrong and what to do."""


@dataclass(frozen=True)
class Report:
    """All columns for one algorithm."""

    name: str
    text: str
    """The name with the options it was checked with."""
    cells: Mapping[str, Cell]
    seconds: float = 0.0

    @property
    def is_checked(self) -> bool:
        """Something could be looked at: what was asked for is a problem for the algorithm."""
        return any(cell.passed is not None for cell in self.cells.values())

    @property
    def passed(self) -> bool:
        return all(cell.passed is not False for cell in self.cells.values())

    @property
    def failures(self) -> list[str]:
        """One sentence for each column that failed."""
        return [
            f"{self.name}, {column}: {cell.text}"
            for column, cell in self.cells.items()
            if cell.passed is False
        ]

    def row(self) -> dict[str, Any]:
        """The report as a record."""
        columns = {
            name: {"passed": cell.passed, "said": cell.text} for name, cell in self.cells.items()
        }
        about = {"name": self.name, "checked_as": self.text, "passed": self.passed}
        return {**about, "seconds": self.seconds, "columns": columns}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Report:
        """The inverse of `row`."""
        cells = {name: Cell(c["passed"], c["said"]) for name, c in row["columns"].items()}
        return Report(row["name"], row["checked_as"], cells, row["seconds"])


def not_checked(why: str) -> Cell:
    """A column that has nothing to say about this algorithm."""
    return Cell(None, why)


def sum_up(failures: Iterable[str], total: int, what: str) -> Cell:
    """`3 rows`, or all that went wrong."""
    faults = list(failures)
    if faults:
        return Cell(False, "; ".join(faults))
    return Cell(True, f"{total} {what}" + ("s" if total != 1 else ""))
