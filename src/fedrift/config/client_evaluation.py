"""Test data of the clients' own: where they come from, and when clients are evaluated on them."""

from __future__ import annotations

from dataclasses import dataclass

from fedrift import grammar
from fedrift.config.fields import Field, as_is, is_int, refuse, to_number
from fedrift.errors import InputError, unknown

OWN = "own"


def client_test() -> Field:
    """The share of its samples that a client tests on, or `own`: what the data bring for it."""
    expected = f"a share above 0 and below 1, such as 0.2, or '{OWN}'"

    def read(value: object, field: str) -> float | str:
        if value == OWN:
            return OWN
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise refuse(value, field, expected)
        return float(value)

    def parse(text: str, field: str) -> object:
        return text if text == OWN else to_number(text, field, float, expected)

    return Field(read, parse, f"SHARE|{OWN}")


@dataclass(frozen=True)
class ClientEvaluation:
    """When clients evaluate on test data of their own, and how many of them (None: all)."""

    every: int = 1
    sample: int | None = None

    def is_due(self, round: int) -> bool:
        """`round` counts from 1."""
        return round % self.every == 0

    def __str__(self) -> str:
        return f"every={self.every}" + (f",sample={self.sample}" if self.sample else "")


def client_evaluation_of(text: str, field: str = "eval_clients") -> ClientEvaluation:
    """`every=10,sample=200`; a number alone is `every`."""
    keys = ("every", "sample")
    given: dict[str, int] = {}
    for piece in f"every={text}".split(",") if text.strip().isdigit() else text.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise InputError(f"{field} '{text}' is not of the form every=10,sample=200")
        if key not in keys:
            raise unknown(f"key of {field}", key, keys)
        if key in given:
            raise InputError(f"{field} '{text}' gives '{key}' twice; keep one")
        given[key] = int(grammar.number(value, f"{key} of {field}", kind=int, low=1))
    return ClientEvaluation(**given)


def client_evaluation() -> Field:
    def read(value: object, field: str) -> str:
        if is_int(value) and value >= 1:
            return str(ClientEvaluation(value))
        if not isinstance(value, str):
            raise refuse(value, field, "a text such as 'every=10,sample=200', or a number")
        return str(client_evaluation_of(value, field))

    return Field(read, as_is, "every=N[,sample=N]")
