"""The work of a client: how much, on which batches, at which rate, by which optimizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from fedrift import grammar
from fedrift.config.fields import (
    MOST,
    Field,
    as_is,
    int_or_text,
    integers,
    is_int,
    refuse,
    to_number,
)
from fedrift.errors import InputError, unknown


def amount() -> Field:
    """Local work: a number, one per client, or `uniform:LOW,HIGH` drawn per client and round."""
    expected = "a whole number of at least 1, a list with one per client, or 'uniform:2,5'"

    def read(value: object, field: str) -> int | str | tuple[int, ...]:
        if is_int(value) and value > MOST:
            raise refuse(value, field, f"a whole number of at most {MOST}")
        if is_int(value) and value >= 1:
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

    return Field(read, parse, "N")


def check_length(work: object, field: str, clients: int) -> None:
    """Local work that is listed has an entry for every client."""
    if isinstance(work, tuple) and len(cast("tuple[int, ...]", work)) != clients:
        number = len(cast("tuple[int, ...]", work))
        raise InputError(
            f"{field} lists {number} entries for {clients} clients; give one per client"
        )


def uniform(text: str, field: str) -> tuple[int, int]:
    """The bounds of `uniform:2,5`."""
    parsed = grammar.parse(text, field)
    if parsed.name != "uniform":
        raise unknown(f"draw in {field}", parsed.name, ["uniform"])
    ends = re.fullmatch(r"(\d{1,9}) *, *(\d{1,9})", parsed.value or "")
    low, high = (int(ends[1]), int(ends[2])) if ends and not parsed.options else (1, 0)
    if not (low <= high <= MOST and high >= 1):
        raise refuse(text, field, "uniform:LOW,HIGH with LOW not above HIGH")
    return low, high


def batch() -> Field:
    """A batch size; `none` and `full` mean the whole client."""

    def read(value: object, field: str) -> int | str:
        if value == "full" or value == "none":
            return "full"
        if not (is_int(value) and 1 <= value <= MOST):
            raise refuse(value, field, "a whole number of at least 1, or 'full' (the whole client)")
        return value

    return Field(read, int_or_text, "N", True)


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
    parsed = grammar.parse(text, field)
    if parsed.name not in SCHEDULES:
        raise unknown(field, parsed.name, SCHEDULES)
    form = SCHEDULES[parsed.name]
    given = dict(parsed.options)
    if given.pop("per", "round") not in ("round", "step"):
        raise InputError(f"{field} '{text}': per must be round or step")
    if parsed.value is not None:
        given = {next(iter(form.defaults), "value"): parsed.value, **given}
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
    return parsed.name, numbers


def is_per_step(text: str) -> bool:
    """The schedule runs over the local steps of each visit instead of over rounds."""
    return grammar.parse(text, "schedule").options.get("per") == "step"


def schedule() -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a schedule such as 'exp:0.9'")
        schedule_of(value, field)
        return value

    return Field(read, as_is)


OPTIMIZERS = {
    "sgd": "momentum nesterov weight_decay",
    "adam": "betas eps weight_decay",
    "adamw": "betas eps weight_decay",
    "adagrad": "eps initial_accumulator_value weight_decay",
    "rmsprop": "alpha eps momentum centered weight_decay",
}
"""torch's names of the local optimizers, and of their options."""


def optimizer_of(text: str, field: str = "optimizer") -> tuple[str, dict[str, Any]]:
    """The name, and what is said of its options: `adam:eps=1e-6` → ("adam", {"eps": 1e-6})."""
    parsed = grammar.parse(text, field)
    if parsed.name not in OPTIMIZERS:
        raise unknown(field, parsed.name, OPTIMIZERS)
    known = OPTIMIZERS[parsed.name].split()
    if parsed.value is not None or parsed.inner is not None:
        raise InputError(f"{field} '{text}': options are written key=value: {', '.join(known)}")
    options: dict[str, Any] = {}
    for key, value in parsed.options.items():
        if key not in known:
            own = " (the run's own setting)" if key == "lr" else ""
            raise unknown(f"option of {field} '{parsed.name}'{own}", key, known)
        options[key] = _option(key, value, f"{field} '{text}': {key}")
    return parsed.name, options


def _option(key: str, text: str, field: str) -> object:
    if key in ("nesterov", "centered"):
        if text not in ("true", "false"):
            raise InputError(f"{field} must be true or false, not '{text}'")
        return text == "true"
    numbers = tuple(grammar.number(one, field, low=0) for one in text.split("|"))
    if len(numbers) != (2 if key == "betas" else 1):
        expected = "two numbers such as 0.9|0.999" if key == "betas" else "one number"
        raise InputError(f"{field} must be {expected}, not '{text}'")
    if key in ("betas", "momentum", "alpha") and max(numbers) >= 1:
        raise InputError(f"{field} must be below 1, not '{text}'")
    return numbers if key == "betas" else numbers[0]


def optimizer() -> Field:
    """A local optimizer by torch's name, with its options."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a name such as 'adam' or 'adamw:betas=0.9|0.95'")
        optimizer_of(value, field)
        return value

    return Field(read, as_is)
