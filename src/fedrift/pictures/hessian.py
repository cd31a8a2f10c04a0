"""Eigenvalues and spectral density of the Hessian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.pictures.spectrum import SHARE, smoothed, span
from fedrift.pictures.style import colour, legend, panels
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-9  # of the highest density: one outlier among a million weights is still seen


def eigenvalues(figure: Figure, runs: Mapping[str, Record]) -> None:
    """The largest ones of the global models; local models as crosses."""
    (axis,) = panels(figure, 1)
    for place, (name, numbers) in enumerate(runs.items()):
        values = numbers["global"]["eigenvalues"]
        ranks = range(1, len(values) + 1)
        axis.plot(ranks, values, "o-", color=colour(place), label=f"{name}, global model")
        for i, local in enumerate(numbers["clients"].values()):
            label = f"{name}, local models" if not i else None
            found = local["eigenvalues"]
            at = range(1, len(found) + 1)
            axis.plot(at, found, "x", color=colour(place), alpha=0.6, label=label)
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
    width = max(span(found["nodes"]) for *_, found in shown) / SHARE
    for place, label, line, found in shown:
        grid, curve = smoothed(found["nodes"], found["weights"], width)
        highest = max(highest, float(curve.max()))
        style: dict[str, Any] = {"color": colour(place), "label": label, "linestyle": line}
        axis.semilogy(grid, np.maximum(curve, 1e-300), lw=1.5, **style)
    axis.set_ylim(highest * FLOOR, highest * 2)
    axis.set_xlabel("eigenvalue of the Hessian")
    axis.set_ylabel("spectral density (share per unit)")
    legend(figure, [axis], 3)


def _densities(name: str, numbers: Record) -> list[tuple[str | None, str, Record]]:
    """Label, line style and numbers of every model whose density was measured."""
    local = [one for one in numbers["clients"].values() if "nodes" in one]
    label = f"{name}, global model" if local else name
    found: list[tuple[str | None, str, Record]] = [(label, "-", numbers["global"])]
    return [
        *found,
        *((None if i else f"{name}, local models", "--", x) for i, x in enumerate(local)),
    ]
