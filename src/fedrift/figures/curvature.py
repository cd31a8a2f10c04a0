"""Curvature: the Hessian's eigenvalues and density, sharpness, and the loss around models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedrift.figures.style import colour_of, legend, name_ticks, panel_title, panels
from fedrift.storage.jsonl import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
SHARE = 100  # a bell's width is this part of the spectrum's span
POINTS = 400
FLOOR = 1e-9  # of the highest density: one outlier among a million weights is still seen
AROUND = 7  # widths beyond the outermost nodes: their bells end below what is drawn


def eigenvalues(figure: Figure, runs: Mapping[str, Record]) -> None:
    """The largest ones of the global models; local models as crosses."""
    (axis,) = panels(figure, 1)
    for place, (name, numbers) in enumerate(runs.items()):
        values = numbers["global"]["eigenvalues"]
        ranks = range(1, len(values) + 1)
        axis.plot(ranks, values, "o-", color=colour_of(place), label=f"{name}, global model")
        for i, local in enumerate(numbers["clients"].values()):
            label = f"{name}, local models" if not i else None
            local_values = local["eigenvalues"]
            at = range(1, len(local_values) + 1)
            axis.plot(at, local_values, "x", color=colour_of(place), alpha=0.6, label=label)
    axis.axhline(0, color="grey", linewidth=0.8)
    longest = max(len(n["global"]["eigenvalues"]) for n in runs.values())
    axis.set_xticks(range(1, longest + 1))
    axis.set_xlabel("rank by size")
    axis.set_ylabel("eigenvalue of the Hessian")
    legend(figure, [axis], 2)


def density(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Share of eigenvalues per unit, on a logarithmic scale; local models dashed, if measured."""
    (axis,) = panels(figure, 1)
    highest = 0.0
    shown = [(place, *one) for place, run in enumerate(runs.items()) for one in _densities(*run)]
    # one width for all: the heights of curves of different smoothness cannot be compared
    width = max(span(spectrum["nodes"]) for *_, spectrum in shown) / SHARE
    for place, label, line, spectrum in shown:
        grid, curve = smoothed(spectrum["nodes"], spectrum["weights"], width)
        highest = max(highest, float(curve.max()))
        style: dict[str, Any] = {"color": colour_of(place), "label": label, "linestyle": line}
        axis.semilogy(grid, np.maximum(curve, 1e-300), lw=1.5, **style)
    axis.set_ylim(highest * FLOOR, highest * 2)
    axis.set_xlabel("eigenvalue of the Hessian")
    axis.set_ylabel("spectral density (share per unit)")
    legend(figure, [axis], 3)


def _densities(name: str, numbers: Record) -> list[tuple[str | None, str, Record]]:
    """Label, line style and numbers of every model whose density was measured."""
    local = [one for one in numbers["clients"].values() if "nodes" in one]
    label = f"{name}, global model" if local else name
    shown: list[tuple[str | None, str, Record]] = [(label, "-", numbers["global"])]
    return [
        *shown,
        *((None if i else f"{name}, local models", "--", x) for i, x in enumerate(local)),
    ]


def span(nodes: Sequence[Any]) -> float:
    """From the lowest node of all probes to the highest."""
    return max(max(map(np.max, nodes)) - min(map(np.min, nodes)), 1e-12)


def smoothed(
    nodes: Sequence[Any], weights: Sequence[Any], width: float | None = None, points: int = POINTS
) -> tuple[Floats, Floats]:
    """The mean over probes of Gaussians at their nodes, on a grid that covers all of them."""
    sigma = span(nodes) / SHARE if width is None else width
    low, high = min(map(np.min, nodes)), max(map(np.max, nodes))
    grid = np.linspace(low - AROUND * sigma, high + AROUND * sigma, points)
    total = np.zeros(points)
    for at, share in zip(nodes, weights, strict=True):
        bells = np.exp(-0.5 * ((grid[:, None] - np.asarray(at)) / sigma) ** 2)
        total += bells @ np.asarray(share) / (sigma * np.sqrt(2 * np.pi))
    return grid, total / len(nodes)


# Sharpness of global models, and of local models on their own data beside it.

KINDS = {"one_step": "one ascent step", "ascent": "projected ascent"}


