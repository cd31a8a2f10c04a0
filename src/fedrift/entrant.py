"""Who runs: an algorithm from its text, its class or an object, with the run's local settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias

from fedrift import build
from fedrift.algorithm import Algorithm
from fedrift.errors import InputError
from fedrift.experiment import Spec

Entrant: TypeAlias = str | Algorithm[Any, Any] | type[Algorithm[Any, Any]]
"""A text such as `fedprox:mu=0.3`, an object, or its class, which stands for the object of its
defaults."""

PLAIN = re.compile(r"[\w.+-]+")


def settled(
    given: Entrant, local: Mapping[str, Any], weights: str | None, rounds: int
) -> tuple[Algorithm[Any, Any], str]:
    """The algorithm with the run's settings inside, and its text."""
    if isinstance(given, str):
        named = Spec(algorithm=given, weights=weights).algorithm_named
        return build.build(named, local, rounds), str(named)
    made = instance(given)
    made = build.filled(made, local, rounds)
    if weights is not None:
        made = _weighted(made, weights)
    return made, text_of(made)


def instance(given: Any) -> Algorithm[Any, Any]:
    """The object itself, or one of the class with its defaults."""
    made = given
    if isinstance(given, type) and issubclass(given, Algorithm):
        try:
            made = given()
        except TypeError as error:
            raise InputError(f"algorithm: {given.__name__}() cannot be made: {error}") from None
    if not isinstance(made, Algorithm):
        raise InputError(
            f"algorithm={given!r} must be a text such as 'fedavg', an Algorithm or its class"
        )
    return build.checked(made)


def _weighted(made: Algorithm[Any, Any], weights: str) -> Algorithm[Any, Any]:
    for field in fields(made):  # type: ignore[arg-type]
        inner = getattr(made, field.name)
        if isinstance(inner, Algorithm):  # a wrapper averages nothing itself
            return replace(made, **{field.name: _weighted(inner, weights)})  # type: ignore[type-var]
    name = type(made).__name__
    known = {field.name: field for field in fields(made)}  # type: ignore[arg-type]
    if weights not in ("samples", "uniform"):
        raise InputError(f"weights={weights!r} must be 'samples' or 'uniform'")
    if "weights" not in known:
        raise InputError(
            f"weights={weights!r}: {name} has no field 'weights'; add one, or leave it"
        )
    if made.weights not in (build.default_of(known["weights"]), weights):
        raise InputError(
            f"weights={weights!r} and {name}(weights={made.weights!r}) are both given; keep one"
        )
    return replace(made, weights=weights)  # type: ignore[type-var]


def text_of(made: Algorithm[Any, Any]) -> str:
    """`scaffold:server_lr=0.5`: the class, and every plain field that is not at its default."""
    head, options = type(made).__name__.lower(), dict[str, str]()
    for field in fields(made):  # type: ignore[arg-type]
        value = getattr(made, field.name)
        if isinstance(value, Algorithm):
            head += f"({text_of(value)})"
        elif isinstance(value, (bool, int, float, str)) and value != build.default_of(field):
            text = _spelled(value)
            if PLAIN.fullmatch(text):
                options[field.name] = text
    pieces = ",".join(f"{key}={options[key]}" for key in sorted(options))
    return f"{head}:{pieces}" if pieces else head


def _spelled(value: float | str) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def written(made: Algorithm[Any, Any]) -> str:
    """Every field of an object, its local settings included, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(made))
