"""Names, options, defaults and one-line docs of the algorithms, read from source without importing.

An option is a field or parameter whose annotation is a plain type, `Literal`, `X | None`, or one
of these with bounds: `Annotated[float, ">= 0"]`. Its one-line documentation is a line
`name: text` of the docstring: of the class or one it inherits fields from, of the function, or of
what a `partial` settles some arguments of.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from fedrift.errors import InputError, meant, unknown
from fedrift.grammar import Named

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
        words = [str(spell(choice)) for choice in self.choices]
        raise InputError(f"{field} must be {self}, not '{text}'{meant(text, words)}")

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


class Module:
    """One source file as a syntax tree: its top-level definitions, aliases and imports."""

    def __init__(self, package: Path, name: str) -> None:
        self.package, self.name = package, name
        path = package.joinpath(*name.split(".")[1:])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(source.read_text(encoding="utf-8"))
        self.doc = ast.get_docstring(tree) or ""
        self.targets: dict[str, ast.ClassDef | ast.FunctionDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.alias_docs: dict[str, str] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            self._index(node)
        for node, following in pairwise(tree.body):
            match node, following:
                case (
                    ast.Assign(targets=[ast.Name(id=name)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    self.alias_docs[name] = text
                case _:
                    pass

    def _index(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                self.targets[node.name] = node
            case ast.ImportFrom(module=str(home), names=imported):
                for item in imported:
                    self.imports[item.asname or item.name] = (home, item.name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.aliases[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.aliases[name] = value
            case ast.If(body=body):  # imports for the type checker only
                for inner in body:
                    self._index(inner)
            case _:
                pass

    def where(self, name: str) -> tuple[Module, str]:
        """The module of this package that defines `name`, following imports."""
        home, original = self.imports.get(name, (self.name, name))
        if home == self.name or home.split(".")[0] != self.name.split(".")[0]:
            return self, original
        return module(self.package, home).where(original)

    def kind(self, name: str) -> Kind | None:
        """The kind an alias stands for; None for a class."""
        home, original = self.where(name)
        alias = home.aliases.get(original)
        if alias is not None:
            return kind_of(alias, home.kind)
        if original not in home.targets and name not in self.imports:
            raise ValueError(f"{self.name}: the annotation '{name}' is defined nowhere")
        return None

    def literal(self, node: ast.expr) -> Scalar:
        """A default: a literal, or the name of a constant."""
        if isinstance(node, ast.Name):
            home, original = self.where(node.id)
            return home.literal(home.aliases[original])
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "math.inf":
            return float("inf")
        return ast.literal_eval(node)


@cache
def module(package: Path, name: str) -> Module:
    """One file of the package in that folder, read once."""
    return Module(package, name)


Argument = tuple[Module, ast.expr, ast.expr | None]  # where, annotation, default


@dataclass(frozen=True)
class Constructor:
    """How an algorithm is made: the arguments, and one line about it and about each of them."""

    summary: str
    arguments: dict[str, Argument]
    lines: dict[str, str]


def constructor(home: Module, name: str) -> Constructor:
    """A dataclass, a function, or what is left of one of them when `partial` settles a part."""
    match home.targets.get(name, home.aliases.get(name)):
        case ast.ClassDef() as target:
            return _class(home, target)
        case ast.FunctionDef() as target:
            documentation = ast.get_docstring(target) or ""
            return Constructor(
                _summary(documentation), dict(_parameters(home, target)), _lines(documentation)
            )
        case ast.Call(
            func=ast.Name(id="partial"), args=[ast.Name(id=whole), *values], keywords=named
        ):
            made = constructor(*home.where(whole))
            settled = {*list(made.arguments)[: len(values)], *(keyword.arg for keyword in named)}
            rest = {key: made.arguments[key] for key in made.arguments if key not in settled}
            return Constructor(_summary(home.alias_docs.get(name, "")), rest, made.lines)
        case _:
            raise ValueError(f"{home.name}: '{name}' is no class, function or partial of one")


def _parameters(home: Module, target: ast.FunctionDef) -> Iterator[tuple[str, Argument]]:
    spec = target.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults]
    pairs = [*zip(positional, defaults, strict=True)]
    for argument, default in [*pairs, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]:
        if argument.annotation is not None:
            yield argument.arg, (home, argument.annotation, default)


def _class(home: Module, target: ast.ClassDef) -> Constructor:
    """Fields of a dataclass, inherited ones first."""
    fields: dict[str, Argument] = {}
    lines: dict[str, str] = {}
    for base in target.bases:
        parent, name = home.where(ast.unparse(base).split("[")[0])
        node = parent.targets.get(name)
        if isinstance(node, ast.ClassDef) and _is_dataclass(node):
            inherited = _class(parent, node)
            fields |= inherited.arguments
            lines |= inherited.lines
    for node in target.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                fields[name] = (home, node.annotation, node.value)
            case _:
                pass
    documentation = ast.get_docstring(target) or ""
    return Constructor(_summary(documentation), fields, lines | _lines(documentation))


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _summary(documentation: str) -> str:
    return documentation.split("\n")[0]


def _lines(documentation: str) -> dict[str, str]:
    """Name → text of the lines `name: text`."""
    return dict(re.findall(r"^ *(\w+): +(.+)$", documentation, flags=re.MULTILINE))


PACKAGE = Path(__file__).parents[1]
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
    listed = entry(named.name, package)
    if named.value is not None:
        raise InputError(
            f"{field} '{named}' has the value '{named.value}'; options are written key=value: "
            f"{listed.usage}"
        )
    if listed.is_wrapper and named.inner is None:
        raise InputError(
            f"{field} '{named}' wraps another algorithm; name it in parentheses: "
            f"{named.name}(fedavg)"
        )
    if named.inner is not None:
        if not listed.is_wrapper:
            raise InputError(f"{field} '{named}': {named.name} wraps no other algorithm; remove it")
        check(named.inner, field, package)
    return _typed(named, listed, field)


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


def _typed(named: Named, entry: Entry, field: str) -> dict[str, Scalar]:
    options = {option.name: option for option in entry.options}
    typed: dict[str, Scalar] = {}
    for key, text in named.options.items():
        if key not in options:
            if not options:
                raise InputError(
                    f"{field} '{named}': {named.name} has no option '{key}'; remove it"
                )
            raise unknown(f"option of {named.name}", key, options)
        typed[key] = options[key].kind.read(text, f"option {key} of {named.name}")
    missing = [option.name for option in entry.options if option.required]
    for name in missing:
        if name not in typed:
            raise InputError(f"{field} '{named}' needs option '{name}'; write {entry.usage}")
    return typed


@cache
def names(package: Path = PACKAGE) -> dict[str, str]:
    """Name → `file:constructor` below `fedrift.algorithms`: reads one file."""
    match module(package, "fedrift.algorithms").aliases.get("NAMES"):
        case ast.Call(args=[ast.Dict() as table]):
            return ast.literal_eval(table)
        case _:
            raise ValueError("fedrift.algorithms has no NAMES = Constructors({…}) in plain sight")


@cache
def entry(name: str, package: Path = PACKAGE) -> Entry:
    """What is known of one algorithm; an unknown name is the user's mistake."""
    known = names(package)
    if name not in known:
        raise InputError(f"{unknown('algorithm', name, known)}; or your own as module:Class")
    file, _, attribute = known[name].partition(":")
    home = module(package, f"fedrift.algorithms.{file}")
    made = constructor(home, attribute)
    return Entry(
        name=name,
        module=home.name,
        attribute=attribute,
        summary=made.summary,
        options=tuple(_options(made)),
        is_wrapper="inner" in made.arguments and _is_algorithm(made.arguments["inner"][1]),
        citation=" ".join(home.doc.split("\n\n")[0].split()),
    )


def _is_algorithm(annotation: ast.expr) -> bool:
    return re.match(r"['\"]?Algorithm\b", ast.unparse(annotation)) is not None


def _options(made: Constructor) -> Iterator[Option]:
    for name, (home, annotation, default) in made.arguments.items():
        kind = kind_of(annotation, home.kind)
        if kind is None:
            continue
        about = made.lines.get(name, COMMON.get(name, ""))
        value = None if default is None else home.literal(default)
        yield Option(name, kind, value, about, required=default is None)
