"""How alike the layers of client models are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedrift.pictures.style import both_ways, colour, legend, names, panels, table, title
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def by_layer(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Mean similarity of each layer between clients, with its range, and to the global model."""
    (axis,) = panels(figure, 1)
    for place, (name, numbers) in enumerate(runs.items()):
        layers = numbers["layers"]
        at = range(len(layers))
        between = [one["between"] for one in layers.values()]
        axis.plot(at, between, "o-", color=colour(place), label=f"{name}, between clients")
        low = [one["lowest"] for one in layers.values()]
        high = [one["highest"] for one in layers.values()]
        axis.fill_between(at, low, high, color=colour(place), alpha=0.12, lw=0)
        to_global = [one["to_global"] for one in layers.values()]
        axis.plot(at, to_global, "s--", color=colour(place), ms=4, label=f"{name}, to global")
    names(axis, list(next(iter(runs.values()))["layers"]))
    axis.set_ylim(top=1.02)
    axis.set_xlabel("layer, from input to output")
    axis.set_ylabel("linear CKA (band: all pairs of clients)")
    legend(figure, [axis], 2)


def last_layer(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Every pair of clients in the last layer."""
    axes = panels(figure, len(runs))
    for axis, (name, numbers) in zip(axes, runs.items(), strict=True):
        layer, found = list(numbers["layers"].items())[-1]
        values = np.array(found["pairs"])
        clients = [str(c) for c in numbers["clients"]]
        table(axis, values, f"linear CKA, layer {layer}", low=min(0.9, values.min()), high=1.0)
        both_ways(axis, clients, "client")
        title(axis, numbers, name)
