"""The picture of a merge: every model on every task, and the line between the first two."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrift.figures.style import COLOURS, new_figure, save
from fedrift.storage.jsonl import Record


def save_picture(merge: Record, path: Path) -> Path:
    """From the record of a merge: scores as a table of colours, loss between two models."""
    scores, line = np.array(merge["scores"], np.float64), merge["line"]
    names = [Path(name).name for name in merge["models"]]
    figure, axes = new_figure(2 if line else 1, sharey=False)
    table = axes[0]
    table.imshow(scores, cmap="viridis", aspect="auto")
    table.set_xticks(range(len(names)), names, rotation=20, ha="right")
    table.set_yticks(range(len(names) + 1), [*names, f"merged: {merge['how']}"])
    middle = float(np.nanmean(scores))
    for (row, column), score in np.ndenumerate(scores):
        colour = "black" if score > middle else "white"
        table.text(column, row, f"{score:.3f}", ha="center", va="center", color=colour)
    table.set_title(f"{merge['measure']} on each task")
    if line:
        axes[1].plot(np.linspace(0, 1, len(line)), line, color=COLOURS[0], marker="o", ms=3)
        axes[1].set_xlabel(f"from {names[0]} to {names[1]}")
        axes[1].set_ylabel("mean loss over all tasks")
        axes[1].set_title("between the first two models")
    return save(figure, path)
