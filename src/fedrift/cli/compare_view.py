"""A comparison on the command line: its progress while it runs, and its table at the end."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedrift.cli.console import console
from fedrift.config.grid import Cell
from fedrift.engine.callbacks import Callback, Passive
from fedrift.errors import InputError, sentence
from fedrift.report import numbers
from fedrift.report.numbers import NOTHING, percent_text, seconds_text
from fedrift.report.statistics.estimates import estimate, rounds_averaged
from fedrift.report.statistics.findings import Finding, Findings, make_findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import measure_run
from fedrift.report.tables import convention, measure

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from fedrift.comparison import Comparison, Item
    from fedrift.engine.callbacks import Plan, RoundReport
    from fedrift.engine.result import Result
    from fedrift.report.statistics.measured import Measured


COSTS = {"bytes": "sent", "gradients": "gradients", "seconds": "time"}


def findings(comparison: Comparison) -> Findings | None:
    """The statistics of the runs that were made; None if there are none."""
    runs = [
        measure_run(o.result.record(), _name(o.item), o.item.shown, o.item.own)
        for o in comparison.outcomes
        if o.result is not None and (o.result.metrics or o.result.status == "diverged")
    ]
    return make_findings(runs) if runs else None


def _name(item: Any) -> str:
    axes = "".join(f", {key} {value}" for key, value in item.axes.items())
    return f"{item.label}{axes}, seed {item.seed}"


def table(findings: Findings) -> Table:
    """One line per method and setting: quality with its spread, difference, and cost."""
    from rich.table import Table

    several, compared = len(findings.settings) > 1, len(findings.methods) > 1
    rich_table = Table(
        "method",
        *(["setting"] if several else []),
        title=f"test {measure(findings)}, {convention(findings)}",
        title_justify="left",
    )
    headings = ["seeds", "mean ± sd", "95 % interval", "best round"]
    headings += [f"difference to {findings.baseline}"] if compared else []
    headings += list(domain_columns(findings).values())
    for heading in (*headings, *COSTS.values()):
        rich_table.add_column(heading, justify="right")
    for setting in findings.settings:
        for one in findings.by_setting[setting]:
            rich_table.add_row(*_cells(findings, setting, one, several, compared))
        rich_table.add_section()
    return rich_table


def domain_columns(findings: Findings) -> dict[str, str]:
    """Columns of rounds that tell of a shift's domains, and what they are called."""
    known = {name for run in findings.grouped.runs for name in run.logged}
    return {column: name for column, name in IN_DOMAINS.items() if column in known}


IN_DOMAINS = {"domain_accuracy_worst": "worst domain", "domain_accuracy_unseen": "unseen domains"}


def _cells(
    findings: Findings, setting: Setting, one: Finding, several: bool, compared: bool
) -> Iterable[str]:
    known, score = findings.has_accuracy, one.score
    yield one.method
    if several:
        yield setting.label
    yield str(len(one.group.runs))
    yield numbers.score_text(score, known)
    yield NOTHING if score.failed else numbers.interval_text(score.final, known)
    yield numbers.value_text(score.best.mean, known)
    if compared:
        is_base = one.method == findings.baseline
        yield "baseline" if is_base else numbers.difference_text(one.difference, known)
    for column in domain_columns(findings):
        ends = [
            float(run.logged[column][-rounds_averaged(run, findings.last) :].mean())
            for run in one.group.runs
            if column in run.logged
        ]
        yield numbers.value_text(estimate(ends).mean, True)
    for axis in COSTS:
        yield _cost(one.group.runs, axis)


def _cost(runs: Iterable[Measured], axis: str) -> str:
    """Of a whole run, mean over the seeds."""
    mean = estimate(float(getattr(run, axis)[-1]) for run in runs).mean
    return NOTHING if math.isnan(mean) else numbers.quantity_text(mean, axis)


def remarks(findings: Findings) -> list[str]:
    """What the table does not show by itself: failures, unequal budgets, too few seeds."""
    from fedrift.report import sentences

    failed = [
        f"(X) {one.method}{f', {one.group.setting.label}' if len(findings.settings) > 1 else ''}: "
        f"{one.score.why}"
        for one in findings.all
        if one.score.failed
    ]
    return [*failed, *(text.removesuffix(".") for text in sentences.budgets(findings))]


# What a comparison shows while it runs: a live table, or a line for every run that is done.

Group = tuple[str, tuple[tuple[str, Any], ...]]
Run = tuple[Group, int]
"""A group and a seed."""


