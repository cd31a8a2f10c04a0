"""The reader's own data: arrays in an npz file, or a function that returns them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedrift.data import checks, files
from fedrift.data.files import existing_path, reason
from fedrift.data.samples import DataSet, Samples
from fedrift.errors import InputError
from fedrift.grammar import Named

# Keras spells the training half x_train, y_train.
OTHERWISE = {"x": "x_train", "y": "y_train"}


def load_npz(named: Named, _: Path | None, targets: checks.Targets = "labels") -> Samples:
    """Arrays x, y and, if there are any, x_test, y_test, users, users_test."""
    (path,) = npz_files(named)
    optional = ("x_test", "y_test", "users", "users_test")
    arrays = files.read_npz(path, [*OTHERWISE, *OTHERWISE.values(), *optional])
    for name, other in OTHERWISE.items():
        if other in arrays:
            arrays.setdefault(name, arrays[other])
        if name not in arrays:
            raise InputError(f"'{path}' has no array '{name}'; it needs x and y")
    x_test, y_test, users, users_test = (arrays.get(name) for name in optional)
    samples = checks.checked_samples(
        f"'{path}'", arrays["x"], arrays["y"], x_test, y_test, users, targets=targets
    )
    if users_test is None:
        return samples
    if users is None or samples.y_test is None or users_test.shape != (len(samples.y_test),):
        raise InputError(
            f"'{path}': users_test has shape {users_test.shape}; it names the user of each sample "
            "of x_test, and needs x_test, y_test and users beside it"
        )
    if users_test.dtype.kind != users.dtype.kind:
        raise InputError(
            f"'{path}': users_test holds {users_test.dtype}, but users {users.dtype}; use one kind"
        )
    return replace(samples, users_test=users_test)


def npz_files(named: Named, _: Path | None = None) -> tuple[Path]:
    """The file that is read."""
    if named.value is None:
        raise InputError("data set 'npz' needs a path: npz:FILE")
    return (existing_path(named.value, "npz"),)


def load_function(named: Named, _: Path | None, targets: checks.Targets = "labels") -> Samples:
    """What `package.module:function` returns: a DataSet, (x, y) or (x, y, x_test, y_test)."""
    where = f"{named.name}:{named.value}"
    with _current_folder():
        make = _imported(named.name, named.value or "")
        try:
            returned = make()
        except Exception as problem:
            message = f"{type(problem).__name__}: {reason(problem)}"
            raise InputError(f"data set '{where}' failed with {message}") from problem
    if isinstance(returned, DataSet):
        names = returned.class_names or tuple(map(str, range(returned.classes)))
        if len(names) != returned.classes:
            raise InputError(
                f"data set '{where}': {len(names)} names for {returned.classes} classes"
            )
        samples = checks.checked_samples(
            where, returned.x, returned.y, returned.x_test, returned.y_test, returned.users, names
        )
        return (
            replace(samples, mean=returned.mean, std=returned.std)
            if samples.top is None
            else samples
        )
    if isinstance(returned, tuple | list) and len(returned) in (2, 4):
        return checks.checked_samples(where, *returned, targets=targets)
    raise InputError(
        f"data set '{where}' returned {type(returned).__name__}; "
        "return a DataSet, (x, y) or (x, y, x_test, y_test)"
    )


def _imported(module: str, name: str) -> Callable[[], object]:
    try:
        function = vars(importlib.import_module(module)).get(name)
    except (Exception, SystemExit) as problem:
        message = f"{type(problem).__name__}: {reason(problem)}"
        raise InputError(f"data set '{module}:{name}' cannot be imported: {message}") from problem
    if not callable(function):
        raise InputError(f"data set '{module}:{name}': the module has no function '{name}'")
    return function


@contextmanager
def _current_folder() -> Generator[None]:
    """Modules beside the user may be imported, as with `python -m`, but hide nothing."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
