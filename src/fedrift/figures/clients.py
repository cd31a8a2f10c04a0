"""Clients: their updates, control variates and layers, and all of that over the rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.figures.style import (
    colour_of,
    colour_table,
    label_both_sides,
    legend,
    name_ticks,
    panel_title,
    panels,
)
from fedrift.storage.jsonl import Record

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
            axis.plot(spread, values, "o", color=colour_of(place), alpha=0.6, ms=5, label=label)
            label = "mean of the clients" if not place else None
            axis.plot(place, np.mean(values), "_", color="black", ms=24, mew=2, label=label)
        axes[0].set_xlim(-0.6, len(runs) - 0.4)
        axes[1].set_xlim(-0.6, len(runs) - 0.4)
    for axis in axes:
        name_ticks(axis, list(runs))
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
        colour_table(
            axis,
            numbers["pairs"],
            r"cosine of $\Delta_i$ and $\Delta_j$",
            low=-1,
            high=1,
            map="RdBu_r",
        )
        label_both_sides(axis, clients, "client")
        panel_title(axis, numbers, name)


def controls(figure: Figure, runs: Mapping[str, Record]) -> None:
    """What control variates have learned: their angle to the client's true gradient."""
    controls_by_run = {name: n["controls"] for name, n in runs.items() if n.get("controls")}
    axes = panels(figure, 2)
    for place, (name, controls) in enumerate(controls_by_run.items()):
        for field, one in controls.items():
            label = f"{name}, {field} of the client"
            at = np.arange(len(one["cosines"]))
            axes[0].plot(at, one["cosines"], "o", color=colour_of(place), label=label)
            axes[1].plot(at, one["lengths"], "o", color=colour_of(place), label=label)
            axes[1].plot(
                at, one["gradients"], "x", color="black", label="true gradient of the client"
            )
        first = next(iter(controls.values()))
        for axis in axes:
            name_ticks(axis, [str(c) for c in first["clients"]])
            axis.set_xlabel("client")
    axes[0].axhline(0, color="grey", linewidth=0.8)
    axes[0].set_ylim(-1.05, 1.05)
    axes[0].set_ylabel(r"cosine with the true gradient $\nabla F_i(w)$")
    axes[1].set_ylim(0, 1.05 * axes[1].get_ylim()[1])  # the highest mark is seen whole
    axes[1].set_ylabel("length (norm)")
    legend(figure, axes)


# How alike the layers of client models are.


