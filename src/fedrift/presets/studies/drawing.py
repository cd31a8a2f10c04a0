"""Figures of studies: curves and bars in panels, as png and svg."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedrift.analysis.examine import draw_file
from fedrift.pictures.style import colour, legend, names, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedrift.result import Result

ENDINGS = ("png", "svg")
Curve = tuple[Sequence[float], Sequence[float]]


def draw(folder: Path, name: str, picture: Callable[[Figure], None]) -> str:
    """A figure as png and svg; returns its name."""
    for ending in ENDINGS:
        draw_file(picture, folder / f"{name}.{ending}")
    return name


def curves(
    figure: Figure,
    shown: Mapping[str, Mapping[str, Curve]],
    x: str,
    y: str,
    *,
    marks: bool = False,
    dashed: Callable[[str], bool] = lambda label: False,
    ticks: Sequence[str] = (),
) -> None:
    """A panel for each title, a curve for each label; one label has one colour everywhere.

    ticks: what 0, 1, … on the horizontal axis are called.
    """
    from matplotlib.ticker import MaxNLocator

    axes = panels(figure, len(shown))
    labels = list(dict.fromkeys(label for by_label in shown.values() for label in by_label))
    for axis, (title, by_label) in zip(axes, shown.items(), strict=True):
        for label, (at, values) in by_label.items():
            style = ("s" if dashed(label) else "o") if marks else ""
            style += "--" if dashed(label) else "-"
            axis.plot(
                at, values, style, color=colour(labels.index(label)), label=label, ms=3.5, lw=1.6
            )
        axis.set_title(title, fontsize=10, parse_math=False)
        axis.set_xlabel(x)
        if ticks:
            names(axis, ticks)
        elif all(float(at).is_integer() for along, _ in by_label.values() for at in along):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel(y)
    legend(figure, axes, 4)


def accuracies(
    folder: Path,
    name: str,
    shown: Mapping[str, Mapping[str, Curve]],
    x: str = "round",
    *,
    marks: bool = False,
    dashed: Callable[[str], bool] = lambda label: False,
) -> str:
    """Curves of the test accuracy, in files of that name."""
    y = "test accuracy (%)"
    return draw(folder, name, partial(curves, shown=shown, x=x, y=y, marks=marks, dashed=dashed))


def over_rounds(result: Result) -> Curve:
    """Test accuracy of a run, in per cent."""
    return result.rounds, [100 * a for a in result.accuracy]


def bars(
    figure: Figure, shown: Mapping[str, Mapping[str, float]], y: str, *, log: bool = False
) -> None:
    """A panel for each title, a bar for each label."""
    axes = panels(figure, len(shown))
    for axis, (title, values) in zip(axes, shown.items(), strict=True):
        places = range(len(values))
        axis.bar(places, list(values.values()), 0.65, color=[colour(i) for i in places])
        names(axis, list(values))
        axis.set_title(title, fontsize=10, parse_math=False)
        axis.grid(axis="x", visible=False)
        if log:
            axis.set_yscale("log")
    axes[0].set_ylabel(y)
