"""What Python shows while runs go on: a bar in a terminal, a growing curve in a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from fedrift.engine.callbacks import Callback, Passive
from fedrift.errors import InputError
from fedrift.figures.style import COLOURS
from fedrift.figures.svg import Line, lines_picture, percent, short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedrift.engine.callbacks import Plan, RoundReport
    from fedrift.engine.result import Result

MEASURES = ("accuracy", "client_accuracy", "loss")  # the first that is measured is drawn
SHORTEST = 1.0  # seconds of a run below which no bar is left behind
PAUSE = 0.5  # seconds between two pictures in a notebook


class Board:
    """How far runs have come, told from several threads."""

    def __init__(self, total: int, runs: int, labels: Sequence[str] = ()) -> None:
        self.total, self.runs = total, runs
        self.labels = tuple(dict.fromkeys(labels))
        """In the order asked for: runs start in another."""
        self.done = 0
        self.rounds: dict[tuple[str, int], int] = {}
        self.curves: dict[str, dict[tuple[str, int], list[tuple[int, float]]]] = {}
        self.said = ""
        self.lock = threading.Lock()
        self.began = time.perf_counter()
        self.read = 0
        """Rounds that were there before and took no time."""

    @property
    def reached(self) -> int:
        return sum(self.rounds.values())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float | None:
        """Seconds, at the pace so far."""
        own = self.reached - self.read
        return self.seconds / own * (self.total - self.reached) if own > 0 else None

    def started(self, key: tuple[str, int], at: int) -> None:
        with self.lock:
            self.read += at - self.rounds.get(key, 0)
            self.rounds[key] = at

    def told(self, key: tuple[str, int], report: RoundReport) -> None:
        with self.lock:
            self.rounds[key] = report.round
            for name in MEASURES:
                value = report.metrics.get(name)
                if isinstance(value, float) and value == value and abs(value) != float("inf"):
                    curve = self.curves.setdefault(name, {}).setdefault(key, [])
                    curve.append((report.round, value))
            if report.metrics:
                self.said = figures(report.metrics)

    def ended(self, key: tuple[str, int], rounds: int) -> None:
        """What was read from a folder had no rounds here; what stopped early has none left."""
        with self.lock:
            if key in self.rounds:
                self.total -= rounds - self.rounds[key]
            else:
                self.read += rounds
                self.rounds[key] = rounds
            self.done += 1


class Display(Protocol):
    """Where a board is shown."""

    def open(self, board: Board) -> None: ...
    def show(self, board: Board, report: RoundReport | None) -> None: ...
    def close(self, board: Board) -> None: ...


class _Told(Passive):
    """Tells the board of one run."""

    def __init__(self, board: Board, display: Display, label: str, seed: int, rounds: int) -> None:
        self._board, self._display = board, display
        self._key, self._rounds = (label, seed), rounds

    def on_start(self, plan: Plan) -> None:
        self._board.started(self._key, plan.resumed_from)
        self._display.show(self._board, None)

    def on_round(self, report: RoundReport) -> None:
        self._board.told(self._key, report)
        self._display.show(self._board, report)

    def on_end(self, result: Result) -> None:
        self._board.ended(self._key, self._rounds)
        self._display.show(self._board, None)


class Shown:
    """Who tells the display of the runs of a call."""

    def __init__(self, board: Board, display: Display) -> None:
        self._board, self._display = board, display

    def callback(self, label: str, seed: int, rounds: int) -> Callback:
        return _Told(self._board, self._display, label, seed, rounds)


@contextmanager
def showing(
    progress: bool | str, runs: Sequence[Any], labels: Sequence[str] = ()
) -> Generator[Shown | None]:
    """The fitting display for runs of so many rounds; None where nothing is to be shown."""
    display = display_for(progress)
    if display is None:
        yield None
        return
    known = (rounds for rounds in runs if isinstance(rounds, int))  # else the task refuses it
    board = Board(sum(known), len(runs), labels)
    display.open(board)
    try:
        yield Shown(board, display)
    finally:
        display.close(board)


def display_for(progress: Any) -> Display | None:
    """`"auto"`: a bar in a terminal or a notebook; `True`: lines elsewhere, too; `False`: none."""
    if progress is False:
        return None
    if progress is not True and progress != "auto":
        raise InputError(f"progress={progress!r} must be True, False or 'auto'")
    if notebook() is not None:
        return Notebook()
    if sys.stderr is not None and sys.stderr.isatty():
        return Bar()
    return Lines() if progress is True else None


def notebook() -> Any:
    """IPython's shell if it belongs to a notebook; it is not imported for the question."""
    loaded = sys.modules.get("IPython")
    shell = None if loaded is None else loaded.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def figures(metrics: Mapping[str, Any]) -> str:
    """`accuracy 0.8312  loss 0.4711`."""
    return "  ".join(
        f"{name.replace('_', ' ')} {metrics[name]:.4f}"
        for name in MEASURES
        if isinstance(metrics.get(name), float)
    )


