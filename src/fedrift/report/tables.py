"""The tables of a report, apart from how they are written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedrift.report import numbers
from fedrift.report.numbers import NOTHING
from fedrift.report.statistics.clients import WORST
from fedrift.report.statistics.costs import AXES
from fedrift.report.statistics.estimates import estimate, rounds_averaged
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Measured
from fedrift.storage.run_folder import OPENINGS


@dataclass(frozen=True)
class Cell:
    """`value` is what a column is sorted by; `hint` explains the text."""

    text: str
    value: float | str | None = None
    is_bold: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """`over` are wider headings above the columns, as (text, number of columns)."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    over: tuple[tuple[str, int], ...] = ()
    texts: int = 1
    """How many columns from the left hold words."""
    words: tuple[int, ...] = ()
    """Other columns that do."""
    usual: tuple[int, ...] = ()
    """The columns a page shows before others are chosen; empty: all."""

    def is_word(self, column: int) -> bool:
        return column < self.texts or column in self.words


SEEN = 0.005  # of the most that a method sends: the least field that a chart shows
MOST_COLUMNS = 7  # of a leaderboard, so that it fits a page


def text(words: str) -> Cell:
    return Cell(words, words)


def number(words: str, value: float, **more: str) -> Cell:
    return Cell(words, None if math.isnan(value) else value, **more)  # type: ignore[arg-type]


def measure(findings: Findings) -> str:
    """What the figures are, with their unit."""
    return "accuracy (%)" if findings.has_accuracy else "loss"


def convention(findings: Findings) -> str:
    """Which rounds the figures are the mean of."""
    counted = findings.counted
    if counted == (1,):
        return "of the last evaluated round"
    if not counted:
        return "of the last rounds"
    return f"mean of the last {' or '.join(map(str, counted))} evaluated rounds"


def leaderboard(findings: Findings) -> Table:
    """One row per method and setting, best first within a setting."""
    several = len(findings.settings) > 1
    headings = ["rank", "method", *(["setting"] if several else [])]
    headings += [measure(findings), "95 % interval", "best round"]
    compared = len(findings.methods) > 1
    headings += [f"difference to {findings.baseline}"] if compared else []
    headings += [f"{name} to target" for name in AXES.values()]
    own = [name for name in logged(findings) if name not in headings]
    headings += ["worst tenth of clients", *own, "seeds"]
    rows: list[tuple[Cell, ...]] = []
    for setting in findings.settings:
        ranked = sorted(findings.by_setting[setting], key=lambda f: f.rank or math.inf)
        rows += [_row(findings, setting, one, several, compared, own) for one in ranked]
    spread = "± standard deviation over seeds, " if _has_spread(findings) else ""
    most = {"best round", "worst tenth of clients", *(f"{AXES[a]} to target" for a in AXES), *own}
    most -= {f"{AXES['rounds']} to target"} if _is_met(findings) else set()
    shown = [i for i, heading in enumerate(headings) if heading not in most]
    return Table(
        "leaderboard",
        f"Test {measure(findings)}, {convention(findings)}, {spread}and what it cost. "
        f"{target_text(findings)}",
        tuple(headings),
        tuple(rows),
        texts=3 if several else 2,
        usual=tuple(shown[:MOST_COLUMNS]),
    )


def _is_met(findings: Findings) -> bool:
    """Whether anybody but the baseline reached the target."""
    return any(
        one.target is not None and one.target.is_met and one.method != findings.baseline
        for one in findings.all
    )


MOST_LOGGED = 12


def logged(findings: Findings) -> list[str]:
    """Columns that a leaderboard can show: what training reports, own metrics, and what algorithms
    log, in the order in which they first come."""
    names = dict.fromkeys(name for run in findings.grouped.runs for name in run.logged)
    own = [n for n in names if not n.startswith(OPENINGS)]
    return [*(n for n in OFFERED if n in names), *own[:MOST_LOGGED]]


OFFERED = {
    "train_loss": False,
    "train_accuracy": True,
    "domain_accuracy_worst": True,
    "domain_accuracy_unseen": True,
}
"""Columns of ours that a leaderboard can show, and whether they are accuracies."""


def _last(one: Finding, name: str, findings: Findings) -> Cell:
    """The mean over seeds of a column, in the rounds that the result is taken over."""
    ends = [
        run.logged[name][-rounds_averaged(run, findings.last) :].mean()
        for run in one.group.runs
        if name in run.logged and not run.is_blank
    ]
    mean = float(np.mean(ends)) if ends else math.nan
    return number(numbers.value_text(mean, OFFERED.get(name, False)), mean)


def _row(
    findings: Findings,
    setting: Setting,
    one: Finding,
    several: bool,
    compared: bool,
    own: Sequence[str],
) -> tuple[Cell, ...]:
    known, score = findings.has_accuracy, one.score
    final = numbers.score_text(score, known)
    hint = score.why if score.group.is_finished else "unfinished"
    if not score.group.is_finished:
        final += " unfinished"
    cells = [
        Cell(str(one.rank) if one.rank else NOTHING, one.rank),
        text(one.method),
        *([text(setting.label)] if several else []),
        Cell(final, _finite(score.final.mean), is_bold=one.rank == 1, hint=hint),
        number(
            NOTHING if score.failed else numbers.interval_text(score.final, known), score.final.low
        ),
        number(numbers.value_text(score.best.mean, known), score.best.mean),
    ]
    if compared:
        shift = one.difference
        shown = (
            "baseline" if one.method == findings.baseline else numbers.difference_text(shift, known)
        )
        cells.append(Cell(shown, None if shift is None else _finite(shift.mean)))
    for axis in AXES:
        met = one.target is not None and one.target.is_met
        mean = one.target.costs[axis].mean if one.target is not None and met else math.nan
        cells.append(number(numbers.cost_text(one.target, axis), mean))
    worst = _worst(one, findings.last)
    cells.append(number(numbers.value_text(worst, True), worst))
    cells += [_last(one, name, findings) for name in own]
    cells.append(Cell(str(len(one.group.runs)), len(one.group.runs)))
    return tuple(cells)


