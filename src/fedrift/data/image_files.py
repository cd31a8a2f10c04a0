"""Picture files as one array of pixels; Pillow decodes, we bound what it may be asked to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from fedrift.data.files import LARGEST, damaged, reason
from fedrift.errors import InputError

# Plain raster formats only: some of Pillow's others start programs (EPS).
FORMATS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm"),
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
MOST_PIXELS = 50_000_000
LARGEST_SIDE = 4096
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX")


def read(files: Sequence[Path], size: int | None) -> np.ndarray:
    """uint8 N×C×H×W; one channel if all pictures are grey, else three.

    With `size`, the middle square of each is scaled to size×size; without, all must be equal.
    """
    first = _picture(files[0], size)
    total = len(files) * first.size * 4  # as float32
    if total > LARGEST:
        raise InputError(
            f"{len(files)} pictures like '{files[0]}' take {total >> 30} GB of memory; "
            "give a smaller size=PIXELS"
        )
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        pictures = list(pool.map(partial(_picture, size=size), files))
    grey = all(picture.ndim == 2 for picture in pictures)
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape[:2] != first.shape[:2]:
            raise InputError(
                f"'{file}' has {_pixels(picture)} pixels, '{files[0]}' {_pixels(first)}; "
                "give size=PIXELS to scale them"
            )
    shape = (len(files), 1 if grey else 3, *first.shape[:2])
    out = np.empty(shape, np.uint8)
    for at, picture in enumerate(pictures):
        out[at] = picture if picture.ndim == 2 else picture.transpose(2, 0, 1)
    return out


def _picture(path: Path, size: int | None) -> np.ndarray:
    """H×W (grey) or H×W×3."""
    from PIL import Image

    try:
        with Image.open(path, formats=tuple(FORMATS)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"'{path}' has {image.width}×{image.height} pixels: too many")
            if image.mode not in GREY + COLOUR:
                raise InputError(f"'{path}' has pixels of kind {image.mode}; 8 bits are wanted")
            if size is not None:
                # JPEG can decode at 1/2, 1/4 or 1/8 of its size, which is several times faster.
                image.draft(image.mode, (size, size))
            picture = image.convert("L" if image.mode in GREY else "RGB")
        if size is not None:
            side = min(picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            square = picture.crop((left, top, left + side, top + side))
            picture = square.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(picture)
    except InputError:
        raise
    except FileNotFoundError as problem:
        raise InputError(f"picture '{path}' does not exist") from problem
    except Exception as problem:  # Pillow raises many kinds on garbled bytes
        raise damaged(path, f"it cannot be read as a picture ({reason(problem)})") from problem


def _pixels(picture: np.ndarray) -> str:
    return f"{picture.shape[1]}×{picture.shape[0]}"
