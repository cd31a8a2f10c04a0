"""Pictures on disk: a folder per class, or a csv table of path, label and user."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedrift.core.plain_files import check_plain, read_plain
from fedrift.data.checks import MOST_CLASSES
from fedrift.data.files import LARGEST, damaged, existing_path, reason
from fedrift.data.samples import Samples
from fedrift.errors import InputError
from fedrift.grammar import Named, number

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
CENTRE = 0.5  # mean and deviation of pictures nobody has measured


@dataclass(frozen=True)
class Row:
    """One picture: where it lies, its class, its user, and whether it is for testing."""

    path: Path
    label: str
    user: str = ""
    held_out: bool = False


def load_folder(named: Named, _: Path | None) -> Samples:
    """A sub-folder per class; below train/ and test/ if there is a train/."""
    rows = _folder_rows(named)
    return _samples(rows, sorted({row.label for row in rows}), named)


def folder_files(named: Named, _: Path | None) -> Sequence[Path]:
    """The files that `load_folder` reads."""
    return [row.path for row in _folder_rows(named)]


def _folder_rows(named: Named) -> list[Row]:
    folder = existing_path(_value(named, "FOLDER"), "images", folder=True)
    halves = [(folder, False)]
    if os.path.isdir(folder / "train"):
        halves = [(folder / "train", False)]
        if os.path.isdir(folder / "test"):
            halves.append((folder / "test", True))
    try:
        return [row for half, held_out in halves for row in _listed(half, held_out)]
    except OSError as problem:
        raise InputError(f"'{folder}' cannot be listed ({reason(problem)})") from problem


def load_table(named: Named, _: Path | None) -> Samples:
    """A csv file with the columns path, label and, if there are any, user and split."""
    path, rows = _table_rows(named)
    if not rows:
        raise InputError(f"'{path}' has no rows; at least one picture is wanted")
    return _samples(rows, _classes(path, {row.label for row in rows}), named)


def table_files(named: Named, _: Path | None) -> Sequence[Path]:
    """The files that `load_table` reads: the table and its pictures."""
    path, rows = _table_rows(named)
    return [path, *(row.path for row in rows)]


def _table_rows(named: Named) -> tuple[Path, list[Row]]:
    path = existing_path(_value(named, "FILE"), "csv")
    root = path.parent
    if "root" in named.options:
        root = existing_path(named.options["root"], "data set 'csv': root", folder=True)
    try:
        source = io.StringIO(read_plain(path).decode("utf-8-sig"), newline="")
        return path, list(_rows(csv.DictReader(source, strict=True), path, root))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise damaged(path, f"it cannot be read as csv ({reason(problem)})") from problem


def _listed(folder: Path, held_out: bool) -> Iterable[Row]:
    entries = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    classes = [entry for entry in entries if not entry.name.startswith((".", "__"))]
    if not classes:
        raise InputError(f"'{folder}' has no sub-folders; one per class is wanted")
    for label in classes:
        files = sorted(
            Path(where, name)
            for where, _, names in os.walk(label)
            for name in names
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        )
        if not files:
            raise InputError(f"'{label}' holds no pictures ({', '.join(SUFFIXES)})")
        yield from (Row(file, label.name, held_out=held_out) for file in files)


def _rows(reader: csv.DictReader[str], path: Path, root: Path) -> Iterable[Row]:
    columns = [name.strip().lower() for name in reader.fieldnames or ()]
    reader.fieldnames = columns
    for wanted in ("path", "label"):
        if wanted not in columns:
            raise InputError(
                f"'{path}' has no column '{wanted}' (it has {', '.join(columns) or 'none'}); "
                "write path,label,user[,split] in its first line"
            )
    needed = [name for name in ("path", "label", "user") if name in columns]
    for line in reader:
        row = {key: (line[key] or "").strip() for key in columns}
        at, split = f"'{path}', line {reader.line_num}", row.get("split", "train")
        if split not in ("train", "test"):
            raise InputError(f"{at}: split is '{split}', not train or test")
        held_out = split == "test"
        for wanted in ("path", "label") if held_out else needed:
            if not row[wanted]:
                raise InputError(f"{at} has no {wanted}; fill it in or remove the line")
        yield Row(root / row["path"], row["label"], row.get("user", ""), held_out)


def _classes(path: Path, labels: set[str]) -> list[str]:
    """Class names in order; numbers count as such, and must then be whole and not negative."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return sorted(labels)
    for label, value in numbers.items():
        if not 0 <= value < 1e15 or value != int(value):
            raise InputError(f"'{path}': label '{label}' is not a whole number of at least 0")
    return sorted(labels, key=lambda label: (numbers[label], label))


def _samples(rows: Sequence[Row], classes: Sequence[str], named: Named) -> Samples:
    size = None
    if "size" in named.options:
        field, most = f"data set '{named.name}': size", LARGEST_SIDE
        size = number(named.options["size"], field, kind=int, low=1, high=most)
    if len(classes) > MOST_CLASSES:
        raise InputError(f"'{named.value}' has {len(classes)} classes; at most {MOST_CLASSES}")
    train = [at for at, row in enumerate(rows) if not row.held_out]
    test = [at for at, row in enumerate(rows) if row.held_out]
    if not train:
        raise InputError(f"'{named.value}' has no training picture; every split is test")
    known = {rows[at].label for at in train}
    for at in test:
        if rows[at].label not in known:
            raise InputError(f"'{rows[at].path}': class '{rows[at].label}' has no training picture")
    x = read_pictures([row.path for row in rows], size)
    numbers = {label: at for at, label in enumerate(classes)}
    y = np.asarray([numbers[row.label] for row in rows], np.int64)
    users = np.asarray([rows[at].user for at in train])
    return Samples(
        x[train] if test else x,
        y[train] if test else y,
        tuple(classes),
        x[test] if test else None,
        y[test] if test else None,
        users if any(row.user for row in rows) else None,
        top=255.0,
        mean=(CENTRE,) * x.shape[1],
        std=(CENTRE,) * x.shape[1],
    )


def _value(named: Named, what: str) -> str:
    if named.value is None:
        raise InputError(f"data set '{named.name}' needs a path: {named.name}:{what}")
    return named.value


# Picture files as one array of pixels; Pillow decodes, we bound what it may be asked to do.


def read_pictures(files: Sequence[Path], size: int | None) -> np.ndarray:
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
        check_plain(path)
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
