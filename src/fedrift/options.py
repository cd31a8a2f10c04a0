"""What one option of an algorithm accepts, read from the syntax tree of its annotation."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrift.errors import InputError

Scalar = float | int | bool | str | None
NOUNS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


Resolve = Callable[[str], "Kind | None"]


@dataclass(frozen=True)
class Kind:
    """What an option accepts: plain types, spelled-out choices, bounds such as `> 0`."""

    types: tuple[str, ...] = ()
    choices: tuple[Scalar, ...] = ()
    bounds: tuple[str, ...] = ()

    def read(self, text: str, field: str) -> Scalar:
        """The typed value of `text`, or one sentence that names the option and the value."""
        for choice in self.choices:
            if text.lower() == spell(choice).lower():
                return choice
        for name in ("bool", "int", "float", "str"):
            if name in self.types:
                try:
                    found = READERS[name](text)
                except (ValueError, OverflowError):
                    continue
                if self._allows(found):
                    return found
        raise InputError(f"{field} must be {self}, not '{text}'")

    def _allows(self, value: Scalar) -> bool:
        if isinstance(value, str | bool) or value is None:
            return True
        if math.isnan(value):
            return False
        return all(_compare(bound)(value) for bound in self.bounds)

    def __str__(self) -> str:
        """In words: `a number >= 0 or none`."""
        nouns = [NOUNS[name] for name in self.types]
        numeric = {"int", "float"} & set(self.types)
        if numeric and self.bounds:
            nouns[-1] += f" {' and '.join(self.bounds)}"
        words = [*nouns, *(spell(choice) for choice in self.choices)]
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def spell(value: object) -> str:
    """As it is written in option text: `none`, `true`, `1e-3`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def kind_of(annotation: ast.expr, resolve: Resolve) -> Kind | None:
    """The kind an annotation stands for; None when it is no option (a Local, an Optimizer, …).

    `resolve` gives the kind an alias such as `Weights` stands for, None for a class.
    """
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return kind_of(ast.parse(annotation.value, mode="eval").body, resolve)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return Kind(choices=(None,))
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return _join(kind_of(annotation.left, resolve), kind_of(annotation.right, resolve))
    if isinstance(annotation, ast.Name):
        if annotation.id in NOUNS:
            return Kind(types=(annotation.id,))
        return resolve(annotation.id)
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        return _subscript(annotation.value.id, annotation.slice, resolve)
    return None


def _subscript(name: str, inside: ast.expr, resolve: Resolve) -> Kind | None:
    elements: Sequence[ast.expr] = inside.elts if isinstance(inside, ast.Tuple) else (inside,)
    if name == "Literal":
        return Kind(choices=tuple(ast.literal_eval(element) for element in elements))
    if name != "Annotated":
        return None
    kind = kind_of(elements[0], resolve)
    if kind is None:
        return None
    bounds = tuple(str(ast.literal_eval(element)) for element in elements[1:])
    for bound in bounds:
        _compare(bound)
    return Kind(kind.types, kind.choices, kind.bounds + bounds)


def _join(left: Kind | None, right: Kind | None) -> Kind | None:
    if left is None or right is None:
        return None
    return Kind(left.types + right.types, left.choices + right.choices, left.bounds + right.bounds)


def _compare(bound: str) -> Callable[[float], bool]:
    """`>= 0` as a test; a bound that cannot be read is the algorithm's mistake, not the user's."""
    sign, _, limit = bound.partition(" ")
    compare, threshold = COMPARE[sign], float(limit)
    return lambda value: compare(value, threshold)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


READERS: dict[str, Callable[[str], Scalar]] = {
    "bool": _truth,
    "int": int,
    "float": float,
    "str": str,
}
