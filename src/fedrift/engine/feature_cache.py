"""What is kept of features: tensors in files, and the data sets made of them.

A data set is found by the hash of all that decided it, so neither samples nor network are needed
where it was made before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrift.core.plain_files import check_plain, replace_bytes
from fedrift.data import files
from fedrift.data.samples import DataSet

FORM = 1  # of the files; another number makes everything anew
SOURCE = Path(__file__).parents[1]  # of fedrift
LIBRARIES = ("numpy", "torch", "pillow")
"""What samples are decoded, and features computed with."""
ARRAYS = ("y", "y_test", "users", "users_test")
WORDS = ("name", "classes", "class_names", "user_names", "is_text")
"""What a data set of features has besides them."""


def cache_folder() -> Path:
    """Where features are kept."""
    return files.cache_folder() / "features"


def hash_of(*parts: object) -> str:
    """A name for a file."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:32]


# Tensors.


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or not at all."""
    from safetensors.torch import save

    replace_bytes(path, save({name: value.contiguous() for name, value in tensors.items()}))


def read(path: Path, name: str, shape: tuple[int, int]) -> Tensor | None:
    """What a file holds; None if there is none or it is not what it should be."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        features = load_file(path).get(name)
    except (OSError, SafetensorError):
        return None
    return features if features is not None and features.shape == shape else None


def read_both(
    path: Path, lengths: tuple[int, int], width: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """The training and the test half of projected features."""
    train, test = (
        read(path, name, (length, width))
        for name, length in zip(("train", "test"), lengths, strict=True)
    )
    return None if train is None or test is None else (train.numpy(), test.numpy())


# Data sets.


def origin_of(names: Sequence[str], listed: Sequence[Path]) -> str | None:
    """The hash of all that decides a data set: names, content of files, our code, libraries.

    None if a file cannot be read.
    """
    try:
        content = [(str(path), _digest(path)) for path in listed]
    except OSError:
        return None
    return hash_of(FORM, names, content, _code(), *map(version, LIBRARIES))


def _digest(path: Path) -> str:
    check_plain(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _code() -> str:
    """Of all source of fedrift: no change in reading, splitting or scaling is missed."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(f"{path.relative_to(SOURCE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def remember(record: Path, origin: str, data: DataSet, projection: Path) -> None:
    """Keeps everything of a data set but its features, of which the file is named."""
    from safetensors.numpy import save

    arrays = {name: value for name in ARRAYS if (value := getattr(data, name)) is not None}
    words = {name: getattr(data, name) for name in WORDS}
    words |= {"origin": origin, "projection": projection.name, "width": data.x.shape[1]}
    text = json.dumps(words | {"arrays": _hash_of_arrays(arrays)})
    replace_bytes(record, save(arrays, metadata={"words": text}))


def recalled(record: Path, origin: str) -> DataSet | None:
    """The data set as it was remembered, if it is of this origin and nothing of it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(record, framework="numpy") as file:
            words: dict[str, Any] = json.loads((file.metadata() or {})["words"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    if (words.get("origin"), words.get("arrays")) != (origin, _hash_of_arrays(arrays)):
        return None
    lengths = len(arrays["y"]), len(arrays["y_test"])
    both = read_both(record.parent / words["projection"], lengths, words["width"])
    if both is None:
        return None
    fields = {name: _as_tuple(words[name]) for name in WORDS}
    return DataSet(x=both[0], x_test=both[1], **arrays, **fields)


def _as_tuple(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value  # type: ignore[reportUnknown]


def _hash_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    return hash_of(*((name, files.sha256(arrays[name].tobytes())) for name in sorted(arrays)))
