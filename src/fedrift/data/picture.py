"""The picture of a partition: who holds how much of which label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrift.data.parts import Floats, Ints
from fedrift.data.statistics import Statistics
from fedrift.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
MOST_NUMBERED = 22  # clients and classes up to which every cell shows its count
MOST_NAMED = 40  # clients or classes up to which every one has its own tick
BAR = "#4c78a8"
DARK = 25  # percent above which a cell needs white figures


def picture(statistics: Statistics, path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Draws label × client as a heat map under the clients' sizes; png, pdf or svg."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"picture '{path}' must end in {', '.join(FORMATS)}")
    figure = draw(statistics, class_names)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(temporary, dpi=150)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"cannot write the picture '{path}': {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def draw(statistics: Statistics, class_names: Sequence[str] = ()) -> Figure:
    """The figure itself, for a notebook."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    clients, classes = statistics.counts.shape
    names = list(class_names) or [str(c) for c in range(classes)]
    width = float(np.clip(1.9 + 0.42 * clients, 6.4, 12))
    height = float(np.clip(2.3 + 0.3 * classes, 4, 10))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(1, height - 2))
    labels = figure.add_subplot(grid[1])
    sizes = figure.add_subplot(grid[0], sharex=labels)
    _sizes(sizes, statistics)
    _labels(figure, labels, statistics, names)
    figure.suptitle(_title(statistics), fontsize=11, parse_math=False)
    return figure


def _title(statistics: Statistics) -> str:
    clients, distance = len(statistics.counts), statistics.mean_distance
    name = statistics.name if len(statistics.name) <= 40 else f"{statistics.name[:39]}…"
    noun = "client" if clients == 1 else "clients"
    return f"{name} · {clients:,} {noun} · mean label distance (TV) {distance:.2f}"


def _sizes(axes: Axes, statistics: Statistics) -> None:
    from matplotlib.ticker import MaxNLocator

    clients = len(statistics.counts)
    # Bars thinner than a dot vanish: without gaps they form an outline.
    axes.bar(range(clients), statistics.sizes, width=0.8 if clients <= 150 else 1, color=BAR)
    axes.set_ylabel("samples")
    axes.tick_params(axis="x", which="both", labelbottom=False, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _labels(figure: Figure, axes: Axes, statistics: Statistics, names: Sequence[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    clients, classes = statistics.counts.shape
    share = 100 * statistics.shares.T
    # White is nothing at all; one sample in a hundred must still differ from it.
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    held = np.ma.masked_equal(share, 0)
    image = axes.imshow(held, cmap=blues, norm=PowerNorm(0.5, 0, 100), aspect="auto")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if clients <= MOST_NAMED:
        axes.set_xticks(range(clients))
    if classes <= MOST_NAMED:
        axes.set_yticks(range(classes), names, parse_math=False)
    if clients <= MOST_NAMED and classes <= MOST_NAMED:
        _separate(axes, clients, classes)
    if clients <= MOST_NUMBERED and classes <= MOST_NUMBERED:
        _numbers(axes, statistics.counts.T, share)
    bar = figure.colorbar(image, ax=axes, label="% of the client's samples", pad=0.01)
    bar.set_ticks([0, 1, 5, 10, 25, 50, 75, 100])


def _separate(axes: Axes, clients: int, classes: int) -> None:
    """Thin lines between the cells, so that equal neighbours do not run together."""
    axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def _numbers(axes: Axes, counts: Ints, share: Floats) -> None:
    for (label, client), count in np.ndenumerate(counts):
        if count:
            colour = "white" if share[label, client] > DARK else "black"
            axes.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)
