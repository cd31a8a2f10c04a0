"""One grammar for every named thing: `name[:value][,key=value…]`; a wrapper is `name(inner)`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import overload

from fedrift.errors import InputError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
# `module:Class:mu=0.3` says the same as `module:Class,mu=0.3`.
SECOND = re.compile(r"(\s*[A-Za-z_]\w*\s*):(?=\s*[A-Za-z_][A-Za-z0-9_-]*\s*=)")
LONGEST = 10_000  # characters; far beyond any real name, and keeps nesting shallow
DEEPEST = 8


@dataclass(frozen=True)
class Named:
    """A parsed name with its value, its options as text, and the algorithm it wraps."""

    name: str
    value: str | None = None
    options: dict[str, str] = field(default_factory=dict[str, str])
    inner: Named | None = None

    @property
    def code(self) -> str | None:
        """`module:attribute`, if it may be code of the reader's own."""
        is_own = self.value is not None and self.value.isidentifier()
        return f"{self.name}:{self.value}" if is_own else None

    def __str__(self) -> str:
        """The canonical text: keys sorted, no spaces; parsing it gives an equal object."""
        head = self.name if self.inner is None else f"{self.name}({self.inner})"
        pieces = [] if self.value is None else [self.value]
        pieces += [f"{key}={self.options[key]}" for key in sorted(self.options)]
        return f"{head}:{','.join(pieces)}" if pieces else head


def parse(text: str, field: str) -> Named:
    """Reads one named thing; `field` is what the user calls it, for the error."""
    if len(text) > LONGEST:
        raise InputError(f"{field} is {len(text)} characters long; at most {LONGEST} are allowed")
    return _parse(text.strip(), field, depth=0)


def _parse(text: str, field: str, depth: int) -> Named:
    name_match = NAME.match(text)
    if name_match is None:
        raise InputError(f"{field} '{text}' does not start with a name; write name[:value]")
    if depth > DEEPEST:
        raise InputError(f"{field} has more than {DEEPEST} algorithms inside one another")
    name, rest = name_match.group(), text[name_match.end() :].lstrip()
    inner = None
    if rest.startswith("("):
        end = _closing(rest, text, field)
        inner = _parse(rest[1:end].strip(), field, depth + 1)
        rest = rest[end + 1 :].lstrip()
    value, options = _arguments(rest, text, field)
    return Named(name, value, options, inner)


def _closing(rest: str, text: str, field: str) -> int:
    """Where the parenthesis that opens `rest` is closed."""
    depth = 0
    for at, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return at
    raise InputError(f"{field} '{text}' has unbalanced parentheses; close every '('")


def _arguments(rest: str, text: str, field: str) -> tuple[str | None, dict[str, str]]:
    if not rest:
        return None, {}
    mark, body = rest[0], rest[1:]
    if second := SECOND.match(body):
        body = f"{second[1]},{body[second.end() :]}"
    if mark not in ":,":
        hint = "unbalanced parentheses" if mark in "()" else f"'{mark}' after the name"
        raise InputError(f"{field} '{text}' has {hint}; write name[:value][,key=value]")
    values: list[str] = []
    options: dict[str, str] = {}
    for piece in body.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if equals and not key:
            raise InputError(f"{field} '{text}' has no key before '={value}'; write key=value")
        # A path may hold '=' too: only what looks like a key is one.
        if not equals or KEY.fullmatch(key) is None:
            values.append(piece)
            continue
        key = key.replace("-", "_")
        if not value:
            raise InputError(f"{field} '{text}' gives '{key}' no value; write {key}=value")
        if key in options:
            raise InputError(f"{field} '{text}' gives '{key}' twice; keep one")
        options[key] = value
    if not values:
        return None, options
    value = ",".join(values).strip()
    if not value.strip(", "):
        raise InputError(f"{field} '{text}' has nothing after '{mark}' or ','; remove it")
    if mark == ",":
        raise InputError(f"{field} '{text}': '{value}' is no key=value; a value follows a ':'")
    return value, options


@overload
def number(
    text: str,
    field: str,
    *,
    kind: type[int],
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
) -> int: ...
@overload
def number(
    text: str,
    field: str,
    *,
    kind: type[float] = float,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
) -> float: ...
def number(
    text: str,
    field: str,
    *,
    kind: type[int] | type[float] = float,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
) -> int | float:
    """A finite number within bounds, or one sentence that names the field and the value."""
    try:
        value = kind(text)
    except (ValueError, OverflowError):
        value = math.nan
    too_low = low is not None and (value <= low if low_open else value < low)
    too_high = high is not None and value > high
    if not abs(value) < math.inf or too_low or too_high:
        expected = describe(kind, low=low, high=high, low_open=low_open)
        raise InputError(f"{field} must be {expected}, not '{text}'")
    return value


def describe(
    kind: type[int] | type[float],
    *,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
) -> str:
    """What `number` accepts, in words: `a whole number of at least 1`."""
    noun = "a whole number" if kind is int else "a number"
    bounds: list[str] = []
    if low is not None:
        bounds.append(f"{'above' if low_open else 'of at least'} {low:g}")
    if high is not None:
        bounds.append(f"of at most {high:g}" if low is None else f"at most {high:g}")
    return " ".join([noun, " and ".join(bounds)]) if bounds else noun
