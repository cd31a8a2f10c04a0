"""Sharpness of global models, and of local models on their own data beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedrift.pictures.style import colour, legend, names, panels
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"one_step": "one ascent step", "ascent": "projected ascent"}


def rises(figure: Figure, runs: Mapping[str, Record]) -> None:
    """How much the loss of the global model rises within the radius: plain and adaptive."""
    axes = panels(figure, 2)
    first = next(iter(runs.values()))
    for axis, prefix, radius in ((axes[0], "", "rho"), (axes[1], "adaptive_", "rho_a")):
        for i, (key, label) in enumerate(KINDS.items()):
            heights = [n["global"][prefix + key] for n in runs.values()]
            places = np.arange(len(runs)) + 0.36 * (i - 0.5)
            axis.bar(places, heights, 0.34, color=colour(i), label=label)
        names(axis, list(runs))
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
        axis.plot([place] * len(local), local, "o", color=colour(0), alpha=0.6, label=label)
        label = "their mean" if not place else None
        axis.plot(place, np.mean(local), "_", color=colour(0), ms=22, mew=2.5, label=label)
        label = "global model, their pooled data" if not place else None
        axis.plot(place, numbers["pooled"]["ascent"], "D", color=colour(1), label=label)
    axis.set_xlim(-0.6, len(runs) - 0.4)
    names(axis, list(runs))
    axis.set_ylabel(f"rise of the loss within ρ = {next(iter(runs.values()))['rho']:g}")
    axis.grid(axis="x", visible=False)
    legend(figure, [axis], 1)