def by_layer(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Mean similarity of each layer between clients, with its range, and to the global model."""
    (axis,) = panels(figure, 1)
    for place, (name, numbers) in enumerate(runs.items()):
        layers = numbers["layers"]
        at = range(len(layers))
        between = [one["between"] for one in layers.values()]
        axis.plot(at, between, "o-", color=colour_of(place), label=f"{name}, between clients")
        low = [one["lowest"] for one in layers.values()]
        high = [one["highest"] for one in layers.values()]
        axis.fill_between(at, low, high, color=colour_of(place), alpha=0.12, lw=0)
        to_global = [one["to_global"] for one in layers.values()]
        axis.plot(at, to_global, "s--", color=colour_of(place), ms=4, label=f"{name}, to global")
    name_ticks(axis, list(next(iter(runs.values()))["layers"]))
    axis.set_ylim(top=1.02)
    axis.set_xlabel("layer, from input to output")
    axis.set_ylabel("linear CKA (band: all pairs of clients)")
    legend(figure, [axis], 2)


def last_layer(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Every pair of clients in the last layer."""
    axes = panels(figure, len(runs))
    for axis, (name, numbers) in zip(axes, runs.items(), strict=True):
        layer, similarity = list(numbers["layers"].items())[-1]
        values = np.array(similarity["pairs"])
        clients = [str(c) for c in numbers["clients"]]
        colour_table(
            axis, values, f"linear CKA, layer {layer}", low=min(0.9, values.min()), high=1.0
        )
        label_both_sides(axis, clients, "client")
        panel_title(axis, numbers, name)


# Curves of what was measured during a run.


def drift(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Distances and angles of the updates as they arrived."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour_of(place), "marker": "o", "ms": 3}
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
        style: dict[str, Any] = {"color": colour_of(place), "marker": "o", "ms": 3, "label": name}
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
        style: dict[str, Any] = {"color": colour_of(place), "marker": "o", "ms": 3, "label": name}
        rows = numbers["rows"]
        axes[0].plot(*_column(rows, "gradients", "dissimilarity", "ratio"), **style)
        for field in ("c", "h"):
            cosines = _column(rows, "gradients", "controls", field, "mean_cosine")
            if cosines[0]:
                style |= {"label": f"{name}, {field} of the clients", "marker": "s"}
                axes[1].plot(*cosines, **style)
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].set_ylabel("gradient dissimilarity B (1: all agree)")
    axes[1].set_ylim(-1.05, 1.05)
    axes[1].set_ylabel(r"cosine of control variate and $\nabla F_i(w)$")
    legend(figure, axes)


def step(figure: Figure, runs: Mapping[str, Record]) -> None:
    """How far the global step is off the true gradient, as an angle and as FedGF's ε."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour_of(place), "marker": "o", "ms": 3, "label": name}
        for axis, key in zip(axes, ("degrees", "epsilon"), strict=True):
            axis.plot(*_column(numbers["rows"], "step", key), **style)
    for axis in axes:
        axis.set_xlabel("round")
        axis.set_ylim(bottom=0)
    axes[0].set_ylabel(r"angle of $w_{t-1} - w_t$ and $\nabla F(w_t)$ (degrees)")
    axes[1].set_ylabel("ε: distance as unit vectors")
    legend(figure, axes)


def curvature(figure: Figure, runs: Mapping[str, Record]) -> None:
    """The largest eigenvalue, and sharpness, over rounds."""
    axes = panels(figure, 2)
    for place, (name, numbers) in enumerate(runs.items()):
        style: dict[str, Any] = {"color": colour_of(place), "marker": "o", "ms": 3, "label": name}
        rows = numbers["rows"]
        tops = [
            (row["round"], row["hessian"]["global"]["eigenvalues"][0])
            for row in rows
            if "global" in row.get("hessian", {})
        ]
        axes[0].plot(*zip(*tops, strict=True) if tops else ((), ()), **style)
        axes[1].plot(*_column(rows, "sharpness", "global", "ascent"), **style)
    measured_radii = (
        row["sharpness"].get("rho") for r in runs.values() for row in _with_sharpness(r)
    )
    radii = sorted({f"{rho:g}" for rho in measured_radii if rho is not None})
    for axis in axes:
        axis.set_xlabel("round")
    axes[0].set_ylabel("eigenvalue of largest size")
    axes[1].set_ylabel(f"rise of the loss within ρ = {' / '.join(radii)}" if radii else "sharpness")
    legend(figure, axes)


def _with_sharpness(numbers: Record) -> list[Record]:
    return [row for row in numbers["rows"] if "sharpness" in row]


LIVE_FIGURES = {
    "drift": drift,
    "recency": recency,
    "gradients": gradients,
    "step": step,
    "curvature": curvature,
}
_NEEDS = {
    "drift": (("drift", "distance"),),
    "recency": (("classes", "forgetting"),),
    "gradients": (("gradients", "dissimilarity"),),
    "step": (("step", "epsilon"),),
    "curvature": (("hessian", "global"), ("sharpness", "global")),
}


def has_numbers_for(name: str, rows: Sequence[Record]) -> bool:
    """The rows hold what the figure shows."""
    return any(key in row.get(part, {}) for part, key in _NEEDS[name] for row in rows)


def _column(rows: Sequence[Record], *path: str) -> tuple[list[int], list[float]]:
    """Rounds and values of those rows that have the number."""
    rounds: list[int] = []
    values: list[float] = []
    for row in rows:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            rounds.append(row["round"])
            values.append(float(value))
    return rounds, values
