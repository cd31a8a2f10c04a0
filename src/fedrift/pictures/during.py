"""Curves of what was measured while runs went on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.pictures.style import colour, legend, panels
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _column(rows: Sequence[Record], *path: str) -> tuple[list[int], list[float]]:
    """Rounds and values of those rows that have the number."""
    rounds: list[int] = []
    values: list[float] = []
    for row in rows:
        found: Any = row
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, int | float):
            rounds.append(row["round"])
            values.append(float(found))
    return rounds, values


def drift(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Distances and angles of the updates as they arrived."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour(place), "marker": "o", "ms": 3}
        rows = numbers["rows"]
        axes[0].plot(*_column(rows, "drift", "distance"), **style)
        label = f"{name}, with the average"
        axes[1].plot(*_column(rows, "drift", "cosine_to_average"), label=label, **style)
        label = f"{name}, with each other"
        axes[1].plot(*_column(rows, "drift", "cosine_between"), "--", label=label, **style)
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(r"mean distance $\|w - w_i\|$")
    axes[1].set_ylabel("mean cosine of updates")
    legend(figure, [axes[1]], 2)


def recency(figure: Figure, runs: Mapping[str, Record]) -> None:
    """How much more accurate the classes of the cohort are, and what is forgotten."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour(place), "marker": "o", "ms": 3, "label": name}
        for axis, key in ((axes[0], "lift"), (axes[1], "forgetting")):
            rounds, values = _column(numbers["rows"], "classes", key)
            axis.plot(rounds, 100 * np.array(values), **style)
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].axhline(0, color="grey", linewidth=0.8)
    axes[0].set_ylabel("held by the cohort − others (points)")
    axes[1].set_ylabel("below the best earlier accuracy (points)")
    legend(figure, axes)


def gradients(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Dissimilarity of client gradients, and what control variates have learned of them."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour(place), "marker": "o", "ms": 3, "label": name}
        rows = numbers["rows"]
        axes[0].plot(*_column(rows, "gradients", "dissimilarity", "ratio"), **style)
        for letter in ("c", "h"):
            found = _column(rows, "gradients", "controls", letter, "mean_cosine")
            if found[0]:
                style |= {"label": f"{name}, {letter} of the clients", "marker": "s"}
                axes[1].plot(*found, **style)
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].set_ylabel("gradient dissimilarity B (1: all agree)")
    axes[1].set_ylim(-1.05, 1.05)
    axes[1].set_ylabel(r"cosine of control variate and $\nabla F_i(w)$")
    legend(figure, axes)


def curvature(figure: Figure, runs: Mapping[str, Record]) -> None:
    """The largest eigenvalue, and sharpness, over rounds."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour(place), "marker": "o", "ms": 3, "label": name}
        rows = numbers["rows"]
        tops = [
            (row["round"], row["hessian"]["global"]["eigenvalues"][0])
            for row in rows
            if "global" in row.get("hessian", {})
        ]
        axes[0].plot(*zip(*tops, strict=True) if tops else ((), ()), **style)
        axes[1].plot(*_column(rows, "sharpness", "global", "ascent"), **style)
    found = (row["sharpness"].get("rho") for r in runs.values() for row in _with_sharpness(r))
    radii = sorted({f"{rho:g}" for rho in found if rho is not None})
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].set_ylabel("eigenvalue of largest size")
    axes[1].set_ylabel(f"rise of the loss within ρ = {' / '.join(radii)}" if radii else "sharpness")
    legend(figure, axes)


def _with_sharpness(numbers: Record) -> list[Record]:
    return [row for row in numbers["rows"] if "sharpness" in row]


DRAWN = {"drift": drift, "recency": recency, "gradients": gradients, "curvature": curvature}
_NEEDS = {
    "drift": (("drift", "distance"),),
    "recency": (("classes", "forgetting"),),
    "gradients": (("gradients", "dissimilarity"),),
    "curvature": (("hessian", "global"), ("sharpness", "global")),
}


def has(name: str, rows: Sequence[Record]) -> bool:
    """The rows hold what the figure shows."""
    return any(key in row.get(part, {}) for part, key in _NEEDS[name] for row in rows)
