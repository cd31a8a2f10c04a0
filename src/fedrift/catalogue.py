"""Names, options, defaults and one-line docs of the algorithms, read from source without importing.

An option is a field or parameter whose annotation is a plain type, `Literal`, `X | None`, or one
of these with bounds: `Annotated[float, ">= 0"]`. Its one-line documentation is a line
`name: text` of the class's or function's docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fedrift.errors import InputError, unknown
from fedrift.grammar import Named
from fedrift.options import Kind, Scalar, kind_of, spell
from fedrift.source import Argument, arguments, module

PACKAGE = Path(__file__).parent
COMMON = {"weights": "how replies are averaged: by their samples, or all alike"}


@dataclass(frozen=True)
class Option:
    """One option of an algorithm."""

    name: str
    kind: Kind
    default: Scalar
    about: str
    required: bool = False

    def __str__(self) -> str:
        """`mu=0.01`, or `mu=…` when it has no default."""
        return f"{self.name}={'…' if self.required else spell(self.default)}"


@dataclass(frozen=True)
class Entry:
    """One name of `algorithms.NAMES`."""

    name: str
    module: str
    attribute: str
    summary: str
    options: tuple[Option, ...]
    is_wrapper: bool
    citation: str

    @property
    def usage(self) -> str:
        """`swa(INNER):start=0.75,cycle=1`."""
        head = f"{self.name}(INNER)" if self.is_wrapper else self.name
        return f"{head}:{','.join(map(str, self.options))}" if self.options else head


def algorithms(package: Path = PACKAGE) -> dict[str, Entry]:
    """Every algorithm, in the order of `algorithms.NAMES`."""
    return {name: entry(name, package) for name in names(package)}


def check(named: Named, field: str = "algorithm", package: Path = PACKAGE) -> dict[str, Scalar]:
    """The given options, typed; an inner algorithm is checked too. Refuses what cannot be built.

    The reader's own algorithm, `module:Class`, is not imported here, so its options are not known.
    """
    if is_own(named, package):
        if named.inner is not None:
            raise InputError(
                f"{field} '{named}': write options of your own as {named.code},key=value"
            )
        return {}
    found = entry(named.name, package)
    if named.value is not None:
        raise InputError(
            f"{field} '{named}' has the value '{named.value}'; options are written key=value: "
            f"{found.usage}"
        )
    if found.is_wrapper and named.inner is None:
        raise InputError(
            f"{field} '{named}' wraps another algorithm; name it in parentheses: "
            f"{named.name}(fedavg)"
        )
    if named.inner is not None:
        if not found.is_wrapper:
            raise InputError(f"{field} '{named}': {named.name} wraps no other algorithm; remove it")
        check(named.inner, field, package)
    return _typed(named, found, field)


def is_own(named: Named, package: Path = PACKAGE) -> bool:
    """Whether it is code of the reader's own: `module:Class`."""
    return named.code is not None and named.name not in names(package)


def own_code(named: Named) -> list[str]:
    """The code that building this algorithm would import: itself, or what it wraps."""
    inner = [] if named.inner is None else own_code(named.inner)
    return [str(named.code), *inner] if is_own(named) else inner


def with_weights(named: Named, weights: str) -> Named:
    """The algorithm with `weights` among its options, or those of what it wraps."""
    if named.inner is not None:  # a wrapper averages nothing itself
        return replace(named, inner=with_weights(named.inner, weights))
    if "weights" in named.options:
        raise InputError(f"weights ({weights}) is also an option of '{named}'; keep one of the two")
    return replace(named, options={**named.options, "weights": weights})


def _typed(named: Named, found: Entry, field: str) -> dict[str, Scalar]:
    options = {option.name: option for option in found.options}
    typed: dict[str, Scalar] = {}
    for key, text in named.options.items():
        if key not in options:
            if not options:
                raise InputError(
                    f"{field} '{named}': {named.name} has no option '{key}'; remove it"
                )
            raise unknown(f"option of {named.name}", key, options)
        typed[key] = options[key].kind.read(text, f"option {key} of {named.name}")
    missing = [option.name for option in found.options if option.required]
    for name in missing:
        if name not in typed:
            raise InputError(f"{field} '{named}' needs option '{name}'; write {found.usage}")
    return typed


def names(package: Path = PACKAGE) -> dict[str, str]:
    """Name → constructor, as text: reads one file."""
    table = module(package, "fedrift.algorithms").aliases.get("NAMES")
    if not isinstance(table, ast.Dict):
        raise ValueError("fedrift.algorithms has no NAMES = {…} in plain sight")
    return {
        ast.literal_eval(key): ast.unparse(value)
        for key, value in zip(table.keys, table.values, strict=True)
        if key is not None
    }


@cache
def entry(name: str, package: Path = PACKAGE) -> Entry:
    """What is known of one algorithm; an unknown name is the user's mistake."""
    known = names(package)
    if name not in known:
        raise InputError(f"{unknown('algorithm', name, known)}; or your own as module:Class")
    home, attribute = module(package, "fedrift.algorithms").where(known[name])
    target = home.targets[attribute]
    documentation = ast.get_docstring(target) or ""
    found = dict(arguments(home, target))
    return Entry(
        name=name,
        module=home.name,
        attribute=attribute,
        summary=documentation.split("\n")[0],
        options=tuple(_options(found, documentation)),
        is_wrapper="inner" in found and _is_algorithm(found["inner"][1]),
        citation=" ".join(home.doc.split("\n\n")[0].split()),
    )


def _is_algorithm(annotation: ast.expr) -> bool:
    return re.match(r"['\"]?Algorithm\b", ast.unparse(annotation)) is not None


def _options(found: dict[str, Argument], documentation: str) -> Iterator[Option]:
    lines = dict(re.findall(r"^ *(\w+): +(.+)$", documentation, flags=re.MULTILINE))
    for name, (home, annotation, default) in found.items():
        kind = kind_of(annotation, home.kind)
        if kind is None:
            continue
        about = lines.get(name, COMMON.get(name, ""))
        value = None if default is None else home.literal(default)
        yield Option(name, kind, value, about, required=default is None)
