"""Test images and what models take them for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
LARGEST = 64  # pixels along a side that are kept; larger images are thinned out


@dataclass(frozen=True)
class Predicted:
    """What one model says about some images, and how often it is right on all of the data."""

    labels: tuple[int, ...]
    accuracy: float


def chosen(labels: npt.NDArray[np.int64], number: int) -> list[int]:
    """Positions of images to show: the classes in turn, in the order of the data."""
    by_class = {c: np.flatnonzero(labels == c).tolist() for c in np.unique(labels[labels >= 0])}
    found: list[int] = []
    while len(found) < number and any(by_class.values()):
        for places in by_class.values():
            if places and len(found) < number:
                found.append(places.pop(0))
    return found


def is_image(x: object) -> bool:
    """Samples × channels × height × width with one or three channels, or without channels."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return False
    return (x.dim() == 4 and x.shape[1] in (1, 3)) or (x.dim() == 3 and min(x.shape[1:]) > 1)


def pixels(x: Tensor) -> Pixels:
    """Images as bytes, samples × height × width × channels: dark to light over all of them.

    A normalisation of the inputs is undone as far as it can be: each channel is stretched.
    """
    whole = x.detach().cpu().float()
    whole = whole.unsqueeze(1) if whole.dim() == 3 else whole
    thin = -(-max(whole.shape[2:]) // LARGEST)
    whole = whole[:, :, ::thin, ::thin]
    low = whole.amin(dim=(0, 2, 3), keepdim=True)
    high = whole.amax(dim=(0, 2, 3), keepdim=True)
    bright = (whole - low) / (high - low).clamp_min(1e-12)
    return (255 * bright).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def predicted(
    labels: npt.NDArray[np.int64], true: npt.NDArray[np.int64], shown: list[int]
) -> Predicted:
    """The labels of the shown images, and the accuracy over all that have a label."""
    known = true >= 0
    right = float((labels[known] == true[known]).mean()) if known.any() else 0.0
    return Predicted(tuple(int(labels[i]) for i in shown), right)
