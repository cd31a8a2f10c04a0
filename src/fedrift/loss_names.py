"""The losses by name; readable without torch."""

from __future__ import annotations

from fedrift.errors import InputError, unknown
from fedrift.grammar import parse

NAMES: dict[str, str] = {
    "cross_entropy": "of class labels (the default)",
    "mse": "mean squared error of numbers",
    "l1": "mean absolute error of numbers",
    "bce": "cross-entropy of several yes-or-no answers at once, from logits",
}
OWN = "package.module:function"
VALUES = ("mse", "l1", "bce")
"""Losses whose targets are floating-point numbers, one per output."""


def check(text: str) -> None:
    """Refuse what names no loss."""
    named = parse(text, "loss")
    if named.name in NAMES and str(named) != named.name:
        raise InputError(f"loss '{text}': {named.name} takes no options; write {named.name}")
    if named.name not in NAMES and (named.code is None or named.options or named.inner):
        raise InputError(f"{unknown('loss', named.name, NAMES)}; or your own as {OWN}")
