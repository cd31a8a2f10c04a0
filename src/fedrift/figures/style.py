"""What all figures share: colours, empty figures, curves over rounds, legends, colour tables."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedrift.core.plain_files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe & Ito (2008): told apart by people with any kind of colour vision; their yellow, which is
# hard to see as a line on white, darker
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#9C8F00")
SUFFIXES = {".png", ".pdf", ".svg"}


class Curve(Protocol):
    """What is drawn of a run."""

    @property
    def rounds(self) -> list[int]: ...
    @property
    def accuracy(self) -> list[float]: ...
    @property
    def loss(self) -> list[float]: ...
    @property
    def status(self) -> str: ...
    @property
    def metrics(self) -> Sequence[Mapping[str, Any]]: ...


Panel = Mapping[str, Sequence[Curve]]


def new_figure(panels: int, *, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side; needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=sharey, squeeze=False)[0]
    return figure, list(axes)


def curves(runs: Panel, path: Path, metric: str | None = None) -> Path:
    """Accuracy (or loss, or what is named) over rounds, one line per name, a band where there are
    several seeds."""
    return curve_panels({"": runs}, path, metric)


def curve_panels(titled: Mapping[str, Panel], path: Path, metric: str | None = None) -> Path:
    """The same in several panels with a common vertical axis."""
    figure, axes = new_figure(len(titled))
    for axis, (title, runs) in zip(axes, titled.items(), strict=True):
        _draw(axis, runs, metric)
        axis.set_title(title)
    measured = any(r.accuracy for runs in titled.values() for rs in runs.values() for r in rs)
    axes[0].set_ylabel(metric or ("test accuracy" if measured else "test loss"))
    if axes[-1].get_legend_handles_labels()[0]:
        corner = "lower right" if measured else "upper right"
        axes[-1].legend(frameon=False, loc="best" if metric else corner)
    return save(figure, path)


def _draw(axis: Axes, runs: Panel, metric: str | None = None) -> None:
    from matplotlib.ticker import MaxNLocator

    for colour, (name, results) in zip(COLOURS * 8, runs.items(), strict=False):
        series = [column(r, metric) if metric else r.accuracy or r.loss for r in results]
        shortest = min(map(len, series), default=0)
        if not shortest:
            continue
        values: Any = np.array([s[:shortest] for s in series])
        rounds = results[0].rounds[:shortest]
        mean = values.mean(axis=0)
        axis.plot(rounds, mean, color=colour, label=name, linewidth=1.8)
        if len(values) > 1:
            axis.fill_between(
                rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, lw=0
            )
        for result in results:
            if result.status == "diverged":
                axis.plot(rounds[-1], mean[-1], "x", color=colour)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))  # there is no round 1.5
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def column(run: Curve, metric: str) -> list[float]:
    """A number of every evaluated round by its name, such as an own metric; nan where it is not."""
    from fedrift.errors import InputError

    named = [k for k, v in (run.metrics[0] if run.metrics else {}).items() if _is_number(v)]
    if metric not in named:
        raise InputError(f"metric='{metric}' is none of {', '.join(named)}")
    values = [row.get(metric) for row in run.metrics]
    return [float(value) if _is_number(value) else float("nan") for value in values]  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure; the ending decides the format."""
    from fedrift.errors import InputError

    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(sorted(SUFFIXES))
        raise InputError(f"picture '{path}': the ending must be one of {known}")
    write_file(path, drawn(figure, path.suffix[1:].lower()))
    return path


def drawn(figure: Figure, ending: str, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The figure in a format. A name may be of signs that the font lacks: boxes stand for them."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s)Glyph \d+ \(.*missing from")
        figure.savefig(content, format=ending, dpi=160, metadata=metadata)
    return content.getvalue()


WIDTH, HEIGHT = 4.6, 3.4  # inches of one panel
ROW = 0.2  # inches of one more line of a legend
LETTERS = 13  # that fit into an inch
LONGEST = 22  # letters of a name below an axis
ACROSS = 3  # panels side by side; four stand two by two
MOST_NAMED = 24  # rows or columns of a table whose cells are labelled


