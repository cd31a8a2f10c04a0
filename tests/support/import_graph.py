"""The modules of a package and their imports, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

FRONT_DOOR = "fedrift"


class Module:
    """One source file: its name without the package's, and the imports it contains."""

    def __init__(self, root: Path, path: Path) -> None:
        relative = path.relative_to(root).with_suffix("")
        self.is_package = relative.name == "__init__"
        parts = relative.parts[:-1] if self.is_package else relative.parts
        self.name = ".".join(parts) or FRONT_DOOR
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))

    def imports(self, eager: bool = False) -> Iterator[tuple[str, str]]:
        """Every import as (absolute module, name taken from it); eager: only at import time."""
        return self._imports(when_imported(self.tree) if eager else ast.walk(self.tree))

    def handed_on(self) -> dict[str, str]:
        """Name → home of what a package fetches when it is asked for it: its imports for the type
        checker."""
        blocks = [node for node in self.tree.body if self.is_package and is_for_checker(node)]
        return {name: home for block in blocks for home, name in self._imports(ast.walk(block))}

    def _imports(self, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
        for node in nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = f"{self.above(node.level)}{node.module or ''}".strip(".")
                yield from ((source, alias.name) for alias in node.names)

    def above(self, level: int) -> str:
        """What the dots of a relative import stand for."""
        if level == 0:
            return ""
        inside = [] if self.name == FRONT_DOOR else self.name.split(".")
        up = level - 1 if self.is_package else level
        return ".".join([FRONT_DOOR, *inside[: len(inside) - up]]) + "."


def when_imported(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: no function bodies, no TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if is_for_checker(child):
            continue
        yield child
        yield from when_imported(child)


def is_for_checker(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


class Graph:
    """The modules of a package and which of them imports which."""

    def __init__(self, root: Path) -> None:
        found = (Module(root, path) for path in sorted(root.rglob("*.py")))
        self.modules = {module.name: module for module in found}

    def inside(self, name: str, eager: bool = False) -> set[str]:
        """The modules of the package that one of them imports."""
        pairs = self.modules[name].imports(eager)
        return {
            self.target(source, taken) for source, taken in pairs if first(source) == FRONT_DOOR
        }

    def outside(self, name: str, eager: bool = False) -> set[str]:
        """The other top-level packages that it imports."""
        return {first(source) for source, _ in self.modules[name].imports(eager)} - {FRONT_DOOR}

    def target(self, source: str, taken: str) -> str:
        """`from a import b` means module a.b if there is one, else b's home if a hands it on, else
        a."""
        inside = source.removeprefix(FRONT_DOOR).strip(".")
        longer = f"{inside}.{taken}".strip(".")
        if longer in self.modules:
            return longer
        package = self.modules.get(inside or FRONT_DOOR)
        homes = {} if package is None else package.handed_on()
        return self.target(homes[taken], taken) if taken in homes else inside or FRONT_DOOR

    def needs(self, name: str) -> set[str]:
        """All modules that run when one is imported, enclosing packages included."""
        seen: set[str] = set()
        waiting = {name}
        while waiting:
            name = waiting.pop()
            seen.add(name)
            waiting |= {*enclosing(name), *self.inside(name, eager=True)} & set(self.modules) - seen
        return seen


def first(dotted: str) -> str:
    return dotted.partition(".")[0]


def enclosing(name: str) -> list[str]:
    parts = name.split(".")
    return [FRONT_DOOR, *(".".join(parts[:i]) for i in range(1, len(parts)))]
