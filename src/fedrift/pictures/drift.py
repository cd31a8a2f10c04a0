"""Where clients go: lengths and angles of their updates, gradients, control variates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedrift.pictures.style import both_ways, colour, legend, names, panels, table, title
from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def updates(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Distance of every local model and the angle of its update to the average."""
    axes = panels(figure, 2)
    for place, numbers in enumerate(runs.values()):
        for axis, key in ((axes[0], "distances"), (axes[1], "to_average")):
            values = numbers[key]
            spread = place + np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [place]
            label = "one client" if not place else None
            axis.plot(spread, values, "o", color=colour(place), alpha=0.6, ms=5, label=label)
            label = "mean of the clients" if not place else None
            axis.plot(place, np.mean(values), "_", color="black", ms=24, mew=2, label=label)
        axes[0].set_xlim(-0.6, len(runs) - 0.4)
        axes[1].set_xlim(-0.6, len(runs) - 0.4)
    for axis in axes:
        names(axis, list(runs))
        axis.grid(axis="x", visible=False)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel(r"distance $\|w - w_i\|$ after local work")
    axes[1].axhline(0, color="grey", linewidth=0.8)
    axes[1].set_ylabel(r"cosine of $\Delta_i$ with the average $D$")
    legend(figure, axes)


def pairs(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Angles between the updates of every two clients."""
    axes = panels(figure, len(runs))
    for axis, (name, numbers) in zip(axes, runs.items(), strict=True):
        clients = [str(c) for c in numbers["clients"]]
        table(
            axis,
            numbers["pairs"],
            r"cosine of $\Delta_i$ and $\Delta_j$",
            low=-1,
            high=1,
            map="RdBu_r",
        )
        both_ways(axis, clients, "client")
        title(axis, numbers, name)


def controls(figure: Figure, runs: Mapping[str, Record]) -> None:
    """What control variates have learned: their angle to the client's true gradient."""
    told = {name: n["controls"] for name, n in runs.items() if n.get("controls")}
    axes = panels(figure, 2)
    for place, (name, found) in enumerate(told.items()):
        for field, one in found.items():
            label = f"{name}, {field} of the client"
            at = np.arange(len(one["cosines"]))
            axes[0].plot(at, one["cosines"], "o", color=colour(place), label=label)
            axes[1].plot(at, one["lengths"], "o", color=colour(place), label=label)
            axes[1].plot(
                at, one["gradients"], "x", color="black", label="true gradient of the client"
            )
        first = next(iter(found.values()))
        for axis in axes:
            names(axis, [str(c) for c in first["clients"]])
            axis.set_xlabel("client")
    axes[0].axhline(0, color="grey", linewidth=0.8)
    axes[0].set_ylim(-1.05, 1.05)
    axes[0].set_ylabel(r"cosine with the true gradient $\nabla F_i(w)$")
    axes[1].set_ylim(0, 1.05 * axes[1].get_ylim()[1])  # the highest mark is seen whole
    axes[1].set_ylabel("length (norm)")
    legend(figure, axes)
