"""Data sets of Hugging Face `datasets` as ours, and Flower's partitioners as partitions."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.data import checks
from fedrift.data.assignment import Partition
from fedrift.data.files import reason
from fedrift.data.samples import Samples
from fedrift.data.sources import text
from fedrift.errors import InputError
from fedrift.grammar import Named

NEEDED = "install it with: pip install 'fedrift[datasets]'"
TEST_NAMES = ("test", "validation", "valid")


def load(named: Named, _: Path | None) -> Samples:
    """A folder of `Dataset.save_to_disk`, or a name that `datasets.load_dataset` knows."""
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise InputError(f"data set 'huggingface' needs the package datasets; {NEEDED}") from None
    where = f"data set 'huggingface:{named.value}'"
    if named.value is None:
        raise InputError("data set 'huggingface' needs a folder or a name: huggingface:FOLDER")
    try:
        is_here = Path(named.value).expanduser().is_dir()
        read = datasets.load_from_disk if is_here else datasets.load_dataset
        loaded: Any = read(str(Path(named.value).expanduser()) if is_here else named.value)
    except Exception as problem:  # dozens of kinds, of the network and of damaged files
        raise InputError(f"{where} cannot be loaded: {reason(problem)}") from problem
    halves = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in halves:
        raise InputError(f"{where} has no split 'train' (it has: {', '.join(map(str, halves))})")
    if "text" in named.options:
        return _text(named, halves["train"], where)
    test = next((halves[name] for name in TEST_NAMES if name in halves), None)
    x, y, names = split_arrays(
        halves["train"], named.options.get("x"), named.options.get("y"), where
    )
    x_test, y_test = split_arrays(test, named.options.get("x"), named.options.get("y"), where)[:2]
    users = named.options.get("users")
    who = None if users is None else column(halves["train"], users, where)
    return checks.checked_samples(where, x, y, x_test, y_test, who, names)


def _text(named: Named, train: Any, where: str) -> Samples:
    """A column of texts: those of one user belong together; without users, contiguous shards."""
    rows = [str(value) for value in column(train, named.options["text"], where)]
    who = named.options.get("users")
    if who is None:
        return text.windows(named, text.contiguous("\n".join(rows), text.SHARDS, where))
    texts: dict[str, list[str]] = {}
    for user, row in zip(column(train, who, where).tolist(), rows, strict=True):
        texts.setdefault(str(user), []).append(row)
    return text.windows(named, {user: "\n".join(own) for user, own in texts.items()})


def split_arrays(
    split: Any, x: str | None, y: str | None, where: str
) -> tuple[np.ndarray | None, np.ndarray | None, tuple[str, ...]]:
    """Inputs, labels and the names of the classes of one split; nothing of none."""
    if split is None:
        return None, None, ()
    kinds: dict[str, str] = {n: type(f).__name__ for n, f in split.features.items()}
    inputs = x or _only(kinds, "Image", "x", where)
    labels = y or _only(kinds, "ClassLabel", "y", where)
    names = tuple(getattr(split.features.get(labels), "names", None) or ())
    return column(split, inputs, where), column(split, labels, where), names


def _only(kinds: dict[str, str], kind: str, option: str, where: str) -> str:
    columns = [name for name, own in kinds.items() if own == kind]
    if len(columns) != 1:
        known = ", ".join(kinds)
        raise InputError(f"{where}: say which column is {option}, {option}=NAME (it has: {known})")
    return columns[0]


def column(split: Any, name: str, where: str) -> np.ndarray:
    """One column as an array; pictures as bytes."""
    if name not in split.column_names:
        raise InputError(
            f"{where} has no column '{name}' (it has: {', '.join(split.column_names)})"
        )
    values = [np.asarray(value) for value in split[name]]
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise InputError(f"{where}: the values of '{name}' differ in shape: {sorted(shapes)[:2]}")
    return np.stack(values) if values else np.empty(0)


def partition_by(partitioner: Any, y: np.ndarray, seed: int) -> Partition:
    """What a partitioner of flwr-datasets makes of labels, which it finds in the column 'label'."""
    try:
        datasets: Any = import_module("datasets")
        kind: Any = import_module("flwr_datasets.partitioner").Partitioner
    except ImportError:
        raise InputError(f"a partitioner needs the package flwr-datasets; {NEEDED}") from None
    if not isinstance(partitioner, kind):
        raise InputError(
            f"scheme {type(partitioner).__name__} must be a text such as dirichlet:0.1, "
            "or a partitioner of flwr_datasets"
        )
    partitioner.dataset = datasets.Dataset.from_dict(
        {"label": y.tolist(), "index": list(range(len(y)))}
    )
    try:
        parts = tuple(
            np.sort(np.array(partitioner.load_partition(i)["index"], dtype=np.int64))
            for i in range(partitioner.num_partitions)
        )
    except (ValueError, KeyError) as problem:
        raise InputError(f"{type(partitioner).__name__}: {reason(problem)}") from problem
    return Partition(type(partitioner).__name__, parts, seed)