def rises(figure: Figure, runs: Mapping[str, Record]) -> None:
    """How much the loss of the global model rises within the radius: plain and adaptive."""
    axes = panels(figure, 2)
    first = next(iter(runs.values()))
    for axis, prefix, radius in ((axes[0], "", "rho"), (axes[1], "adaptive_", "rho_a")):
        for i, (key, label) in enumerate(KINDS.items()):
            heights = [n["global"][prefix + key] for n in runs.values()]
            places = np.arange(len(runs)) + 0.36 * (i - 0.5)
            axis.bar(places, heights, 0.34, color=colour_of(i), label=label)
        name_ticks(axis, list(runs))
        axis.set_title("adaptive sharpness" if prefix else "sharpness", fontsize=10)
        axis.set_ylabel(f"rise of the loss within ρ = {first[radius]:g}")
        axis.grid(axis="x", visible=False)
    legend(figure, axes)


def discrepancy(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Local models on their own data against the global model on the same clients' data."""
    (axis,) = panels(figure, 1)
    for place, numbers in enumerate(runs.values()):
        local = [one["ascent"] for one in numbers["clients"].values()]
        label = "local models, own data" if not place else None
        axis.plot([place] * len(local), local, "o", color=colour_of(0), alpha=0.6, label=label)
        label = "their mean" if not place else None
        axis.plot(place, np.mean(local), "_", color=colour_of(0), ms=22, mew=2.5, label=label)
        label = "global model, their pooled data" if not place else None
        axis.plot(place, numbers["pooled"]["ascent"], "D", color=colour_of(1), label=label)
    axis.set_xlim(-0.6, len(runs) - 0.4)
    name_ticks(axis, list(runs))
    axis.set_ylabel(f"rise of the loss within ρ = {next(iter(runs.values()))['rho']:g}")
    axis.grid(axis="x", visible=False)
    legend(figure, [axis], 1)


# Loss and accuracy between models, on the plane through three, and around one.

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
            style: dict[str, Any] = {"color": colour_of(i if alone else place), "linewidth": 1.8}
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
        surface = numbers["plane"]
        _draw_surface(axis, surface)
        _draw_path(axis, surface["path"])
        for place, (name, at) in enumerate(surface["models"].items()):
            axis.plot(*at, "o", markersize=8, color=colour_of(place), markeredgecolor="white")
            words: dict[str, Any] = {"fontsize": 9, "color": "black"}
            words["bbox"] = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1.5}
            axis.annotate(name, at, (7, 6), "data", "offset points", **words)
        axis.set_xlabel("towards the first local model (filter-normalised)")
        axis.set_ylabel("at right angles to it")
        panel_title(axis, numbers, run)


def _draw_path(axis: Axes, path: list[Any]) -> None:
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
    heights = np.concatenate([np.array(surface["loss"]).ravel() for surface in charts])
    known = heights[np.isfinite(heights)]
    span = float(known.min()), float(np.quantile(known, 0.95))
    for axis, (run, numbers) in zip(axes, runs.items(), strict=True):
        _draw_surface(axis, numbers["around"], span)
        axis.plot(0, 0, "*", markersize=13, color="#F0E442", markeredgecolor="black")
        axis.set_xlabel("first random direction (filter-normalised)")
        axis.set_ylabel("second random direction")
        panel_title(axis, numbers, run)


def _draw_surface(axis: Axes, surface: Record, span: tuple[float, float] | None = None) -> None:
    loss = np.array(surface["loss"], np.float64)
    known = loss[np.isfinite(loss)]
    low, high = span or (float(known.min()), float(np.quantile(known, 0.95)))
    high = high if high > low else low + 1e-6
    levels = _round_levels(low, high)
    x, y = np.array(surface["x"]), np.array(surface["y"])
    clipped = np.clip(loss, low, None)
    filled = axis.contourf(x, y, clipped, levels, cmap="viridis", extend="max")
    axis.contour(x, y, clipped, levels, colors="white", linewidths=0.4, alpha=0.6)
    axis.grid(False)
    axis.set_aspect("equal")
    figure = axis.figure
    figure.colorbar(filled, ax=axis, label="mean loss", shrink=0.85)  # type: ignore[union-attr]


def _round_levels(low: float, high: float) -> np.ndarray:
    """Heights with few digits, for the bar to name."""
    from matplotlib.ticker import MaxNLocator

    return np.asarray(MaxNLocator(LEVELS, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
