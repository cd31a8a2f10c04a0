"""Kinds of settings: what a field accepts, from TOML or Python values and from text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard, cast

from fedrift import grammar
from fedrift.config.backends import BACKENDS, MOST_WORKERS, public_names
from fedrift.core.compression import EXAMPLE, NONE, parse_compression
from fedrift.errors import InputError, unknown

Read = Callable[[object, str], object]
Parse = Callable[[str, str], object]

MOST = 10_000_000  # clients or rounds: beyond any simulation, small enough to count
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Field:
    """`read` checks a typed value and makes it canonical; `parse` turns text into a typed value."""

    read: Read
    parse: Parse
    shown: str = "NAME"
    """What stands for the value in help."""
    is_number: bool = False
    """Several may be written with commas between them."""
    is_list: bool = False
    """One name alone may stand for the list of it, on the command line and in Python."""


def refuse(value: object, field: str, expected: str) -> InputError:
    """`lr must be a number above 0, not -1`."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return InputError(f"{field} must be {expected}, not {shown}")


def whole(low: int, high: int = MOST) -> Field:
    expected = f"a whole number of at least {low}"

    def read(value: object, field: str) -> int:
        if not is_int(value) or value < low:
            raise refuse(value, field, expected)
        if value > high:
            raise refuse(value, field, f"a whole number of at most {high}")
        return value

    return Field(read, lambda text, field: to_number(text, field, int, expected), "N", True)


def real(
    low: float = 0.0, *, above: bool = False, below: float = math.inf, high: float = math.inf
) -> Field:
    expected = f"a number {'above' if above else 'of at least'} {low:g}"
    expected += f" and below {below:g}" if below < math.inf else ""
    expected += f" and at most {high:g}" if high < math.inf else ""

    def read(value: object, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(value, field, expected)
        try:
            number = float(value)
        except OverflowError:  # a whole number can be larger than any other
            raise refuse(value, field, expected) from None
        # Written so that nan fails every comparison.
        fits = (number > low if above else number >= low) and number < below and number <= high
        if not fits:
            raise refuse(value, field, expected)
        return number

    parse: Parse = lambda text, field: to_number(text, field, float, expected)  # noqa: E731
    return Field(read, parse, "NUMBER", True)


def text(shown: str = "NAME") -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise refuse(value, field, "a text")
        if "\0" in value:
            raise refuse(value, field, "a text without zero bytes")
        return value

    return Field(read, as_is, shown)


def named() -> Field:
    """Anything of the naming grammar; who owns the name checks it further."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a name such as name:value,key=value")
        grammar.parse(value, field)
        return value

    return Field(read, as_is)


def choice(*names: str) -> Field:
    def read(value: object, field: str) -> str:
        if isinstance(value, str) and value not in names:
            raise unknown(field, value, names)
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(names)}")
        return value

    return Field(read, as_is, "|".join(names))


def backend() -> Field:
    """The name of a backend, with the address of a cluster where it takes one."""

    def read(value: object, field: str) -> str:
        names = public_names()
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(names)}")
        name, colon, address = value.partition(":")
        takes_it = name in names and BACKENDS[name].takes_address
        if value not in names and not (takes_it and colon and address and value.strip() == value):
            raise unknown(field, value, names)
        return value

    return Field(read, as_is, "|".join(public_names()))


def workers() -> Field:
    def read(value: object, field: str) -> int | str:
        if value == "auto":
            return "auto"
        if is_int(value) and 0 <= value <= MOST_WORKERS:
            return value
        most = f"'auto' or a whole number from 0 (in-process) to {MOST_WORKERS}"
        raise refuse(value, field, most)

    return Field(read, int_or_text, "auto|N")


def device() -> Field:
    def read(value: object, field: str) -> str:
        if isinstance(value, str) and re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", value):
            return value
        raise refuse(value, field, "cpu, cuda, cuda:NUMBER or mps")

    return Field(read, as_is)


def names() -> Field:
    """Several names, in order."""
    expected = "a list of names, for example ['crop:4', 'flip']"
    one = named()

    def read(value: object, field: str) -> tuple[str, ...]:
        return tuple(str(one.read(item, field)) for item in items(value, field, expected))

    return Field(read, lambda text, _: [text], is_list=True)


def is_int(value: object) -> TypeGuard[int]:
    """A whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def items(value: object, field: str, expected: str) -> Sequence[object]:
    """The elements of a list, or a refusal."""
    if not isinstance(value, list | tuple):
        raise refuse(value, field, expected)
    return cast("Sequence[object]", value)


def integers(value: object, field: str, expected: str) -> tuple[int, ...]:
    """A list of whole numbers of at least 0, or a refusal."""
    numbers: list[int] = []
    for number in items(value, field, expected):
        if not (is_int(number) and 0 <= number <= MOST):
            raise refuse(value, field, expected)
        numbers.append(number)
    return tuple(numbers)


def to_number(text: str, field: str, kind: type[int] | type[float], expected: str) -> float:
    """Text of the command line as a number; its bounds are checked by `read`."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        raise refuse(text, field, expected) from None


def int_or_text(text: str, _: str) -> object:
    """A number where a word may stand instead."""
    return int(text) if re.fullmatch(r"[-+]?\d{1,18}", text) else text


def as_is(text: str, _: str) -> object:
    return text


def shown(value: object) -> str:
    """A value in a sentence, as it is typed and not too long."""
    text = str(value)
    if isinstance(value, tuple):  # as it is typed: 0,3|1,2
        text = text[1:-1].removesuffix(",").replace("), (", "|").replace(" ", "").strip("(,)")
    return text if len(text) <= 40 else f"{text[:37]}…"


def compression() -> Field:
    """How vectors are packed where they travel."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, f"a text such as '{EXAMPLE}'")
        return str(parse_compression(value) or NONE)

    return Field(read, as_is, "up=HOW[,down=HOW]")
