"""Test images in a grid: one row for each model, wrong answers marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG = "#009E73", "#D55E00"
SIDE = 0.86  # inches of an image


def images(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Columns are images, rows are models; a frame and a cross mark what is wrong."""
    run, numbers = next(iter(runs.items()))
    pictures, true, rows = np.array(numbers["images"], np.uint8), numbers["true"], numbers["models"]
    figure.set_size_inches(1.5 + SIDE * len(true), 0.7 + (SIDE + 0.24) * len(rows))
    axes: Any = figure.subplots(len(rows), len(true), squeeze=False)
    for row, (name, found) in zip(axes, rows.items(), strict=True):
        for i, axis in enumerate(row):
            said = found["labels"][i]
            is_right = said == true[i]
            picture = pictures[i] if pictures.shape[-1] == 3 else pictures[i, ..., 0]
            axis.imshow(picture, cmap="gray_r", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            ink = RIGHT if is_right else WRONG
            for side in axis.spines.values():
                side.set(color=ink, linewidth=1 if is_right else 2.6)
            words = f"{said} ✓" if is_right else f"{said} ✗"
            axis.set_xlabel(words, fontsize=9, color=ink, labelpad=2)
        share = f"{name}\n{100 * found['accuracy']:.0f} % right"
        row[0].set_ylabel(share, rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
    for axis, label in zip(axes[0], true, strict=True):
        axis.set_title(f"true {label}", fontsize=9)
    heading = f"{run}, round {numbers['round']}: what each model takes test images for"
    figure.suptitle(heading, fontsize=10, parse_math=False)
