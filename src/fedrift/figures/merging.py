"""The picture of a merge: every model on every task, the line and the plane between models."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from fedrift.errors import decimals
from fedrift.figures.style import COLOURS, new_figure, save
from fedrift.storage.jsonl import Record

LONGEST_ROW = 24  # letters of a row's name before it is broken


def save_picture(merge: Record, path: Path) -> Path:
    """From the record of a merge: scores and interference as tables of colours, loss between two
    models, and over the plane through three."""
    scores, line = np.array(merge["scores"], np.float64), merge["line"]
    plane = merge.get("plane")
    pairs = np.array(merge["pairs"], np.float64)
    names, tasks = ([Path(name).name for name in merge[key]] for key in ("models", "tasks"))
    is_paired = not np.isnan(pairs).any()
    figure, axes = new_figure(1 + is_paired + bool(line) + bool(plane), sharey=False)
    free = iter(axes)
    axis = next(free)
    how = "\n".join(wrap(f"merged: {merge['how']}".replace(",", ", "), LONGEST_ROW))
    _table(axis, scores, [*names, how], tasks)
    axis.set_title(f"{merge['measure']} on each task")
    if is_paired:
        axis = next(free)
        np.fill_diagonal(pairs, np.nan)  # with itself nothing is merged
        _table(axis, pairs, names, names)
        axis.set_ylabel("merged with this one alone")
        axis.set_title("what each task loses")
    if line:
        axis = next(free)
        axis.plot(np.linspace(0, 1, len(line)), line, color=COLOURS[0], marker="o", ms=3)
        axis.set_xlabel(f"from {names[0]} to {names[1]}")
        axis.set_ylabel("mean loss over all tasks")
        axis.set_title("between the first two models")
    if plane:
        _plane(next(free), plane, names)
    return save(figure, path)


def _plane(axis: Any, plane: Record, names: list[str]) -> None:
    """Loss as levels, the models and the foot of the merged one as points."""
    from matplotlib.patheffects import withStroke

    x, y, loss = (np.array(plane[key], np.float64) for key in ("x", "y", "loss"))
    filled = axis.contourf(x, y, loss, levels=15, cmap="viridis")
    axis.contour(x, y, loss, levels=15, colors="white", linewidths=0.3, alpha=0.5)
    axis.figure.colorbar(filled, ax=axis)
    for (a, b), name in zip(plane["models"], [*names[:3], "merged"], strict=True):
        mark = "*" if name == "merged" else "o"
        axis.plot(a, b, mark, color="white", mec="black", ms=11 if mark == "*" else 7)
        axis.annotate(name, (a, b), xytext=(6, 5), textcoords="offset points", color="white",
                      path_effects=[withStroke(linewidth=2, foreground="black")])  # fmt: skip
    axis.set_aspect("equal")
    axis.set_xlabel("distance of weights")
    axis.set_title("mean loss on the plane of three")


def _table(axis: Any, values: np.ndarray, rows: list[str], columns: list[str]) -> None:
    axis.imshow(values, cmap="viridis", aspect="auto")
    axis.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    axis.set_xlabel("task")
    axis.set_yticks(range(len(rows)), rows)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    digits = decimals(values.flat, 3)
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "black" if value > middle else "white"
            axis.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=colour)
