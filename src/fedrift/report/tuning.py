"""What a report says of tuning: which values were chosen, and at what cost."""

from __future__ import annotations

from typing import Any

from fedrift.grammar import Named, parse
from fedrift.grid import Cell
from fedrift.quantities import count_text
from fedrift.report.spelling import listed, plural
from fedrift.tuned import Tuned


def chosen(cell: Cell) -> dict[str, Any]:
    """Of a run of a grid: the options that tuning decided, with their values."""
    named = parse(cell.spec.algorithm, "algorithm")
    values = {key: _given(named, key) for key in cell.entrant.tuned}
    return {k: getattr(cell.spec, k, None) if v is None else v for k, v in values.items()}


def _given(named: Named, key: str) -> str | None:
    if key in named.options:
        return named.options[key]
    return None if named.inner is None else _given(named.inner, key)


def sentence(tuned: Tuned) -> str:
    """How the values were found, and what that cost."""
    tried = [f"{key} among {', '.join(values)}" for key, values in tuned.options.items()]
    at = "".join(f", {key} {value}" for key, value in tuned.at.items())
    return (
        f"Tuned were {listed(tried)}, on training data held out for it and never on the test set, "
        f"with seed {tuned.seed}{at} only: {plural(tuned.runs, 'run')}, "
        f"{plural(tuned.rounds, 'round')} and {count_text(tuned.gradients)} gradient evaluations, "
        "which no other figure here contains."
    )