def _worst(one: Finding, last: int | None) -> float:
    """The worst tenth of the clients: measured at them, else expected from their labels."""
    found = [run.at_clients for run in one.group.runs]
    known = [f.final(WORST, rounds_averaged(one.group.runs[0], last)) for f in found if f]
    if known and len(known) == len(found):
        return estimate(known).mean
    return math.nan if one.spread is None else one.spread.worst.mean


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value


def _has_spread(findings: Findings) -> bool:
    return any(len(one.group.runs) > 1 for one in findings.all)


def target_text(findings: Findings) -> str:
    """What the target is."""
    known = findings.has_accuracy
    if findings.wanted_target is not None:
        return f"The target is {numbers.with_unit(findings.wanted_target, known)}."
    aims = [
        (setting.partition, target.value)
        for setting in findings.settings
        for target in [findings.by_setting[setting][0].target]
        if target is not None
    ]
    if not aims:
        return "There is no target: the baseline has no figure."
    shown = [
        f"{numbers.with_unit(v, known)}" + (f" ({name})" if len(aims) > 1 else "")
        for name, v in aims[:6]
    ]
    more = ", …" if len(aims) > 6 else ""
    return f"The target is what {findings.baseline} ends with: {', '.join(shown)}{more}."


def grid(findings: Findings) -> Table:
    """Methods × settings, as papers print it: mean ± standard deviation, the best in bold."""
    return _grid(
        findings,
        "results",
        f"Test {measure(findings)}, {convention(findings)}"
        f"{', mean ± standard deviation over seeds' if _has_spread(findings) else ''}; "
        "best mean in bold; (X): at chance, or became infinite.",
        lambda one: Cell(
            numbers.score_text(one.score, findings.has_accuracy),
            _finite(one.score.final.mean),
            is_bold=one.rank == 1 and len(findings.methods) > 1,
            hint=one.score.why,
        ),
    )


def clients(findings: Findings) -> Table | None:
    """Worst tenth and spread of the clients' expected accuracy; None where it is not known."""
    if all(one.spread is None for one in findings.all):
        return None

    def cell(one: Finding) -> Cell:
        if one.spread is None:
            return Cell(NOTHING)
        worst, std = one.spread.worst.mean, one.spread.std.mean
        words = f"{numbers.value_text(worst, True)} ({numbers.value_text(std, True)})"
        return number(words, worst)

    caption = (
        "Expected accuracy (%) of the worst tenth of the clients, and in parentheses the "
        "standard deviation between clients; computed from test accuracy per class and each "
        "client's labels, mean over seeds."
    )
    return _grid(findings, "clients", caption, cell)


def _grid(findings: Findings, name: str, caption: str, cell: Callable[[Finding], Cell]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in findings.methods:
        row = [findings.get(method, setting) for setting in findings.settings]
        rows.append((text(method), *(Cell("") if one is None else cell(one) for one in row)))
    columns = ("method", *(setting.partition for setting in findings.settings))
    above = [_above(setting) for setting in findings.settings]
    return Table(name, caption, columns, tuple(rows), _spans(above))


def _above(setting: Setting) -> str:
    return ", ".join(filter(None, (setting.participation, setting.shown)))


def _spans(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    spans: list[tuple[str, int]] = [("", 1)]
    for word in words:
        if len(spans) > 1 and spans[-1][0] == word:
            spans[-1] = (word, spans[-1][1] + 1)
        else:
            spans.append((word, 1))
    return tuple(spans)


def traffic_per_round(run: Measured) -> list[tuple[str, str, str, float]]:
    """Phase, direction, field and bytes per round."""
    rounds = float(run.rounds[-1])
    return [(t.phase, t.direction, t.field, t.bytes / rounds) for t in run.traffic]


def ledger(findings: Findings) -> Table | None:
    """Bytes per round by field, and gradient evaluations, of the first seed of every group."""
    rows: list[tuple[Cell, ...]] = []
    for setting in findings.settings:
        for one in findings.by_setting[setting]:
            run = one.group.runs[0]
            for phase, direction, name, size in traffic_per_round(run):
                share = size / max(1.0, run.bytes[-1] / run.rounds[-1])
                rows.append(
                    (
                        *map(text, (one.method, setting.label, phase, direction, name)),
                        number(numbers.quantity_text(size, "bytes"), size),
                        number(f"{100 * share:.1f} %", share),
                    )
                )
    if not rows:
        return None
    headings = ("method", "setting", "phase", "direction", "field", "bytes per round", "share")
    caption = "What travels, by field: all clients of a round together, first seed of each group."
    return Table("ledger", caption, headings, tuple(rows), texts=5)
