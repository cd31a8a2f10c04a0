"""What is checked: an algorithm of ours by name, or the reader's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from fedrift.algorithms import NAMES
from fedrift.config import algorithms
from fedrift.config.own_code import load
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import map_local
from fedrift.core.local import Local
from fedrift.engine import build
from fedrift.errors import InputError
from fedrift.grammar import parse

Make = Callable[[Mapping[str, Any], int], Algorithm[Any, Any]]

# A wrapper is checked around something, and with options that make it do its work.
EXAMPLES = {
    "fed3rft": "fed3rft(fedavg):train=head",
    "swa": "swa(fedavg):start=0.4,cycle=2",
    "wima": "wima(fedsam):window=3",
    "sam": "sam(scaffold)",
    "asam": "asam(fedavg)",
    "serveradam": "serveradam(scaffold)",
    "keep": "keep(scaffold):what=head",
    "ditto": "ditto(scaffold)",
    "finetune": "finetune(fedavg):steps=3",
}


@dataclass(frozen=True)
class Subject:
    """An algorithm under test: its name, its key in the tables, how it is made."""

    name: str
    """As it was asked for."""
    text: str
    """With the options it is checked with."""
    kind: str
    """One of `algorithms.NAMES`; empty for the reader's own."""
    make: Make
    """From local settings and the number of rounds."""


def subject_of(what: Any) -> Subject:
    """A name, `module:Class,key=value`, an Algorithm, its class, or a function that returns one."""
    if isinstance(what, str):
        named = parse(EXAMPLES.get(what, what), "algorithm")
        if named.name in NAMES:
            return Subject(
                what,
                str(named),
                named.name,
                lambda local, rounds: build.build(named, local, rounds),
            )
        algorithms.check(named)  # the reader's own, or a name that is none
        if named.options:
            build.make(named)
            return Subject(what, what, "", _adjusted(lambda: build.make(named)))
        return _own(load(named.name, named.value or "", "algorithm"), what)
    if isinstance(what, Algorithm):
        name = type(what).__name__
        return Subject(name, name, "", _adjusted(lambda: what))
    return _own(what, getattr(what, "__name__", repr(what)))


def _own(target: Any, name: str) -> Subject:
    if isinstance(target, Algorithm):
        return Subject(name, name, "", _adjusted(lambda: target))
    if not callable(target):
        raise InputError(
            f"algorithm '{name}' is a {type(target).__name__}; give a class, or a "
            "function with a parameter 'local' that returns an Algorithm"
        )
    needed = _needed(target)
    if needed is not None:
        raise InputError(
            f"algorithm '{name}': give '{needed}' a default, or a value: module:Class,{needed}=…"
        )

    def build_one() -> Algorithm[Any, Any]:
        try:
            algorithm = target()
        except TypeError as error:
            raise InputError(f"algorithm '{name}' cannot be made: {error}") from error
        if not isinstance(algorithm, Algorithm):
            kind = type(algorithm).__name__
            raise InputError(f"algorithm '{name}' gave a {kind}; derive it from fedrift.Algorithm")
        return algorithm

    build_one()
    return Subject(name, name, "", _adjusted(build_one))


def _needed(target: Any) -> str | None:
    """A parameter without a default, if there is one."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except ValueError:  # written in C: no signature to look at
        return None
    is_open = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (p.name for p in parameters if p.default is p.empty and p.kind not in is_open)
    return next(needed, None)


def _adjusted(build_algorithm: Callable[[], Algorithm[Any, Any]]) -> Make:
    """The algorithm with the trial's local settings wherever it holds some."""

    def make(local: Mapping[str, Any], rounds: int) -> Algorithm[Any, Any]:
        def change(old: Local) -> Local:
            return build.local(old, local, rounds)

        algorithm = build_algorithm()
        return map_local(algorithm, change) if is_dataclass(algorithm) else algorithm

    return make
