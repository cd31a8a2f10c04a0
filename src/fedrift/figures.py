"""Figures for papers and slides, drawn with matplotlib: no browser, no screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito (2008): told apart by people with any kind of colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
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


Panel = Mapping[str, Sequence[Curve]]


def new_figure(panels: int, *, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels side by side; needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, sharey=sharey, squeeze=False)[0]
    return figure, list(axes)


def curves(runs: Panel, path: Path) -> Path:
    """Accuracy (or loss) over rounds, one line per name, a band where there are several seeds."""
    return panels({"": runs}, path)


def panels(titled: Mapping[str, Panel], path: Path) -> Path:
    """The same in several panels with a common vertical axis."""
    figure, axes = new_figure(len(titled))
    for axis, (title, runs) in zip(axes, titled.items(), strict=True):
        _draw(axis, runs)
        axis.set_title(title)
    measured = any(r.accuracy for runs in titled.values() for rs in runs.values() for r in rs)
    axes[0].set_ylabel("test accuracy" if measured else "test loss")
    if axes[-1].get_legend_handles_labels()[0]:
        axes[-1].legend(frameon=False, loc="lower right" if measured else "upper right")
    return save(figure, path)


def _draw(axis: Axes, runs: Panel) -> None:
    for colour, (name, results) in zip(COLOURS * 8, runs.items(), strict=False):
        series = [r.accuracy or r.loss for r in results]
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
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure; the ending decides the format."""
    from fedrift.errors import InputError

    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(sorted(SUFFIXES))
        raise InputError(f"picture '{path}': the ending must be one of {known}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
