"""The picture of an attack: inputs of a client, and what was read of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedrift.figures.style import empty_figure, save

MOST = 8  # inputs side by side
SIDE = 0.75  # inches of a picture


def save_picture(
    inputs: np.ndarray,
    read: Mapping[str, np.ndarray],
    correlations: Mapping[str, np.ndarray],
    path: Path,
) -> Path:
    """A row for the inputs and one for each setting; the figure below a picture is its correlation
    with the input."""
    shown = min(MOST, len(inputs))
    rows = {"the client's inputs": inputs, **read}
    figure = empty_figure()
    figure.set_size_inches(2.4 + SIDE * shown, (SIDE + 0.22) * len(rows))
    axes = figure.subplots(len(rows), shown, squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for i, axis in enumerate(line):
            _draw(axis, pictures[i])
            if name in correlations:
                axis.set_xlabel(f"{correlations[name][i]:.2f}", fontsize=7, labelpad=1)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    return save(figure, path)


def _draw(axis: object, values: np.ndarray) -> None:
    """An image, or the numbers of a sample as one row."""
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(False)
    picture = values if values.ndim == 3 else values.reshape(1, 1, -1)
    low, high = float(picture.min()), float(picture.max())
    scaled = (picture - low) / (high - low or 1.0)
    grey = scaled.shape[0] not in (3, 4)
    axis.imshow(
        scaled[0] if grey else np.moveaxis(scaled, 0, -1),
        cmap="gray" if grey else None,
        aspect="equal" if values.ndim == 3 else "auto",
    )
