"""Feature shift: each client sees its samples rotated, noisier or with another contrast.

Client i of N stands at t = i/(N-1), a single client at t = 1/2. With strength v:
rotation by the angle (2t-1)·v degrees, noise of deviation t·v, contrast times 1+(2t-1)·v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrift import grammar
from fedrift.data.assignment import Floats, Ints
from fedrift.errors import InputError, unknown
from fedrift.rng import generator

Array = npt.NDArray[np.floating]
BLOCK = 1024  # samples changed at a time: the copies on the way stay small


@dataclass(frozen=True)
class Shift:
    """One kind of shift: `change(samples, strength, t, rng)`; strengths from 0 to `high`."""

    change: Callable[[Array, float, float, np.random.Generator], Array]
    about: str
    grammar: str
    high: float
    images_only: bool = True


def rotate(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """Turned counter-clockwise about the centre, bilinear; outside, the nearest pixel goes on."""
    turn = np.deg2rad((2 * t - 1) * strength)
    if turn == 0:
        return x
    flat = x.reshape(*x.shape[:2], -1)
    turned = np.zeros_like(flat)
    for pixel, weight in _sources(x.shape[2], x.shape[3], turn):
        turned += np.take(flat, pixel, axis=2) * weight.astype(x.dtype)
    return turned.reshape(x.shape)


def _sources(height: int, width: int, turn: float) -> list[tuple[npt.NDArray[np.intp], Floats]]:
    """The four pixels next to where each pixel comes from, with their weights."""
    row, column = np.mgrid[:height, :width].reshape(2, -1)
    down, right = row - (height - 1) / 2, column - (width - 1) / 2
    row = down * np.cos(turn) + right * np.sin(turn) + (height - 1) / 2
    column = right * np.cos(turn) - down * np.sin(turn) + (width - 1) / 2
    row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
    top, left = np.floor(row).astype(np.intp), np.floor(column).astype(np.intp)
    low, far = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    y, x = row - top, column - left
    return [
        (top * width + left, (1 - y) * (1 - x)),
        (top * width + far, (1 - y) * x),
        (low * width + left, y * (1 - x)),
        (low * width + far, y * x),
    ]


def add_noise(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """Independent Gaussian noise on every value, in units of the normalised data."""
    return x + (strength * t * rng.standard_normal(x.shape)).astype(x.dtype)


def scale_contrast(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """The distance of each pixel from the mean of its image is multiplied."""
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    return mean + (x - mean) * x.dtype.type(1 + (2 * t - 1) * strength)


NAMES: dict[str, Shift] = {
    "rotation": Shift(rotate, "turned by -V to +V degrees", "rotation:V", 180),
    "noise": Shift(add_noise, "Gaussian noise of deviation 0 to V", "noise:V", 1e6, False),
    "contrast": Shift(scale_contrast, "contrast times 1-V to 1+V", "contrast:V", 1),
}


def shift(
    text: str, x: npt.ArrayLike, parts: Sequence[Ints], seed: int, purpose: str = "shift"
) -> Array:
    """A copy of `x` (samples × …) in which every client's part is shifted by its own strength.

    `rotation:45`, `noise:0.5`, `contrast:0.5`, or several in turn: `rotation:45+noise:0.1`.
    `purpose` names the random numbers: test data have others than training data.
    """
    data = np.asarray(x)
    kinds = [_kind(piece, data.shape) for piece in text.split("+")]
    shifted = np.array(data, data.dtype if data.dtype.kind == "f" else np.float32)
    for client, part in enumerate(parts):
        t = client / (len(parts) - 1) if len(parts) > 1 else 0.5
        rng = generator(seed, purpose, client=client)
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            mine: Array = shifted[block]
            for kind, strength in kinds:
                mine = kind.change(mine, strength, t, rng)
            shifted[block] = mine
    return shifted


def _kind(text: str, shape: tuple[int, ...]) -> tuple[Shift, float]:
    named = grammar.parse(text, "shift")
    if named.name not in NAMES:
        raise unknown("shift", named.name, NAMES)
    kind = NAMES[named.name]
    if named.value is None or named.options or named.inner is not None:
        raise InputError(f"shift '{text}' needs one strength and nothing else: {kind.grammar}")
    if kind.images_only and len(shape) != 4:
        raise InputError(
            f"shift '{text}' is for images (samples × channels × height × width), "
            f"but x has shape {shape}; use noise:V"
        )
    strength = grammar.number(named.value, f"shift '{text}'", low=0, high=kind.high)
    return kind, strength
