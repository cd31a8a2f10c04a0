"""The package's own source files, read as syntax trees: what is defined where, without importing.

A file that cannot be read this way is the package's mistake, so ValueError, never InputError.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fedrift.options import Kind, Scalar, kind_of

Target = ast.ClassDef | ast.FunctionDef


class Module:
    """One source file: its top-level definitions, aliases and imports."""

    def __init__(self, package: Path, name: str) -> None:
        self.package, self.name = package, name
        path = package.joinpath(*name.split(".")[1:])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(source.read_text(encoding="utf-8"))
        self.doc = ast.get_docstring(tree) or ""
        self.targets: dict[str, Target] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            self._index(node)

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


def arguments(home: Module, target: Target) -> Iterator[tuple[str, Argument]]:
    """Fields of a dataclass, inherited ones first, or parameters of a function."""
    if isinstance(target, ast.FunctionDef):
        spec = target.args
        positional = [*spec.posonlyargs, *spec.args]
        defaults = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults]
        pairs = [*zip(positional, defaults, strict=True)]
        for argument, default in [*pairs, *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]:
            if argument.annotation is not None:
                yield argument.arg, (home, argument.annotation, default)
        return
    for base in target.bases:
        parent, name = home.where(ast.unparse(base).split("[")[0])
        node = parent.targets.get(name)
        if isinstance(node, ast.ClassDef) and _is_dataclass(node):
            yield from arguments(parent, node)
    for node in target.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield name, (home, node.annotation, node.value)
            case _:
                pass


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