class Lines:
    """One line per evaluated round, or per run of several: where a caller asks for it in a pipe."""

    def open(self, board: Board) -> None:
        self._done = 0

    def show(self, board: Board, report: RoundReport | None) -> None:
        if board.runs == 1 and report is not None and report.metrics:
            words = f"round {report.round}/{board.total}  {board.said}  {report.seconds:.1f} s"
            print(words, file=sys.stderr, flush=True)
        elif board.runs > 1 and board.done > self._done:
            self._done = board.done
            words = f"{board.done} of {board.runs} runs, {board.reached} of {board.total} rounds"
            print(f"{words}, {board.seconds:.1f} s", file=sys.stderr, flush=True)

    def close(self, board: Board) -> None:
        """Nothing to put back."""


def bar(screen: Console, counted: str) -> Progress:
    """A bar whose tasks have a field `said`, the last figures."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn(counted),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        console=screen,
        refresh_per_second=4,
    )


class Bar:
    """Rounds, the last figures, the time passed and the time left."""

    def open(self, board: Board) -> None:
        from rich.console import Console

        screen = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        self._bar = bar(screen, "round" if board.runs == 1 else f"rounds of {board.runs} runs")
        self._task = self._bar.add_task("", total=board.total, said="")
        self._bar.start()

    def show(self, board: Board, report: RoundReport | None) -> None:
        said = board.said if board.runs == 1 else f"{board.done} done"
        self._bar.update(self._task, total=board.total, completed=board.reached, said=said)

    def close(self, board: Board) -> None:
        self._bar.live.transient = board.seconds < SHORTEST  # nothing stays of the shortest
        self._bar.stop()


STYLE = (
    "<style>.fedrift-now{font:13px system-ui,sans-serif;max-width:600px}"
    ".fedrift-now svg text{fill:currentColor;opacity:.75;font:12px system-ui,sans-serif}"
    ".fedrift-now .rule{stroke:currentColor;opacity:.12}"
    ".fedrift-now .axis{stroke:currentColor;opacity:.4}"
    ".fedrift-now progress{width:100%;height:8px}</style>"
)


class Notebook:
    """A bar and the curves so far, in the output of the cell."""

    def open(self, board: Board) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        self._page: Any = HTML
        self._handle: Any = display(HTML(page(board)), display_id=True)
        self._last = time.perf_counter()

    def show(self, board: Board, report: RoundReport | None) -> None:
        now = time.perf_counter()
        with board.lock:
            if self._handle is None or now - self._last < PAUSE:
                return
            self._last = now
            content = page(board)
        self._handle.update(self._page(content))

    def close(self, board: Board) -> None:
        if self._handle is not None:
            self._handle.update(self._page(page(board)))


def page(board: Board) -> str:
    """What a notebook shows of a board."""
    of = "" if board.runs == 1 else f" of {board.runs} runs"
    is_over = board.done == board.runs
    now = f"round {board.reached} of {board.total}{of}" + f", {board.done} done" * bool(of)
    words = [f"{board.total} rounds{of}" if is_over else now]
    words += [board.said if board.runs == 1 else "", f"{board.seconds:.0f} s"]
    if board.left is not None and not is_over:
        words.append(f"about {board.left:.0f} s left")
    bar = f'<progress max="{board.total}" value="{board.reached}"></progress>'
    measure = next((name for name in MEASURES if name in board.curves), None)
    drawn = "" if measure is None else _picture(measure, board.curves[measure], board.labels)
    return (
        f'{STYLE}<div class="fedrift-now">{"" if is_over else bar}'
        f"<div>{escape(' · '.join(filter(None, words)))}</div>{drawn}</div>"
    )


def _picture(
    measure: str,
    curves: Mapping[tuple[str, int], Sequence[tuple[int, float]]],
    order: Sequence[str],
) -> str:
    labels = list(dict.fromkeys((*order, *(label for label, _ in curves))))
    lines = [
        Line(
            label, COLOURS[labels.index(label) % 6], [r for r, _ in points], [v for _, v in points]
        )
        for (label, _), points in curves.items()
    ]
    text = percent if measure.endswith("accuracy") else short
    named = measure.replace("_", " ")
    picture = lines_picture(
        lines,
        about=f"{named} over rounds",
        x_title="round",
        y_title=named,
        whole=True,
        y_text=text,
        height=260,
    )
    if len(labels) == 1:
        return picture
    legend = " ".join(
        f'<span style="color:{COLOURS[i % 6]}">&#9644;</span> {escape(label)}&nbsp;&nbsp;'
        for i, label in enumerate(labels)
    )
    return f"<div>{legend}</div>{picture}"
