"""Who takes part in a round: a way of drawing clients, or lists of them."""

from __future__ import annotations

from typing import NamedTuple

from fedrift import grammar
from fedrift.config.fields import Field, as_is, integers, items, refuse, to_number
from fedrift.errors import InputError, unknown

SAMPLINGS = ("fixed", "bernoulli", "cyclic", "size", "available", "power")


class Sampled(NamedTuple):
    """A way of drawing clients, as a text says it."""

    kind: str
    """One of `SAMPLINGS`, or "function"."""
    candidates: int = 0
    code: tuple[str, str] | None = None
    """Module and name of a function."""


def sampling_of(text: str, field: str = "sampling") -> Sampled:
    """Reads a way of drawing clients: a name, `power:D`, or `module:function`."""
    named = grammar.parse(text, field)
    name, value = named.name, named.value
    if name == "power":
        number = value if value is not None and value.isascii() and value.isdigit() else "0"
        if named.options or named.inner or len(number) > 12 or int(number) < 1:
            raise InputError(
                f"{field} '{text}': write power:D, D being how many candidates are drawn, such as "
                "power:20"
            )
        return Sampled(name, int(number))
    if name in SAMPLINGS:
        if str(named) != name:
            raise InputError(f"{field} '{text}': {name} takes no options; write {name}")
        return Sampled(name)
    if named.code is None or named.options or named.inner or value is None:
        raise InputError(f"{unknown(field, name, SAMPLINGS)}; or your own as module:function")
    return Sampled("function", code=(name, value))


def sampling() -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(SAMPLINGS)}, or module:function")
        sampling_of(value, field)
        return value

    return Field(read, as_is, "NAME")


def cohorts() -> Field:
    """Who takes part, one list of clients per round; as text `0,3|1,2`."""
    expected = "one list of client numbers per round, for example [[0, 3], [1, 2]]"

    def read(value: object, field: str) -> tuple[tuple[int, ...], ...]:
        rounds = tuple(integers(one, field, expected) for one in items(value, field, expected))
        for at, chosen in enumerate(rounds):
            if len(set(chosen)) < len(chosen):
                raise InputError(f"{field}[{at}] names a client twice: {list(chosen)}; keep one")
        if not rounds:
            raise refuse(value, field, expected)
        return rounds

    def parse(text: str, field: str) -> object:
        return [
            [
                to_number(one, field, int, "client numbers such as 0,3|1,2")
                for one in group.split(",")
            ]
            for group in text.split("|")
        ]

    return Field(read, parse, "LISTS")
