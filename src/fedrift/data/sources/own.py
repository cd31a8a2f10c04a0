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
from fedrift.data.files import existing, reason
from fedrift.data.samples import DataSet, Samples
from fedrift.errors import InputError
from fedrift.grammar import Named

# Keras spells the training half x_train, y_train.
OTHERWISE = {"x": "x_train", "y": "y_train"}


def file(named: Named, _: Path | None, targets: checks.Targets = "labels") -> Samples:
    """Arrays x, y and, if there are any, x_test, y_test, users."""
    if named.value is None:
        raise InputError("data set 'npz' needs a path: npz:FILE")
    path = existing(named.value, "npz")
    optional = ("x_test", "y_test", "users")
    held = files.arrays(path, [*OTHERWISE, *OTHERWISE.values(), *optional])
    for name, other in OTHERWISE.items():
        if other in held:
            held.setdefault(name, held[other])
        if name not in held:
            raise InputError(f"'{path}' has no array '{name}'; it needs x and y")
    x_test, y_test, users = (held.get(name) for name in optional)
    return checks.samples(f"'{path}'", held["x"], held["y"], x_test, y_test, users, targets=targets)


def function(named: Named, _: Path | None, targets: checks.Targets = "labels") -> Samples:
    """What `package.module:function` returns: a DataSet, (x, y) or (x, y, x_test, y_test)."""
    where = f"{named.name}:{named.value}"
    with _current_folder():
        make = _imported(named.name, named.value or "")
        try:
            made = make()
        except Exception as problem:
            said = f"{type(problem).__name__}: {reason(problem)}"
            raise InputError(f"data set '{where}' failed with {said}") from problem
    if isinstance(made, DataSet):
        names = made.class_names or tuple(map(str, range(made.classes)))
        if len(names) != made.classes:
            raise InputError(f"data set '{where}': {len(names)} names for {made.classes} classes")
        samples = checks.samples(where, made.x, made.y, made.x_test, made.y_test, made.users, names)
        return replace(samples, mean=made.mean, std=made.std) if samples.top is None else samples
    if isinstance(made, tuple | list) and len(made) in (2, 4):
        return checks.samples(where, *made, targets=targets)
    raise InputError(
        f"data set '{where}' returned {type(made).__name__}; "
        "return a DataSet, (x, y) or (x, y, x_test, y_test)"
    )


def _imported(module: str, name: str) -> Callable[[], object]:
    try:
        found = vars(importlib.import_module(module)).get(name)
    except (Exception, SystemExit) as problem:
        said = f"{type(problem).__name__}: {reason(problem)}"
        raise InputError(f"data set '{module}:{name}' cannot be imported: {said}") from problem
    if not callable(found):
        raise InputError(f"data set '{module}:{name}': the module has no function '{name}'")
    return found


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