def empty_figure() -> Figure:
    """An empty figure; needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panels(figure: Figure, count: int, height: float = HEIGHT, width: float = WIDTH) -> list[Axes]:
    """Quiet axes side by side, in rows if there are many."""
    across = count if count <= ACROSS else (2 if count == 4 else ACROSS)
    down = -(-count // across)
    figure.set_size_inches(width * across, height * down)
    created: list[Axes] = list(figure.subplots(down, across, squeeze=False).ravel())
    axes, spare = created[:count], created[count:]
    for axis in spare:
        axis.remove()
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return axes


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def legend(figure: Figure, axes: Sequence[Axes], columns: int = 4) -> None:
    """One for all panels, below them, so that it hides nothing."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if len(entries) < 2:
        return
    longest = max(map(len, entries)) + 6  # room for the line beside the words
    fitting = max(1, int(figure.get_figwidth() * LETTERS / longest))
    number = min(columns, fitting)
    rows = -(-len(entries) // number)
    figure.set_figheight(figure.get_figheight() + ROW * (rows - 1))
    drawn = figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=number,
        frameon=False,
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)  # names may hold any sign


def name_ticks(axis: Axes, labels: Sequence[str]) -> None:
    """Names along the horizontal axis."""
    short = [n if len(n) <= LONGEST else f"{n[: LONGEST - 1]}…" for n in labels]
    thin = -(-len(short) // MOST_NAMED)
    short = short[::thin]
    axis.set_xticks(range(0, len(labels), thin), short, parse_math=False)
    longest = max(map(len, short), default=0)
    if longest > 8:
        figure: Any = axis.figure
        figure.set_figheight(max(figure.get_figheight(), HEIGHT + 0.05 * longest))
        for label in axis.get_xticklabels():
            label.set(rotation=30, ha="right")


def percent_mark(share: float, _: float) -> str:
    """`85 %`, and `92.5 %` where marks are that close."""
    return f"{round(100 * share, 6):g} %"


MINUTE, HOUR, DAY = 60, 3600, 86400
TIME_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))
TIME_STEPS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 5, 10, 20, 50, 100)),
)
"""Seconds between two marks, as clocks are read."""


def time_ticks(axis: Axes, most: int = 6) -> None:
    """Marks of a horizontal axis in seconds: `30 s`, `5 min`, `2 h`; call it when all is drawn."""
    from matplotlib.ticker import MultipleLocator

    low, high = axis.get_xlim()
    beyond = (DAY * n * 10.0**zeros for zeros in itertools.count(2) for n in (1, 2, 5))
    step = next(one for one in itertools.chain(TIME_STEPS, beyond) if (high - low) / one <= most)
    length, unit = next((pair for pair in TIME_UNITS if pair[0] <= step), TIME_UNITS[-1])
    axis.xaxis.set_major_locator(MultipleLocator(step))
    axis.xaxis.set_major_formatter(
        lambda value, _: "0" if abs(value) < step / 2 else f"{value / length:g} {unit}"
    )


def label_both_sides(axis: Axes, labels: Sequence[str], about: str) -> None:
    """The same labels along both sides of a table, as many as can be read."""
    thin = -(-len(labels) // MOST_NAMED)
    places, shown = range(0, len(labels), thin), labels[::thin]
    axis.set_xticks(places, shown)
    axis.set_yticks(places, shown)
    if max(map(len, shown)) * len(shown) > MOST_NAMED:
        axis.tick_params(axis="x", rotation=90)
    axis.set_xlabel(about)
    axis.set_ylabel(about)


def colour_table(
    axis: Axes, values: Any, label: str, *, low: float, high: float, map: str = "viridis"
) -> Any:
    """A table of colours with its bar; the numbers too where there is room."""
    cells = np.asarray(values, np.float64)
    axis.grid(False)
    axis.spines[["top", "right", "bottom", "left"]].set_visible(False)
    image = axis.imshow(
        cells, vmin=low, vmax=high, cmap=map, aspect="auto", interpolation="nearest"
    )
    figure = axis.figure
    figure.colorbar(image, ax=axis, label=label, shrink=0.9)  # type: ignore[union-attr]
    return image


def panel_title(axis: Axes, numbers: Mapping[str, Any], name: str) -> None:
    """The run and its round, as the heading of a panel."""
    axis.set_title(f"{name}, round {numbers['round']}", fontsize=10, parse_math=False)


def log_heights(axis: Axes) -> None:
    """A logarithmic vertical axis with several marks, written as people write them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    marks = (1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1,)
    axis.yaxis.set_major_locator(MaxNLocator(5) if high < 2 * low else LogLocator(subs=marks))
    axis.yaxis.set_major_formatter("{x:g}")  # 3, not 3 × 10⁰
    axis.yaxis.set_minor_formatter(NullFormatter())
