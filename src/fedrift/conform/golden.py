"""Golden numbers: does an algorithm reproduce its rows of the table, to 2e-6 in float64?"""

from __future__ import annotations

from fedrift.conform import closed_form
from fedrift.conform.golden_table import AFTER, DERIVED, ROWS, Row
from fedrift.conform.report import Cell, absent, summed
from fedrift.conform.runs import path
from fedrift.conform.subject import Subject

TOLERANCE = 2e-6


def rows_of(kind: str) -> list[Row]:
    """The rows of one name."""
    return [row for row in (*ROWS, *DERIVED) if row.name == kind]


def check(subject: Subject) -> Cell:
    """All rows of the algorithm's name."""
    if subject.kind == "fed3r":
        return summed(closed_form.golden_failures(), 2, "row")
    rows = rows_of(subject.kind)
    if not rows:
        return absent("no row in the golden table")
    return summed([fault for row in rows for fault in failures(row)], len(rows), "row")


def failures(row: Row) -> list[str]:
    """The first round at which a row differs, if there is one."""
    found = path(row.text, row.trial)
    for after, expected in zip(AFTER, row.points, strict=False):
        if after > len(found):
            return [f"{row}: stopped after round {len(found)}"]
        w = found[after - 1].tolist()
        if max(abs(a - b) for a, b in zip(w, expected, strict=True)) > TOLERANCE:
            return [f"{row}: after round {after} w is {_point(w)}, not {_point(expected)}"]
    return []


def _point(w: list[float] | tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{x:.6f}" for x in w) + ")"
