"""CIFAR as npz: lossless WebP strips, each 125 images one below the other, and the labels."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrift.data import npz
from fedrift.data.files import damaged, reason, sha256
from fedrift.errors import InputError

SIDE = 32
IN_STRIP = 125


@dataclass(frozen=True)
class Strips:
    """One npz file: its number of images, the sha256 of the decoded images and of the labels."""

    file: str
    count: int
    images: str
    labels: str


def read(path: Path, strips: Strips) -> tuple[np.ndarray, np.ndarray]:
    """Images (N×3×32×32) and labels, checked after decoding."""
    held = npz.arrays(path, ("webp", "ends", "label"))
    for name in ("webp", "ends", "label"):
        if name not in held:
            raise damaged(path, f"it has no array '{name}'")
    y = held["label"]
    if y.dtype != np.uint8 or y.shape != (strips.count,) or sha256(y.tobytes()) != strips.labels:
        raise damaged(path, "its labels are not the published ones")
    x = _decode(path, held["webp"], held["ends"], strips.count)
    if sha256(x.data) != strips.images:
        raise damaged(path, "its images are not the published ones")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), y


def _decode(path: Path, webp: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    number = count // IN_STRIP
    if webp.dtype != np.uint8 or webp.ndim != 1:
        raise damaged(path, f"'webp' is {webp.dtype} of shape {webp.shape}, not bytes")
    if ends.dtype.kind not in "iu" or ends.shape != (number,):
        raise damaged(path, f"'ends' has shape {ends.shape}; {number} strips are expected")
    edges = [0, *ends.tolist()]
    if sorted(edges) != edges or edges[-1] > len(webp):
        raise damaged(path, "the ends of its strips are not in order")
    x = np.empty((count, SIDE, SIDE, 3), np.uint8)

    def strip(at: int) -> None:
        picture = _picture(path, webp[edges[at] : edges[at + 1]].tobytes())
        x[at * IN_STRIP : (at + 1) * IN_STRIP] = picture.reshape(-1, SIDE, SIDE, 3)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(strip, range(number)))
    return x


def _picture(path: Path, data: bytes) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
            if (image.size, image.mode) != ((SIDE, SIDE * IN_STRIP), "RGB"):
                raise damaged(path, f"a strip is {image.mode} of {image.size} pixels")
            return np.asarray(image)
    except InputError:
        raise
    except Exception as problem:  # Pillow raises many kinds on garbled bytes
        raise damaged(path, f"a strip cannot be decoded ({reason(problem)})") from problem
