"""Conformance: does an algorithm do what its paper, the other algorithms and the wire expect?

`check("scaffold")`, `check("my_module:MyAlgorithm")` or `check(MyAlgorithm())` fills every column
and returns a `Report`; `fedrift conform` prints it for one, some or all.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrift.conform import convergence, generic, golden, identities, invariants
from fedrift.conform.bench import Bench, open_bench
from fedrift.conform.report import Cell, Report, not_checked
from fedrift.conform.runs import refused
from fedrift.conform.subject import Subject, subject_of
from fedrift.errors import InputError

__all__ = ["COLUMNS", "Cell", "Report", "check"]

# Frames of the package, of installed ones and of Python itself are not the reader's.
NOT_OWN = (
    str(Path(__file__).resolve().parents[1]),
    "site-packages",
    "dist-packages",
    "<",
    "/lib/python",
)

Column = Callable[[Subject, Bench], Cell]


def _of_own_problems(column: Callable[[Subject], Cell]) -> Column:
    """A column whose problems have models of their own, to which no other can be given."""

    def fill(subject: Subject, bench: Bench) -> Cell:
        return column(subject) if bench.is_usual else not_checked("has problems of its own")

    return fill


COLUMNS: dict[str, Column] = {
    "form": generic.form,
    "golden": _of_own_problems(golden.check),
    "identities": _of_own_problems(identities.check),
    "invariants": lambda subject, bench: invariants.check(
        subject, None if bench.is_usual else bench.trial
    ),
    "payload": generic.payload,
    "order": generic.order,
    "wire": generic.wire,
    "isolation": generic.check,
    "backends": generic.backends,
    "resume": generic.resume,
    "convergence": _of_own_problems(convergence.check),
}
"""Column → what fills it."""


def check(
    algorithm: Any,
    bench: Bench | None = None,
    *,
    model: str | None = None,
    adapter: str | None = None,
) -> Report:
    """All columns for one algorithm: a name, `module:Class`, an Algorithm, a class or function.

    With a `model` by name, or an `adapter`, what holds for any algorithm is checked there, and
    besides what holds for an adapter. Both are those of the bench, if one is given.
    """
    started = time.perf_counter()
    subject = subject_of(algorithm)
    if bench is None:
        with open_bench(model, adapter) as own:
            cells = _cells(subject, own)
    else:
        cells = _cells(subject, bench)
    return Report(subject.name, subject.text, cells, time.perf_counter() - started)


def _cells(subject: Subject, bench: Bench) -> dict[str, Cell]:
    refusal = None if bench.is_usual else refused(subject, bench.trial)
    if refusal is not None:
        return dict.fromkeys(COLUMNS, not_checked(refusal))
    cells: dict[str, Cell] = {}
    for name, column in COLUMNS.items():
        cells[name] = _filled(column, subject, bench)
        if name == "form" and cells[name].passed is False:
            rest = list(COLUMNS)[1:]
            return cells | dict.fromkeys(rest, not_checked("not looked at until its form is right"))
    return cells


def _filled(column: Column, subject: Subject, bench: Bench) -> Cell:
    try:
        return column(subject, bench)
    except InputError as error:
        return Cell(False, str(error))
    except Exception as error:  # an algorithm under test may fail in any way
        first = str(error).strip().partition("\n")[0]
        return Cell(False, f"{type(error).__name__}: {first}{_place(error)}")


def _place(error: BaseException) -> str:
    """Where in the reader's own file it happened, if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in NOT_OWN)]
    return f" at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""
