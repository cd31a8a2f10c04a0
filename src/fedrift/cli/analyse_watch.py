"""What `fedrift analyse` shows while it works: how long it may take, then a bar."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from fedrift.cli.screen import console, seconds_text

LONG = 5.0  # seconds from which on the reader is told


class Watch:
    """Says the estimate before long work; a bar on a terminal."""

    def __init__(self, silent: bool) -> None:
        self._silent, self._screen = silent, console(errors=True)
        self._about = ""
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
        if self._silent or seconds < LONG:
            return
        self.say(f"{self._about}: about {steps:,} {what}, about {seconds_text(seconds)}")
        if self._screen.is_terminal:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (MofNCompleteColumn(), BarColumn(24), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._screen)
            self._bar.add_task("", total=steps)
            self._bar.start()

    def step(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def close(self) -> None:
        """Leaves the terminal as it was; it can be closed twice."""
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
