"""Imports inside the package go one way: a table says who may import whom, without cycles."""

from __future__ import annotations

from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.import_graph import FRONT_DOOR, Graph, first

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "fedrift"

# Package (or module of the top) → what of the package it may import besides itself. Rows are in
# the order of the layers: none may import what a later row describes.
ALLOWED = {
    "version": "",
    "_moved": "",
    "errors": "",
    "rng": "",
    "grammar": "errors",
    "core": "errors grammar rng",
    "algorithms": "errors core",
    "data": "errors grammar rng core",
    "config": "errors grammar core data",
    "models": "errors grammar config",
    "storage": "errors core config",
    "backends": "errors rng core data storage",
    "figures": "errors storage",
    "engine": "version errors grammar rng core algorithms data config models storage backends "
    "figures",
    "report": "errors grammar config storage figures",
    "analysis": "errors rng core config storage backends figures engine",
    "federation": "version errors core data config models storage backends engine",
    "comparison": "errors data config backends engine report",
    "api": "errors core data config storage backends engine analysis comparison",
    FRONT_DOOR: "version _moved errors core data engine comparison api",
    "conform": "errors grammar core algorithms data config storage backends engine",
    "explain": "errors grammar core config figures engine report conform",
    "presets": "version errors grammar rng core algorithms data config models storage backends "
    "figures engine report analysis comparison api",
    "cli": "errors grammar data config storage backends engine report analysis federation "
    "comparison api conform explain presets",
    "__main__": "cli",
}

# Outside the package an algorithm sees torch and the language, nothing else.
ALGORITHM_MAY_USE = "__future__ collections dataclasses functools math numpy torch typing"

# `fedrift --help` and wrong input answer without the second that `import torch` takes.
WITHOUT_TORCH = (
    "version errors rng grammar config config.* figures figures.* report report.* cli cli.* "
    "core.sampling core.faults data data.datasets data.partition storage storage.jsonl "
    "storage.run_folder storage.fork engine engine.prepare engine.callbacks engine.trackers "
    "presets presets.preset presets.page presets.running"
)


def matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def violations(graph: Graph) -> list[str]:
    """One sentence for every import that the tables do not allow."""
    found: list[str] = []
    for name in graph.modules:
        layer = first(name)
        if layer not in ALLOWED:
            found.append(f"{name} has no row in ALLOWED")
            continue
        allowed = {layer, *ALLOWED[layer].split()}
        wrong = {used for used in graph.inside(name) if first(used) not in allowed}
        if layer == "algorithms":
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
    light = [name for name in graph.modules if matches(name, WITHOUT_TORCH)]
    return [
        f"{name} imports torch through {used}"
        for name in light
        for used in sorted(graph.needs(name))
        if "torch" in graph.outside(used, eager=True)
    ]


def test_imports_follow_the_table() -> None:
    assert violations(Graph(PACKAGE)) == []


def test_rows_allow_only_earlier_rows_and_their_own() -> None:
    rows = list(ALLOWED)
    for place, (row, allowed) in enumerate(ALLOWED.items()):
        later = {name for name in allowed.split() if name in rows[place + 1 :]}
        assert not later, f"{row} may import {later}, which stand below it"


def test_imports_have_no_cycle() -> None:
    assert cycle(Graph(PACKAGE)) == []


def test_help_and_bad_input_do_not_import_torch() -> None:
    assert heavy(Graph(PACKAGE)) == []


def planted(root: Path, **sources: str) -> Graph:
    """A package with the given sources; `__` in a name is a folder."""
    for name, source in sources.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return Graph(root)


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("core__flat", "from fedrift.engine import run", "engine"),
        ("core__flat", "import fedrift.engine as e", "engine"),
        ("core__flat", "from fedrift import engine", "engine"),
        ("core__flat", "from .. import engine", "engine"),
        ("core__flat", "from ..engine import run", "engine"),
        ("core__flat", "import fedrift", "fedrift"),
        ("core__local", "def late():\n    from fedrift.engine import run", "engine"),
        ("core__local", "if TYPE_CHECKING:\n    from fedrift.engine import run", "engine"),
        ("algorithms__fedavg", "from fedrift.data.partition import NAMES", "data.partition"),
        ("algorithms__fedavg", "from ..engine import run", "engine"),
        ("algorithms__fedavg", "import logging", "logging"),
        ("report__tables", "from fedrift.api import run", "api"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, name: str, source: str, wrong: str) -> None:
    graph = planted(tmp_path, **{"engine": "", "api": "", "data__partition": "", name: source})
    assert violations(graph) == [f"{name.replace('__', '.')} must not import {wrong}"]


def test_allowed_imports_and_unknown_modules_are_told_apart(tmp_path: Path) -> None:
    graph = planted(
        tmp_path,
        core__flat="import torch",
        core__local="from fedrift.core.flat import Vec",
        utils="import os",
    )
    assert violations(graph) == ["utils has no row in ALLOWED"]


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    graph = planted(
        tmp_path, data__a="from fedrift.data import b", data__b="from fedrift.data.a import x"
    )
    assert violations(graph) == []
    assert set(cycle(graph)) == {"data.a", "data.b"}


def test_a_planted_torch_import_is_found(tmp_path: Path) -> None:
    graph = planted(
        tmp_path,
        core__flat="import torch",
        grammar="def late():\n    import torch",
        data____init__="",
        data__partition="from fedrift.data.assignment import Part",
        data__assignment="from fedrift.core.flat import Vec",
    )
    assert heavy(graph) == ["data.partition imports torch through core.flat"]
