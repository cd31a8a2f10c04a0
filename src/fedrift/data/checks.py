"""Arrays that users bring: checked once, with errors that name the array and the value."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from fedrift.data.files import reason
from fedrift.data.samples import Samples
from fedrift.errors import InputError

Targets = Literal["labels", "values", "any"]
"""What y holds: class labels, numbers, or whatever there is."""
MOST_CLASSES = 100_000
CHANNELS = (1, 3, 4)


def checked_samples(
    where: str,
    x: object,
    y: object,
    x_test: object = None,
    y_test: object = None,
    users: object = None,
    class_names: tuple[str, ...] = (),
    targets: Targets = "labels",
) -> Samples:
    """Checked arrays as samples; `where` (a file, a function) opens every error."""
    if (x_test is None) != (y_test is None):
        has, lacks = ("y_test", "x_test") if x_test is None else ("x_test", "y_test")
        raise InputError(f"{where} has {has} but no {lacks}; give both or neither")
    if targets == "values" or (targets == "any" and not _are_labels(y)):
        train_y = checked_values(y, f"{where}: y")
        names, of_test = tuple(map(str, range(train_y.shape[1]))), checked_values
    else:
        train_y = checked_labels(y, f"{where}: y", len(class_names) or None)
        names = class_names or tuple(str(number) for number in range(int(train_y.max()) + 1))
        of_test = partial(checked_labels, classes=len(names))
    train_x, top = checked_inputs(x, f"{where}: x")
    _same_length(where, train_x, "x", train_y, "y")
    test_x = test_y = None
    if x_test is not None:
        test_y = of_test(y_test, f"{where}: y_test")
        test_x, test_top = checked_inputs(x_test, f"{where}: x_test")
        _same_length(where, test_x, "x_test", test_y, "y_test")
        if (train_x.shape[1:], top) != (test_x.shape[1:], test_top):
            raise InputError(
                f"{where}: x_test holds {_describe(test_x)}, but x {_describe(train_x)}"
            )
    channels = train_x.shape[1] if train_x.ndim == 4 else 1
    return Samples(
        train_x,
        train_y,
        names,
        test_x,
        test_y,
        _users(where, users, len(train_y)),
        top=top,
        mean=() if top is None else (0.0,) * channels,
        std=() if top is None else (1.0,) * channels,
    )


def checked_labels(values: object, where: str, classes: int | None = None) -> np.ndarray:
    """Class numbers as int64: whole, not negative, below `classes` (or a sane number of them)."""
    y = _array(values, where)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"{where} has shape {y.shape}; one class number per sample is wanted")
    if not len(y):
        raise InputError(f"{where} is empty; at least one sample is wanted")
    if y.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {y.dtype}; class numbers (0, 1, 2, …) are wanted")
    whole = y
    if y.dtype.kind == "f":
        whole = np.where(np.isfinite(y), np.floor(y), -1)
    limit = MOST_CLASSES if classes is None else classes
    bad = np.flatnonzero((whole != y) | (whole < 0) | (whole >= limit))
    if len(bad):
        raise InputError(
            f"{where}: label {y[bad[0]]} of sample {bad[0]} is not a whole number in "
            f"0..{limit - 1}; numbers to predict need a loss such as mse"
        )
    return whole.astype(np.int64)


def _are_labels(y: object) -> bool:
    array = np.asarray(y)
    return array.ndim == 1 and array.dtype.kind in "iu"


def checked_values(values: object, where: str) -> np.ndarray:
    """Targets of a regression as float32, a column for each output."""
    y = _array(values, where)
    if not y.size or y.dtype.kind not in "biuf" or not np.isfinite(y).all():
        raise InputError(f"{where} must hold finite numbers, not {y.dtype} of shape {y.shape}")
    y = y[:, None] if y.ndim == 1 else y
    return np.ascontiguousarray(y, np.float32)


def checked_inputs(values: object, where: str) -> tuple[np.ndarray, float | None]:
    """x as the model takes it, and the value that stands for 1.0 (None: x is as it should be)."""
    x = _array(values, where)
    if not x.size:
        raise InputError(f"{where} is empty (shape {x.shape}); at least one sample is wanted")
    if x.ndim < 2:
        raise InputError(f"{where} has shape {x.shape}; the first axis counts the samples")
    if x.dtype == np.uint8:
        return _images(x, where), 255.0
    if x.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {x.dtype}; numbers are wanted")
    if x.dtype.kind in "iu":  # tokens or categories: a model of ours takes them as floats
        return np.ascontiguousarray(x, np.int64), None
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(x)
    if not finite.all():
        at = np.unravel_index(int(np.argmin(finite)), x.shape)
        raise InputError(f"{where}: {x[at]} in sample {at[0]}; every number must be finite")
    return x, None


def _images(x: np.ndarray, where: str) -> np.ndarray:
    """uint8 pictures as N×C×H×W; a plain table stays one."""
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        return x.transpose(0, 3, 1, 2)
    if x.ndim == 4 and x.shape[1] in CHANNELS:
        return x
    raise InputError(
        f"{where} has shape {x.shape}; pictures are N×H×W or N×H×W×C with 1, 3 or 4 channels"
    )


def _users(where: str, values: object, count: int) -> np.ndarray | None:
    if values is None:
        return None
    users = _array(values, f"{where}: users")
    if users.shape != (count,):
        raise InputError(f"{where}: users has shape {users.shape}; x has {count} samples")
    if users.dtype.kind not in "iuSU":
        raise InputError(f"{where}: users holds {users.dtype}; numbers or names are wanted")
    return users


def _array(values: object, where: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError(f"{where} is no array of numbers ({reason(problem)})") from problem


def _same_length(where: str, x: np.ndarray, x_name: str, y: np.ndarray, y_name: str) -> None:
    if len(x) != len(y):
        raise InputError(f"{where}: {x_name} has {len(x)} samples, but {y_name} has {len(y)}")


def _describe(x: np.ndarray) -> str:
    return f"{'×'.join(map(str, x.shape[1:]))} {x.dtype} samples"
