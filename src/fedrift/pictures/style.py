"""What all figures share: an empty sheet, quiet axes, one legend, tables of colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 3.4  # inches of one panel
ROW = 0.2  # inches of one more line of a legend
LETTERS = 13  # that fit into an inch
LONGEST = 22  # letters of a name below an axis
ACROSS = 3  # panels side by side; four stand two by two
MOST_NAMED = 24  # rows or columns of a table whose cells are labelled


def sheet() -> Figure:
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
    made: list[Axes] = list(figure.subplots(down, across, squeeze=False).ravel())
    axes, spare = made[:count], made[count:]
    for axis in spare:
        axis.remove()
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return axes


def colour(place: int) -> str:
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
    made = figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=number,
        frameon=False,
    )
    for text in made.get_texts():
        text.set_parse_math(False)  # names may hold any sign


def names(axis: Axes, labels: Sequence[str]) -> None:
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


def both_ways(axis: Axes, labels: Sequence[str], about: str) -> None:
    """The same labels along both sides of a table, as many as can be read."""
    thin = -(-len(labels) // MOST_NAMED)
    places, shown = range(0, len(labels), thin), labels[::thin]
    axis.set_xticks(places, shown)
    axis.set_yticks(places, shown)
    if max(map(len, shown)) * len(shown) > MOST_NAMED:
        axis.tick_params(axis="x", rotation=90)
    axis.set_xlabel(about)
    axis.set_ylabel(about)


def table(
    axis: Axes, values: Any, label: str, *, low: float, high: float, map: str = "viridis"
) -> Any:
    """A table of colours with its bar; the numbers too where there is room."""
    held = np.asarray(values, np.float64)
    axis.grid(False)
    axis.spines[["top", "right", "bottom", "left"]].set_visible(False)
    image = axis.imshow(held, vmin=low, vmax=high, cmap=map, aspect="auto", interpolation="nearest")
    figure = axis.figure
    figure.colorbar(image, ax=axis, label=label, shrink=0.9)  # type: ignore[union-attr]
    return image


def title(axis: Axes, numbers: Mapping[str, Any], name: str) -> None:
    """The run and its round, as the heading of a panel."""
    axis.set_title(f"{name}, round {numbers['round']}", fontsize=10, parse_math=False)
