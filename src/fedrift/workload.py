"""How much work, on which batches, at which rate, by whom: these fields of an experiment."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fedrift import grammar
from fedrift.errors import InputError, unknown
from fedrift.fields import (
    MOST,
    Field,
    as_is,
    int_or_text,
    integers,
    is_int,
    items,
    refuse,
    to_number,
)


def amount() -> Field:
    """Local work: a number, one per client, or `uniform:LOW,HIGH` drawn per client and round."""
    expected = "a whole number of at least 1, a list with one per client, or 'uniform:2,5'"

    def read(value: object, field: str) -> int | str | tuple[int, ...]:
        if is_int(value) and 1 <= value <= MOST:
            return value
        if isinstance(value, str):
            uniform(value, field)
            return value
        numbers = integers(value, field, expected)
        if max(numbers, default=0) < 1:
            raise refuse(value, field, expected)
        return numbers

    def parse(text: str, field: str) -> object:
        if ":" in text:
            return text
        numbers = [to_number(piece, field, int, expected) for piece in text.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers

    return Field(read, parse)


def uniform(text: str, field: str) -> tuple[int, int]:
    """The bounds of `uniform:2,5`."""
    found = grammar.parse(text, field)
    if found.name != "uniform":
        raise unknown(f"draw in {field}", found.name, ["uniform"])
    ends = re.fullmatch(r"(\d{1,9}) *, *(\d{1,9})", found.value or "")
    low, high = (int(ends[1]), int(ends[2])) if ends and not found.options else (1, 0)
    if not (low <= high <= MOST and high >= 1):
        raise refuse(text, field, "uniform:LOW,HIGH with LOW not above HIGH")
    return low, high


def batch() -> Field:
    """A batch size; 0, `none` and `full` all mean the whole client."""

    def read(value: object, field: str) -> int | str:
        if value == "full" or value == "none" or (is_int(value) and value == 0):
            return "full"
        if not (is_int(value) and 1 <= value <= MOST):
            raise refuse(value, field, "a whole number of at least 1, or 'full' (the whole client)")
        return value

    return Field(read, int_or_text)


@dataclass(frozen=True)
class Form:
    """The numbers of one schedule; the first may be written as the value, None has no default."""

    example: str
    defaults: dict[str, float | None]


SCHEDULES = {
    "constant": Form("constant", {}),
    "exp": Form("exp:0.9", {"factor": None}),
    "step": Form("step:10,factor=0.5", {"every": None, "factor": 0.1}),
    "cosine": Form("cosine:0.01", {"floor": 0.0}),
}
WHOLE = {"every"}


def schedule_of(text: str, field: str = "schedule") -> tuple[str, dict[str, float]]:
    """The name and the numbers of a rate schedule: `exp:0.9` → ("exp", {"factor": 0.9})."""
    found = grammar.parse(text, field)
    if found.name not in SCHEDULES:
        raise unknown(field, found.name, SCHEDULES)
    form = SCHEDULES[found.name]
    given = dict(found.options)
    if found.value is not None:
        given = {next(iter(form.defaults), "value"): found.value, **given}
    numbers: dict[str, float] = {}
    for key, default in form.defaults.items():
        if key in given:
            kind, low = (int, 1) if key in WHOLE else (float, 0)
            field_of_key = f"{field} '{text}': {key}"
            numbers[key] = grammar.number(given.pop(key), field_of_key, kind=kind, low=low)
        elif default is not None:
            numbers[key] = default
        else:
            raise InputError(f"{field} '{text}' needs {key}; write for example {form.example}")
    if given:
        key = next(iter(given))
        raise InputError(f"{field} '{text}' has no {key}; write for example {form.example}")
    return found.name, numbers


def schedule() -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a schedule such as 'exp:0.9'")
        schedule_of(value, field)
        return value

    return Field(read, as_is)


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

    return Field(read, parse)
