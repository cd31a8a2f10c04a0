"""The reader's own algorithm by `module:Class,mu=0.3`: options are the fields of its dataclass."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from fedrift.algorithm import Algorithm
from fedrift.errors import InputError, unknown
from fedrift.grammar import Named
from fedrift.options import COMPARE, NOUNS, Kind
from fedrift.own_code import load


def make(named: Named) -> Algorithm[Any, Any]:
    """The algorithm that a class, a function or an object of the reader's stands for."""
    target = load(named.name, named.value or "", "algorithm", "; see: fedrift list algorithms")
    text = f"{named.name}:{named.value}"
    if isinstance(target, Algorithm):
        if named.options:
            raise InputError(f"algorithm '{named}': {text} is an object; options need its class")
        return target
    if not callable(target):
        kind = type(target).__name__
        raise InputError(f"algorithm '{text}' is a {kind}; give a class derived from Algorithm")
    options = _typed(named, text, target)
    try:
        made = target(**options)
    except TypeError as error:
        raise InputError(f"algorithm '{named}' cannot be made: {error}") from error
    if not isinstance(made, Algorithm):
        kind = type(made).__name__
        raise InputError(f"algorithm '{text}' gave a {kind}; derive it from fedrift.Algorithm")
    return made


def _typed(named: Named, text: str, target: Any) -> dict[str, Any]:
    known = kinds(target)
    typed: dict[str, Any] = {}
    for key, value in named.options.items():
        if not known:
            raise InputError(f"algorithm '{named}': {text} has no option '{key}'; remove it")
        if key not in known:
            raise unknown(f"option of {text}", key, known)
        typed[key] = known[key].read(value, f"option {key} of {text}")
    return typed


def kinds(target: Any) -> dict[str, Kind]:
    """The options of a class or function: parameters that hold a number, a text or a choice."""
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError):  # names that only the type checker knows
        hints = {}
    found: dict[str, Kind] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        default = parameter.default
        kind = kind_of(hints.get(name, type(default)))
        if kind is not None:
            found[name] = kind
    return found


def kind_of(hint: Any) -> Kind | None:
    """What a type accepts as text; None if it is no option."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and hint.__name__ in NOUNS and hint.__module__ == "builtins":
        return Kind(types=(hint.__name__,))
    if hint is type(None):
        return Kind(choices=(None,))
    if origin is typing.Literal:
        return Kind(choices=inside)
    if origin is typing.Annotated:
        kind = kind_of(inside[0])
        bounds = tuple(b for b in inside[1:] if isinstance(b, str) and b.split(" ")[0] in COMPARE)
        return None if kind is None else Kind(kind.types, kind.choices, kind.bounds + bounds)
    if origin in (typing.Union, types.UnionType):
        several = [kind_of(one) for one in inside]
        if all(kind is not None for kind in several):
            return Kind(*(sum((getattr(k, f) for k in several), ()) for f in Kind.__annotations__))
    return None
