"""From names and settings to an algorithm: `scaffold:option=I` and lr=0.05 become an object."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedrift import catalogue, own_algorithm
from fedrift.algorithm import Algorithm, map_local, parts
from fedrift.algorithms import NAMES
from fedrift.errors import InputError
from fedrift.grammar import Named, parse
from fedrift.local import Amount, Draw, Local
from fedrift.optim import SGD, Cosine, Exponential, Schedule, Staircase
from fedrift.workload import schedule_of, uniform

LOCAL_SETTINGS = ("epochs", "steps", "batch_size", "lr", "momentum", "weight_decay", "clip")


def amount(value: Any, field: str) -> Amount:
    """An int, a list with one entry per client, or `uniform:2,5`."""
    if isinstance(value, str):
        return Draw(*uniform(value, field))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple)):
        raise InputError(f"{field}={value!r} must be a whole number, a list or 'uniform:2,5'")
    entries = [value] if isinstance(value, int) else list(value)
    if any(isinstance(e, bool) or not isinstance(e, int) or e < 0 for e in entries):
        raise InputError(f"{field}={value!r} must hold whole numbers of at least 0")
    if isinstance(value, int) and value < 1:
        raise InputError(f"{field}={value} must be at least 1")
    return value if isinstance(value, int) else tuple(value)


def schedule(text: str, lr: float, rounds: int) -> float | Schedule:
    """A rate over rounds: `exp:0.9`, `step:10,factor=0.5`, `cosine`."""
    name, numbers = schedule_of(text)
    if numbers.get("factor") == 0:
        raise InputError(f"schedule '{text}': a factor of 0 makes the rate 0; use a small number")
    if name == "exp":
        return Exponential(lr, numbers["factor"])
    if name == "step":
        return Staircase(lr, int(numbers["every"]), numbers["factor"])
    return Cosine(lr, rounds, numbers["floor"]) if name == "cosine" else lr


def local(default: Local, given: Mapping[str, Any], rounds: int) -> Local:
    """The default with what was said; what was not said stays."""
    changes: dict[str, Any] = {}
    for name in ("epochs", "steps"):
        if given.get(name) is not None:
            changes = {"epochs": None, "steps": None, name: amount(given[name], name)}
    if "batch_size" in given:
        changes["batch_size"] = given["batch_size"]
    if given.get("clip") is not None:
        changes["clip"] = given["clip"]
    rate = given.get("lr")
    if given.get("schedule") is not None:
        base = rate if rate is not None else default.lr
        changes["lr"] = schedule(given["schedule"], base, rounds)  # type: ignore[arg-type]
    elif rate is not None:
        changes["lr"] = float(rate)
    decays = {k: given[k] for k in ("momentum", "weight_decay") if given.get(k) is not None}
    if decays and isinstance(default.optimizer, SGD):
        changes["optimizer"] = replace(default.optimizer, **decays)
    return replace(default, **changes)


def build(named: Named | str, given: Mapping[str, Any], rounds: int) -> Algorithm[Any, Any]:
    """The algorithm a text names, with the run's local settings inside."""
    found = parse(named, "algorithm") if isinstance(named, str) else named
    if catalogue.is_own(found):
        return filled(own_algorithm.make(found), given, rounds)
    options = catalogue.check(found)
    target = NAMES[found.name]
    if found.inner is not None:
        return target(inner=build(found.inner, given, rounds), **options)
    parameters = inspect.signature(target).parameters
    if "local" not in parameters:  # no local training: its settings have nothing to say
        return target(**options)
    return target(local=local(parameters["local"].default, given, rounds), **options)


def checked(made: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    if not is_dataclass(made):
        raise InputError(f"algorithm: {type(made).__name__} must be a frozen dataclass")
    return made


def filled(made: Algorithm[Any, Any], given: Mapping[str, Any], rounds: int) -> Algorithm[Any, Any]:
    """An object with the run's local settings, which only fill what it leaves unsaid."""
    said = [key for key, value in given.items() if value is not None or key == "batch_size"]
    if not said:
        return checked(made)
    _check_local(checked(made), said[0], given[said[0]])
    return map_local(made, lambda old: local(old, given, rounds))


def _check_local(made: Algorithm[Any, Any], key: str, value: object) -> None:
    """A setting of the run may fill the local settings only where the object says nothing."""
    found = False
    for _, node in parts(made):
        for field in fields(node):  # type: ignore[arg-type]
            own = getattr(node, field.name)
            if not isinstance(own, Local):
                continue
            found = True
            if own != default_of(field):
                raise InputError(
                    f"{key}={value!r} and {type(node).__name__}({field.name}=Local(…)) are both "
                    f"given; keep one of the two"
                )
    if not found and not type(made).__module__.startswith("fedrift."):
        name = type(made).__name__
        raise InputError(
            f"{key}={value!r}: {name} has no field for it; write local: Local = Local() in {name} "
            "and train with self.local"
        )


def default_of(field: Field[Any]) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def check_numbers(given: Mapping[str, Any]) -> None:
    """Refuse impossible local settings of the Python front door."""
    lowest = {"lr": 0.0, "clip": 0.0, "momentum": None, "weight_decay": None}
    for name, above in lowest.items():
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise InputError(f"{name}={value!r} must be a number")
        if (above is not None and value <= above) or value < 0 or value == float("inf"):
            raise InputError(f"{name}={value} must be {'above' if above == 0.0 else 'at least'} 0")
    if given.get("momentum") is not None and given["momentum"] >= 1:
        raise InputError(f"momentum={given['momentum']} must be below 1")
    if given.get("epochs") is not None and given.get("steps") is not None:
        raise InputError("epochs and steps are both given: keep one")
    size = given.get("batch_size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise InputError(f"batch_size={size!r} must be a whole number of at least 1, or None")
