"""The picture of a merge: every model on every task, and the line between the first two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedrift.figures.style import COLOURS, new_figure, save
from fedrift.storage.jsonl import Record


def save_picture(merge: Record, path: Path) -> Path:
    """From the record of a merge: scores and interference as tables of colours, loss between two
    models."""
    scores, line = np.array(merge["scores"], np.float64), merge["line"]
    pairs = np.array(merge["pairs"], np.float64)
    names = [Path(name).name for name in merge["models"]]
    figure, axes = new_figure(3 if line else 2, sharey=False)
    _table(axes[0], scores, [*names, f"merged: {merge['how']}"], names)
    axes[0].set_title(f"{merge['measure']} on each task")
    _table(axes[1], pairs, names, names)
    axes[1].set_title("lost by the task when merged with …")
    if line:
        axes[2].plot(np.linspace(0, 1, len(line)), line, color=COLOURS[0], marker="o", ms=3)
        axes[2].set_xlabel(f"from {names[0]} to {names[1]}")
        axes[2].set_ylabel("mean loss over all tasks")
        axes[2].set_title("between the first two models")
    return save(figure, path)


def _table(axis: Any, values: np.ndarray, rows: list[str], columns: list[str]) -> None:
    axis.imshow(values, cmap="viridis", aspect="auto")
    axis.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    axis.set_yticks(range(len(rows)), rows)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if value > middle else "white"
        axis.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour)
