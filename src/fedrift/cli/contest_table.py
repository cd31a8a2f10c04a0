"""The table of a comparison on the command line, from the statistics that reports use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedrift.report import spelling
from fedrift.report.spelling import NOTHING
from fedrift.report.tables import convention, measure
from fedrift.statistics.estimates import estimate
from fedrift.statistics.findings import Finding, Findings, find
from fedrift.statistics.measured import measured
from fedrift.statistics.naming import Setting

if TYPE_CHECKING:
    from rich.table import Table

    from fedrift.comparison import Comparison
    from fedrift.statistics.measured import Measured

COSTS = {"bytes": "sent", "gradients": "gradients", "seconds": "time"}


def findings(made: Comparison) -> Findings | None:
    """The statistics of the runs that were made; None if there are none."""
    runs = [
        measured(o.result.record(), _name(o.item), o.item.shown)
        for o in made.outcomes
        if o.result is not None and (o.result.metrics or o.result.status == "diverged")
    ]
    return find(runs) if runs else None


def _name(item: Any) -> str:
    axes = "".join(f", {key} {value}" for key, value in item.axes.items())
    return f"{item.label}{axes}, seed {item.seed}"


def table(found: Findings) -> Table:
    """One line per method and setting: quality with its spread, difference, and cost."""
    from rich.table import Table

    several, compared = len(found.settings) > 1, len(found.methods) > 1
    made = Table(
        "method",
        *(["setting"] if several else []),
        title=f"test {measure(found)}, {convention(found)}",
        title_justify="left",
    )
    numbers = ["seeds", "mean ± sd", "95 % interval", "best round"]
    numbers += [f"difference to {found.baseline}"] if compared else []
    for heading in (*numbers, *COSTS.values()):
        made.add_column(heading, justify="right")
    for setting in found.settings:
        for one in found.by_setting[setting]:
            made.add_row(*_cells(found, setting, one, several, compared))
        made.add_section()
    return made


def _cells(
    found: Findings, setting: Setting, one: Finding, several: bool, compared: bool
) -> Iterable[str]:
    known, score = found.has_accuracy, one.score
    yield one.method
    if several:
        yield setting.label
    yield str(len(one.group.runs))
    yield spelling.score_text(score, known)
    yield NOTHING if score.failed else spelling.interval(score.final, known)
    yield spelling.figure(score.best.mean, known)
    if compared:
        is_base = one.method == found.baseline
        yield "baseline" if is_base else spelling.difference(one.difference, known)
    for axis in COSTS:
        yield _cost(one.group.runs, axis)


def _cost(runs: Iterable[Measured], axis: str) -> str:
    """Of a whole run, mean over the seeds."""
    mean = estimate(float(getattr(run, axis)[-1]) for run in runs).mean
    return NOTHING if math.isnan(mean) else spelling.quantity(mean, axis)


def remarks(found: Findings) -> list[str]:
    """What the table does not show by itself: failures, unequal budgets, too few seeds."""
    from fedrift.report import words

    failed = [
        f"(X) {one.method}{f', {one.group.setting.label}' if len(found.settings) > 1 else ''}: "
        f"{one.score.why}"
        for one in found.all
        if one.score.failed
    ]
    return [*failed, *(text.removesuffix(".") for text in words.budgets(found))]
