"""Loss and accuracy between models, on the plane through three, and around one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.pictures.style import colour, legend, panels, title
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
LEVELS = 14
APART = 0.09  # of the map's side: numbers of rounds that are closer would cover each other


def lines(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Loss and accuracy along the lines; with several runs, one colour for each."""
    has_accuracy = any(v["accuracy"] for n in runs.values() for v in n["lines"].values())
    axes = panels(figure, 2 if has_accuracy else 1)
    for place, (run, numbers) in enumerate(runs.items()):
        for i, (name, values) in enumerate(numbers["lines"].items()):
            alone = len(runs) == 1
            style: dict[str, Any] = {"color": colour(i if alone else place), "linewidth": 1.8}
            style |= {"linestyle": "-" if alone else STYLES[i % len(STYLES)]}
            style |= {"label": name if alone else f"{run}: {name}"}
            axes[0].plot(values["at"], values["loss"], **style)
            if has_accuracy and values["accuracy"]:
                axes[1].plot(values["at"], [100 * a for a in values["accuracy"]], **style)
    for axis in axes:
        for end in (0, 1):
            axis.axvline(end, color="grey", linewidth=0.8, linestyle=":")
        axis.set_xticks([-0.5, 0, 0.5, 1, 1.5])
        axis.set_xlabel("position on the line (0: first model, 1: second)")
    axes[0].set_ylabel("mean loss")
    if has_accuracy:
        axes[1].set_ylabel("accuracy (%)")
    legend(figure, axes, 3 if len(runs) == 1 else 2)


def plane(figure: Figure, runs: Mapping[str, Record]) -> None:
    """The plane through the global and two local models, with the way the global one came."""
    axes = panels(figure, len(runs), 4.2, 5.0)
    for axis, (run, numbers) in zip(axes, runs.items(), strict=True):
        found = numbers["plane"]
        _chart(axis, found)
        _way(axis, found["path"])
        for place, (name, at) in enumerate(found["models"].items()):
            axis.plot(*at, "o", markersize=8, color=colour(place), markeredgecolor="white")
            words: dict[str, Any] = {"fontsize": 9, "color": "black"}
            words["bbox"] = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5}
            axis.annotate(name, at, (7, 6), "data", "offset points", **words)
        axis.set_xlabel("towards the first local model (filter-normalised)")
        axis.set_ylabel("at right angles to it")
        title(axis, numbers, run)


def _way(axis: Axes, path: list[Any]) -> None:
    """Kept global models, projected; what lies outside the map is cut off."""
    if len(path) < 2:
        return
    (left, right), (down, up) = axis.get_xlim(), axis.get_ylim()
    points = np.array([[x, y] for _, x, y, _ in path])
    line: dict[str, Any] = {"color": "black", "linewidth": 1.2, "markersize": 5}
    axis.plot(*points.T, ".-", label="earlier rounds", path_effects=_halo(2.5), **line)
    words: dict[str, Any] = {"fontsize": 8, "path_effects": _halo(2.0)}
    named: list[tuple[float, float]] = []
    for round, x, y, _ in (path[0], path[-1], *path[1:-1]):
        across, along = (x - left) / (right - left), (y - down) / (up - down)
        is_near = any(math.dist((across, along), other) < APART for other in named)
        if 0 < across < 1 and 0 < along < 1 and not is_near:
            named.append((across, along))
            axis.annotate(str(round), (x, y), (3, -10), "data", "offset points", **words)
    axis.set(xlim=(left, right), ylim=(down, up))


def _halo(width: float) -> list[Any]:
    """Black reads on dark colours, too, with white around it."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground="white")]


def around(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Two random filter-normalised directions around the global model; one scale for all runs."""
    axes = panels(figure, len(runs), 4.2, 5.0)
    charts = [numbers["around"] for numbers in runs.values()]
    heights = np.concatenate([np.array(found["loss"]).ravel() for found in charts])
    known = heights[np.isfinite(heights)]
    span = float(known.min()), float(np.quantile(known, 0.95))
    for axis, (run, numbers) in zip(axes, runs.items(), strict=True):
        _chart(axis, numbers["around"], span)
        axis.plot(0, 0, "*", markersize=13, color="#F0E442", markeredgecolor="black")
        axis.set_xlabel("first random direction (filter-normalised)")
        axis.set_ylabel("second random direction")
        title(axis, numbers, run)


def _chart(axis: Axes, found: Record, span: tuple[float, float] | None = None) -> None:
    loss = np.array(found["loss"], np.float64)
    known = loss[np.isfinite(loss)]
    low, high = span or (float(known.min()), float(np.quantile(known, 0.95)))
    high = high if high > low else low + 1e-6
    levels = _round_levels(low, high)
    x, y = np.array(found["x"]), np.array(found["y"])
    held = np.clip(loss, low, None)
    filled = axis.contourf(x, y, held, levels, cmap="viridis", extend="max")
    axis.contour(x, y, held, levels, colors="white", linewidths=0.4, alpha=0.6)
    axis.grid(False)
    axis.set_aspect("equal")
    figure = axis.figure
    figure.colorbar(filled, ax=axis, label="mean loss", shrink=0.85)  # type: ignore[union-attr]


def _round_levels(low: float, high: float) -> np.ndarray:
    """Heights with few digits, for the bar to name."""
    from matplotlib.ticker import MaxNLocator

    return np.asarray(MaxNLocator(LEVELS, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
