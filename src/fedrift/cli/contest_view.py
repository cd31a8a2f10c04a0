"""What a comparison shows while it runs: a live table, or a line for every run that is done."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedrift.cli.screen import console, seconds_text
from fedrift.grid import Cell

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from fedrift.comparison import Item, Outcome
    from fedrift.engine import Plan, RoundReport

Group = tuple[str, tuple[tuple[str, Any], ...]]


class Watcher:
    """Counts rounds of all runs; says nothing unless it is asked to show."""

    def __init__(self, cells: Sequence[Cell], shows: bool) -> None:
        self._lock = threading.Lock()
        self._shows = shows
        self._live: Live | None = None
        self.restart(cells)

    def restart(self, cells: Sequence[Cell]) -> None:
        """Turn to another list of runs, after tuning for example."""
        with self._lock:
            self.total = sum(cell.spec.rounds for cell in cells)
            self.rounds: dict[tuple[Group, int], int] = {}
            self.wanted: dict[Group, int] = {}
            self.last: dict[tuple[Group, int], float] = {}
            self.done: dict[Group, int] = {}
            self.runs = len(cells)
            self.found = 0  # rounds that were there already and took no time
            self._began = time.perf_counter()
            for cell in cells:
                group = (cell.entrant.name, tuple(cell.axes.items()))
                self.wanted[group] = self.wanted.get(group, 0) + cell.spec.rounds
        if self._shows:
            words = f"{self.runs:,} runs, {self.total:,} rounds in all"
            console(errors=True).print(words if self.runs > 1 else words.replace("runs", "run"))
            self._open()

    def _open(self) -> None:
        from rich.live import Live

        screen = console(errors=True)
        if screen.is_terminal and self._live is None:
            self._live = Live(
                get_renderable=self._table, console=screen, refresh_per_second=4, transient=True
            )
            self._live.start()

    def started(self, item: Item, plan: Plan) -> None:
        with self._lock:
            self.rounds[_group(item), item.seed] = plan.resumed_from
            self.found += plan.resumed_from

    def finished_round(self, item: Item, report: RoundReport) -> None:
        key = (_group(item), item.seed)
        with self._lock:
            self.rounds[key] = report.round
            if "accuracy" in report.metrics:
                self.last[key] = float(report.metrics["accuracy"])

    def finished(self, outcome: Outcome) -> None:
        group = _group(outcome.item)
        with self._lock:
            if (group, outcome.item.seed) not in self.rounds:  # it was read, not made
                self.found += outcome.item.rounds
            self.rounds[group, outcome.item.seed] = outcome.item.rounds
            self.done[group] = self.done.get(group, 0) + 1
            made, left = sum(self.done.values()), self._left()
        if self._shows and self._live is None:
            axes = "".join(f", {k} {v}" for k, v in outcome.item.axes.items())
            result = outcome.result
            said = outcome.error if result is None else result.status
            if result is not None and result.accuracy:
                said += f", accuracy {result.accuracy[-1]:.4f}"
            who = f"{outcome.item.label}{axes}, seed {outcome.item.seed}"
            line = f"{made} of {self.runs}: {who}: {said}{left if made < self.runs else ''}"
            console(errors=True).print(line)

    def _left(self) -> str:
        """How long the rest will take, from the rounds made here so far."""
        made = sum(self.rounds.values())
        own, passed = made - self.found, time.perf_counter() - self._began
        return f", about {seconds_text(passed / own * (self.total - made))} left" if own > 0 else ""

    def _table(self) -> Table:
        from rich.table import Table

        with self._lock:
            made = sum(self.rounds.values())
            passed = time.perf_counter() - self._began
            title = f"{made:,} of {self.total:,} rounds, {seconds_text(passed)}{self._left()}"
            table = Table("algorithm", "", "rounds", "accuracy now", title=title, box=None)
            for group, wanted in self.wanted.items():
                rounds = sum(r for (g, _), r in self.rounds.items() if g == group)
                values = [a for (g, _), a in self.last.items() if g == group]
                mean = f"{statistics.mean(values):.2%}" if values else ""
                axes = ", ".join(f"{k} {v}" for k, v in group[1])
                table.add_row(group[0], axes, f"{rounds}/{wanted}", mean)
        return table

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def watcher(cells: Sequence[Cell], *, silent: bool) -> Watcher:
    return Watcher(cells, shows=not silent)


def _group(item: Item) -> Group:
    return item.label, tuple(item.axes.items())
