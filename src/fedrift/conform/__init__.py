"""Conformance: does an algorithm do what its paper, the other algorithms and the wire expect?

`check("scaffold")`, `check("my_module:MyAlgorithm")` or `check(MyAlgorithm())` runs every column
and returns a `Report`; `fedrift conform` prints it for one, some or all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedrift.conform import convergence, generic, golden, identities, invariants, isolation
from fedrift.conform.problem import Trial, classifier
from fedrift.conform.report import Cell, Report, absent
from fedrift.conform.subject import Subject, subject_of
from fedrift.errors import InputError
from fedrift.session import one_thread

__all__ = ["COLUMNS", "Cell", "Report", "check"]

Column = Callable[[Subject, Trial], Cell]

COLUMNS: dict[str, Column] = {
    "form": generic.form,
    "golden": lambda subject, _: golden.check(subject),
    "identities": lambda subject, _: identities.check(subject),
    "invariants": lambda subject, _: invariants.check(subject),
    "payload": generic.payload,
    "order": generic.order,
    "wire": generic.wire,
    "isolation": isolation.check,
    "backends": generic.backends,
    "resume": generic.resume,
    "convergence": lambda subject, _: convergence.check(subject),
}
"""Column → what fills it."""


def check(algorithm: Any) -> Report:
    """All columns for one algorithm: a name, `module:Class`, an Algorithm, a class or function."""
    started = time.perf_counter()
    subject = subject_of(algorithm)
    trial = replace(classifier(), rounds=6)
    cells: dict[str, Cell] = {}
    with one_thread():
        for name, column in COLUMNS.items():
            if cells.get("form", absent("")).passed is False:
                cells[name] = absent("not looked at until its form is right")
                continue
            cells[name] = _filled(column, subject, trial)
    return Report(subject.name, cells, time.perf_counter() - started)


def _filled(column: Column, subject: Subject, trial: Trial) -> Cell:
    try:
        return column(subject, trial)
    except InputError as error:
        return Cell(False, str(error))
    except Exception as error:  # an algorithm under test may fail in any way
        return Cell(False, f"{type(error).__name__}: {error}")