class Pace:
    """How long the rest will take, from what was made here.

    A round of one method may take much longer than one of another, so rounds count as many seconds
    as those of their method took. What was read from a folder took none, and the clock begins with
    the first run: data are loaded and features computed once, however many runs there are.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._starts: dict[Run, tuple[int, float]] = {}
        self._made: dict[Run, int] = {}
        self._spent: dict[Group, tuple[float, int]] = {}

    def started(self, run: Run, at: int, now: float) -> None:
        self._began = now if self._began is None else self._began
        self._starts[run] = at, now

    def reached(self, run: Run, round: int) -> None:
        self._made[run] = round - self._starts[run][0]

    def ended(self, run: Run, now: float) -> None:
        if self._made.get(run):
            seconds, rounds = self._spent.get(run[0], (0.0, 0))
            seconds += now - self._starts[run][1]
            self._spent[run[0]] = seconds, rounds + self._made[run]

    def left(self, rounds_left: Mapping[Group, int], now: float) -> float | None:
        """Seconds; None while nothing has been made."""
        seconds = sum(seconds for seconds, _ in self._spent.values())
        rounds = sum(rounds for _, rounds in self._spent.values())
        usual = (seconds, rounds) if rounds else (1.0, 1)  # of methods of which no run is over

        def work(group: Group, number: int) -> float:
            spent, made = self._spent.get(group, usual)
            return number * spent / made

        made = sum(work(group, number) for (group, _), number in self._made.items())
        if self._began is None or not made:
            return None
        rest = sum(work(group, number) for group, number in rounds_left.items())
        return (now - self._began) * rest / made


class Watcher:
    """Counts rounds of all runs; says nothing unless it is asked to show."""

    def __init__(self, shows: bool) -> None:
        self._lock = threading.Lock()
        self._shows = shows
        self._live: Live | None = None

    def restart(self, cells: Sequence[Cell], what: str = "") -> None:
        """Turn to another list of runs, that of the next step of tuning for example."""
        with self._lock:
            self.total = sum(cell.spec.rounds for cell in cells)
            self.rounds: dict[Run, int] = {}
            self.wanted: dict[Group, int] = {}
            self.last: dict[Run, float] = {}
            self.done: dict[Group, int] = {}
            self.runs = len(cells)
            self._pace = Pace()
            self._began = time.perf_counter()
            for cell in cells:
                group = (cell.entrant.name, tuple(cell.axes.items()))
                self.wanted[group] = self.wanted.get(group, 0) + cell.spec.rounds
        if self._shows:
            runs = "run" if self.runs == 1 else "runs"
            words = f"{self.runs:,} {runs}, {self.total:,} rounds in all"
            console(errors=True).print(f"{what}: {words}" if what else words)
            self._open()

    def _open(self) -> None:
        from rich.live import Live

        screen = console(errors=True)
        if screen.is_terminal and self._live is None:
            self._live = Live(
                get_renderable=self._table, console=screen, refresh_per_second=4, transient=True
            )
            self._live.start()

    def callbacks(self, item: Item) -> list[Callback]:
        """Who tells of a run."""
        return [_OneRun(self, item)]

    def started(self, item: Item, plan: Plan) -> None:
        run = (_group(item), item.seed)
        with self._lock:
            self.rounds[run] = plan.resumed_from
            self._pace.started(run, plan.resumed_from, time.perf_counter())

    def finished_round(self, item: Item, report: RoundReport) -> None:
        run = (_group(item), item.seed)
        with self._lock:
            self.rounds[run] = report.round
            self._pace.reached(run, report.round)
            if "accuracy" in report.metrics:
                self.last[run] = float(report.metrics["accuracy"])

    def finished(self, item: Item, outcome: str) -> None:
        group = _group(item)
        with self._lock:
            self._pace.ended((group, item.seed), time.perf_counter())
            self.rounds[group, item.seed] = item.rounds
            self.done[group] = self.done.get(group, 0) + 1
            done, left = sum(self.done.values()), self._left()
        if self._shows and self._live is None:
            more = left if done < self.runs else ""
            console(errors=True).print(f"{done} of {self.runs}: {_name(item)}: {outcome}{more}")

    def _left(self) -> str:
        rounds_left = dict(self.wanted)
        for (group, _), rounds in self.rounds.items():
            rounds_left[group] = rounds_left.get(group, 0) - rounds
        seconds = self._pace.left(rounds_left, time.perf_counter())
        return "" if seconds is None else f", about {seconds_text(seconds)} left"

    def _table(self) -> Table:
        from rich.table import Table

        with self._lock:
            rounds_done = sum(self.rounds.values())
            passed = time.perf_counter() - self._began
            title = (
                f"{rounds_done:,} of {self.total:,} rounds, {seconds_text(passed)}{self._left()}"
            )
            table = Table("algorithm", "", "rounds", "accuracy now", title=title, box=None)
            for group, wanted in self.wanted.items():
                rounds = sum(r for (g, _), r in self.rounds.items() if g == group)
                values = [a for (g, _), a in self.last.items() if g == group]
                mean = percent_text(statistics.mean(values)) if values else ""
                axes = ", ".join(f"{k} {v}" for k, v in group[1])
                table.add_row(group[0], axes, f"{rounds}/{wanted}", mean)
        return table

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _OneRun(Passive):
    """Tells how one run of the comparison goes."""

    def __init__(self, watcher: Watcher, item: Item) -> None:
        self._watcher, self._item = watcher, item

    def on_start(self, plan: Plan) -> None:
        self._watcher.started(self._item, plan)

    def on_round(self, report: RoundReport) -> None:
        self._watcher.finished_round(self._item, report)

    def on_end(self, result: Result) -> None:
        accuracy = f", accuracy {result.accuracy[-1]:.4f}" if result.accuracy else ""
        self._watcher.finished(self._item, f"{result.status}{accuracy}")

    def on_error(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):  # the others go on
            self._watcher.finished(self._item, f"failed: {sentence(error)}")


def watcher(*, silent: bool) -> Watcher:
    return Watcher(shows=not silent)


def _group(item: Item) -> Group:
    return item.label, tuple(item.axes.items())
