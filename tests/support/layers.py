"""The layers of the package: what each is for, what it may import, and the imports it has.

`LAYERS` is the one table of the architecture, in the order of imports; documents read it too.
Everything is read from the source without running it, and this file needs nothing but Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "fedrift"
FRONT_DOOR = "fedrift"


@dataclass(frozen=True)
class Layer:
    """A package, or a module beside the packages."""

    name: str
    may_import: str
    """What of fedrift besides itself."""
    about: str

    @property
    def allowed(self) -> set[str]:
        return {self.name, *self.may_import.split()}


# In the order of the layers: none may import what a later row describes.
LAYERS = (
    Layer("version", "", "The one place that says which version this is."),
    Layer("_moved", "", "Old import paths of documented names, for one release."),
    Layer("errors", "", "What a user did wrong, in one sentence; what went wrong at run time."),
    Layer("rng", "", "Every random choice, from seed, purpose, round and client alone."),
    Layer("grammar", "errors", "How every named thing is written: `name:key=value`."),
    Layer(
        "core",
        "errors grammar rng",
        "What an algorithm is made of: vectors, messages, optimizers, local training, sites.",
    ),
    Layer("algorithms", "errors core", "The algorithms: one paper, one file."),
    Layer(
        "data",
        "errors grammar rng core",
        "Data sets, how they are split among clients, and how samples are changed.",
    ),
    Layer("config", "errors grammar core data", "What a user can say, checked without torch."),
    Layer("models", "errors grammar config", "Models and losses by name."),
    Layer(
        "storage",
        "errors core config",
        "What is kept of a run: its folder, checkpoints, states of clients, shared memory.",
    ),
    Layer(
        "adapters",
        "errors rng core algorithms config storage",
        "Few trained parameters on a frozen base: the same task, seen through an adapter.",
    ),
    Layer(
        "backends",
        "errors rng core data config storage",
        "Where visits to clients run: in this process, in workers, stacked, on Ray.",
    ),
    Layer("figures", "errors core storage", "Figures, drawn from numbers alone."),
    Layer(
        "engine",
        "version errors grammar rng core algorithms data config adapters models storage backends "
        "figures",
        "From a spec to a result: task, plan, rounds, history, recording and resuming.",
    ),
    Layer(
        "report",
        "errors grammar core config storage figures engine",
        "Finished runs read back; pages, tables and statistics of them.",
    ),
    Layer(
        "analysis",
        "errors rng core config storage backends figures engine",
        "Why an algorithm wins: measurements of trained models, a file each, and what they share.",
    ),
    Layer(
        "federation",
        "version errors core data config models storage backends engine",
        "Real federations: the same algorithms with data that stay at their sites.",
    ),
    Layer(
        "merging",
        "errors rng core data config storage adapters figures engine report analysis",
        "Several trained models made one, without training.",
    ),
    Layer(
        "comparison",
        "errors core data config storage backends engine report",
        "Many runs on one pool of workers, and what came of them.",
    ),
    Layer(
        "api",
        "errors core data config storage backends engine analysis comparison",
        "`run` and `compare` as Python calls them.",
    ),
    Layer(
        "attack",
        "errors rng core data models figures engine api",
        "What a curious server could learn from what it is sent.",
    ),
    Layer(
        FRONT_DOOR,
        "version _moved errors core data engine report merging comparison api",
        "The public names, each imported when it is first used.",
    ),
    Layer(
        "conform",
        "errors grammar core algorithms data config storage adapters backends engine",
        "Does an algorithm do what its paper, the others and the wire expect?",
    ),
    Layer(
        "explain",
        "errors grammar core config figures engine report conform",
        "One algorithm, step by step, on two clients in two dimensions.",
    ),
    Layer(
        "presets",
        "version errors grammar rng core algorithms data config models storage backends "
        "figures engine report analysis merging comparison api",
        "The literature's experiments by name.",
    ),
    Layer(
        "watch",
        "errors grammar core config storage figures",
        "Runs while they run: a page on this machine that reads their folders.",
    ),
    Layer(
        "cli",
        "errors grammar core data config storage backends engine report analysis federation "
        "merging comparison api conform explain presets watch adapters attack",
        "The command line.",
    ),
    Layer("__main__", "engine cli", "The program `fedrift`."),
)
BY_NAME = {layer.name: layer for layer in LAYERS}

# Outside the package an algorithm sees torch and the language, nothing else.
ALGORITHM_MAY_USE = (
    "__future__ abc collections dataclasses functools importlib math numpy torch typing"
)

# `fedrift --help` and wrong input answer without the second that `import torch` takes.
WITHOUT_TORCH = (
    "version errors rng grammar config config.* figures figures.* report report.* watch "
    "watch.* cli cli.* core.sampling core.faults core.devices core.phases core.plain_files data "
    "data.datasets data.partition storage storage.jsonl storage.run_folder storage.run_record "
    "storage.fork engine engine.interrupts engine.prepare engine.callbacks engine.trackers presets "
    "presets.preset presets.page presets.running"
)


class Module:
    """One source file: its name without the package's, and the imports it contains."""

    def __init__(self, root: Path, path: Path) -> None:
        relative = path.relative_to(root).with_suffix("")
        self.is_package = relative.name == "__init__"
        parts = relative.parts[:-1] if self.is_package else relative.parts
        self.name = ".".join(parts) or FRONT_DOOR
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))

    def imports(self, eager: bool = False) -> tuple[tuple[str, str], ...]:
        """Every import as (absolute module, name taken from it); eager: only at import time."""
        return self._eager if eager else self._every

    @cached_property
    def _every(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._imports(ast.walk(self.tree)))

    @cached_property
    def _eager(self) -> tuple[tuple[str, str], ...]:
        return tuple(self._imports(when_imported(self.tree)))

    @cached_property
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
        self._inside: dict[tuple[str, bool], frozenset[str]] = {}

    def inside(self, name: str, eager: bool = False) -> frozenset[str]:
        """The modules of the package that one of them imports."""
        if (name, eager) not in self._inside:
            pairs = self.modules[name].imports(eager)
            self._inside[name, eager] = frozenset(
                self.target(source, taken) for source, taken in pairs if first(source) == FRONT_DOOR
            )
        return self._inside[name, eager]

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
        homes = {} if package is None else package.handed_on
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


def is_torch_free(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in WITHOUT_TORCH.split())


def violations(graph: Graph) -> list[str]:
    """One sentence for every import that the table does not allow."""
    found: list[str] = []
    for name in graph.modules:
        layer = BY_NAME.get(first(name))
        if layer is None:
            found.append(f"{name} has no row in LAYERS")
            continue
        wrong = {used for used in graph.inside(name) if first(used) not in layer.allowed}
        if layer.name == "algorithms":
            wrong |= graph.outside(name) - set(ALGORITHM_MAY_USE.split())
        found += [f"{name} must not import {used}" for used in sorted(wrong)]
    return found


def cycle(graph: Graph) -> list[str]:
    """The modules of one cycle of imports, or nothing."""
    try:
        TopologicalSorter({name: graph.inside(name) for name in graph.modules}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def heavy(graph: Graph) -> list[str]:
    """The torch-free modules that import torch after all, and through which module."""
    return [
        f"{name} imports torch through {used}"
        for name in filter(is_torch_free, graph.modules)
        for used in sorted(graph.needs(name))
        if "torch" in graph.outside(used, eager=True)
    ]
