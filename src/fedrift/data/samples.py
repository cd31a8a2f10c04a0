"""A data set in memory: what a source hands over, and how it is split, thinned and scaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedrift.errors import InputError
from fedrift.rng import generator

TEST_SHARE = 0.2
VALIDATION_SHARE = 0.2  # of the training samples, to choose options on; the test stays unseen
CHUNK = 1 << 17  # numbers scaled at a time, so that all passes find them in the processor's cache


@dataclass(frozen=True, eq=False)
class Generated:
    """Clients whose samples are made when they are visited: how, and how many each has."""

    make: Callable[[int], tuple[np.ndarray, np.ndarray]]
    sizes: np.ndarray


@dataclass(frozen=True)
class DataSet:
    """Training and test samples, normalised; y holds class numbers, or floats to predict."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    class_names: tuple[str, ...]
    # The natural client number of each training sample, 0..U-1.
    users: np.ndarray | None = None
    # That of each test sample, where the source says so.
    users_test: np.ndarray | None = None
    # What the source calls them, in the order of their numbers.
    user_names: tuple[str, ...] = ()
    # The normalisation that was applied per channel, to draw pictures.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    # Too many clients to hold: x and y are then those of the first one.
    generated: Generated | None = None
    # Samples are windows of tokens, and y has the next token of every position.
    is_text: bool = False


@dataclass(frozen=True)
class Samples:
    """What a source found: checked, but not yet split, thinned or scaled.

    With `top`, x counts 0..top and becomes (x / top - mean) / std, channel by channel (axis 1);
    without, x is float32 or int64 and stays as it is.
    """

    x: np.ndarray
    y: np.ndarray
    class_names: tuple[str, ...]
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    users: np.ndarray | None = None
    users_test: np.ndarray | None = None
    top: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    generated: Generated | None = None
    is_text: bool = False


def finish(name: str, samples: Samples, train: int | None, test: int | None) -> DataSet:
    """The data set a run sees: split if there is no test data, thinned if asked for, scaled."""
    rows, rows_test = np.arange(len(samples.y)), None
    x_test, y_test = samples.x_test, samples.y_test
    if x_test is None or y_test is None:
        rows, rows_test = split_rows(samples.y, name)
        x_test, y_test = samples.x, samples.y
    else:
        rows_test = np.arange(len(y_test))
    if samples.generated is not None and train is not None:
        raise InputError(f"data set '{name}': train={train} is not possible with so many clients")
    rows = thin_rows(rows, samples.y, train, f"data set '{name}': train")
    rows_test = thin_rows(rows_test, y_test, test, f"data set '{name}': test")
    users, users_test, user_names = None, None, ()
    if samples.users is not None:
        names, numbers = np.unique(samples.users[rows], return_inverse=True)
        users, user_names = numbers.astype(np.int64), tuple(map(_called, names.tolist()))
        if samples.users_test is not None:
            users_test = _numbered(samples.users_test[rows_test], names, name)
    return DataSet(
        name=name,
        x=scaled(_take(samples.x, rows), samples),
        y=_targets(samples.y, rows),
        x_test=scaled(_take(x_test, rows_test), samples),
        y_test=_targets(y_test, rows_test),
        classes=len(samples.class_names),
        class_names=samples.class_names,
        users=users,
        users_test=users_test,
        user_names=user_names,
        mean=samples.mean,
        std=samples.std,
        generated=samples.generated,
        is_text=samples.is_text,
    )


def hold_out(data: DataSet) -> DataSet:
    """The same data with a fifth of the training samples of each class in the place of the test."""
    rng = generator(0, "validation")
    is_held_out = np.zeros(len(data.y), dtype=bool)
    strata = _strata(data.y)
    for label in np.unique(strata):
        members = np.flatnonzero(strata == label)
        is_held_out[rng.permutation(members)[: round(VALIDATION_SHARE * len(members))]] = True
    users = None if data.users is None else data.users[~is_held_out]
    return replace(
        data,
        x=data.x[~is_held_out],
        y=data.y[~is_held_out],
        x_test=data.x[is_held_out],
        y_test=data.y[is_held_out],
        users=users,
        users_test=None,
    )


def as_values(samples: Samples) -> Samples:
    """Class numbers as numbers to predict."""
    if samples.y.dtype.kind == "f":
        return samples
    y_test = samples.y_test
    test = None if y_test is None else y_test.astype(np.float32)[:, None]
    y = samples.y.astype(np.float32)[:, None]
    return replace(samples, y=y, y_test=test, class_names=("value",))


def split_rows(y: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows: a stratified fifth is held out, the same for everybody."""
    if len(y) < 2:
        raise InputError(f"data set '{name}' has {len(y)} sample; it takes 2 to hold out a test")
    order = stratified_order(y, "hold-out")
    test_count = max(1, round(TEST_SHARE * len(y)))
    return np.sort(order[test_count:]), np.sort(order[:test_count])


def thin_rows(rows: np.ndarray, y: np.ndarray, keep: int | None, field: str) -> np.ndarray:
    """The first `keep` rows of one fixed stratified order, so a larger number adds to a smaller."""
    if keep is None:
        return rows
    if keep > len(rows):
        raise InputError(f"{field}={keep} asks for more than the {len(rows)} samples there are")
    return rows[np.sort(stratified_order(y[rows], "thin")[:keep])]


def stratified_order(y: np.ndarray, purpose: str) -> np.ndarray:
    """A fixed random order of the samples; every beginning of it has the classes in proportion."""
    draw = generator(0, purpose).random(len(y))
    y = _strata(y)
    counts = np.bincount(y)
    rank = np.empty(len(y))
    rank[np.lexsort((draw, y))] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.lexsort((draw, (rank + 0.5) / counts[y]))


def _strata(y: np.ndarray) -> np.ndarray:
    """The class of every sample; all are of one where targets are numbers or many at once."""
    return y if y.dtype.kind != "f" and y.ndim == 1 else np.zeros(len(y), np.int64)


def scaled(x: np.ndarray, samples: Samples) -> np.ndarray:
    """x as the model sees it; same arithmetic, hence same bits, as dividing, then normalising."""
    if samples.top is None:
        return x
    width = math.prod(x.shape[1:])
    mean, std = (
        np.repeat(np.asarray(values, np.float32), width // len(values))
        for values in (samples.mean, samples.std)
    )
    plain = not mean.any() and bool((std == 1).all())
    source, out = x.reshape(len(x), width), np.empty((len(x), width), np.float32)
    step = max(1, CHUNK // width)
    for start in range(0, len(x), step):
        part = out[start : start + step]
        part[...] = source[start : start + step]
        part /= np.float32(samples.top)
        if not plain:
            part -= mean
            part /= std
    return out.reshape(x.shape)


def _targets(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    chosen = _take(y, rows)
    return chosen if y.dtype.kind == "f" else chosen.astype(np.int64)


def _called(user: object) -> str:
    return user.decode(errors="replace") if isinstance(user, bytes) else str(user)


def _numbered(users: np.ndarray, names: np.ndarray, data: str) -> np.ndarray:
    """The client numbers of test samples, from what the source calls their users."""
    found = np.minimum(np.searchsorted(names, users), len(names) - 1)
    if len(strange := users[names[found] != users]):
        raise InputError(
            f"data set '{data}': users_test names '{_called(strange[0])}', who has no training "
            "samples; leave such samples out"
        )
    return found.astype(np.int64)


def _take(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # Rows are sorted and unique: as many as there are samples means all of them, no copy.
    return values if len(rows) == len(values) else values[rows]
