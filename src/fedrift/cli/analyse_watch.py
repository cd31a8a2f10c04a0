"""What `fedrift analyse` shows while it works: how long it may take, then a bar."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedrift.cli.screen import console, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

LONG = 5.0  # seconds from which on the reader is told
TRIED = 1.0  # seconds after which the pace so far says more than an estimate


class Watch:
    """Says the estimate before long work; a bar on a terminal."""

    def __init__(self, silent: bool, beside: Console | None = None) -> None:
        """`beside` is a screen that shows another bar already."""
        self._silent, self._screen = silent, beside or console(errors=True)
        self._has_bar = beside is None and self._screen.is_terminal
        self._about = self._what = ""
        self._steps, self._done, self._start = 0, 0, 0.0
        self._is_told = True
        self._bar: Any = None

    def say(self, text: str) -> None:
        if not self._silent:
            self._screen.print(text)

    def turn(self, run: str, what: str) -> None:
        """The next measurement begins."""
        self.close()
        self._about = f"{run}: {what}"

    def begin(self, what: str, steps: int, seconds: float) -> None:
        self.close()
        self._what, self._steps, self._done = what, steps, 0
        self._start, self._is_told = time.perf_counter(), self._silent
        if seconds >= LONG:
            self._tell(seconds)

    def step(self) -> None:
        self._done += 1
        if self._bar is not None:
            task = self._bar.tasks[0]
            self._bar.update(task.id, advance=1, total=max(task.total, self._done))
        elif not self._is_told:  # slower than it was thought to be, or nobody knew
            passed = time.perf_counter() - self._start
            whole = passed * max(1.0, self._steps / self._done)
            if passed >= TRIED and whole >= LONG and self._done < self._steps:
                self._tell(whole)

    def _tell(self, seconds: float) -> None:
        if self._is_told:
            return
        self._is_told = True
        about = f"{self._about}: " if self._about else ""
        self.say(f"{about}{self._steps:,} {self._what}, about {seconds_text(seconds)}")
        if self._has_bar:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (MofNCompleteColumn(), BarColumn(24), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._screen)
            self._bar.add_task("", total=self._steps, completed=self._done)
            self._bar.start()

    def close(self) -> None:
        """Leaves the terminal as it was; it can be closed twice."""
        self._is_told = True
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def watching(*, silent: bool) -> Generator[Watch]:
    watch = Watch(silent)
    try:
        yield watch
    finally:
        watch.close()
