"""Imports inside the package go one way, and the tree of the package is the table of its layers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.layers import (
    FRONT_DOOR,
    LAYERS,
    PACKAGE,
    Graph,
    cycle,
    first,
    heavy,
    violations,
)

BESIDE_THE_PACKAGES = {
    "__init__.py",
    "__main__.py",
    "_moved.py",
    "api.py",
    "comparison.py",
    "errors.py",
    "grammar.py",
    "py.typed",
    "rng.py",
    "version.py",
}
PUBLIC_FUNCTIONS = {"run", "split", "compare"}  # `fr.run` would become a package of that name


@cache
def package() -> Graph:
    """Read once: every test asks, none changes it."""
    return Graph(PACKAGE)


def test_imports_follow_the_table() -> None:
    assert violations(package()) == []


def test_rows_allow_only_earlier_rows_and_their_own() -> None:
    rows = [layer.name for layer in LAYERS]
    for place, layer in enumerate(LAYERS):
        later = layer.allowed & set(rows[place + 1 :])
        assert not later, f"{layer.name} may import {later}, which stand below it"


def test_imports_have_no_cycle() -> None:
    assert cycle(package()) == []


def test_algorithms_have_one_import() -> None:
    """`from fedrift.core import …`, and another algorithm to build on; never a module of core."""
    graph = package()
    for name, module in graph.modules.items():
        if first(name) == "algorithms":
            sources = {source for source, _ in module.imports() if first(source) == FRONT_DOOR}
            others = {s for s in sources if not s.startswith("fedrift.algorithms.")}
            assert others <= {"fedrift.core"}, name


def test_help_and_bad_input_do_not_import_torch() -> None:
    assert heavy(package()) == []


def test_a_command_imports_no_report_and_no_algorithm_before_it_wants_one() -> None:
    graph = package()
    early = {name for name in graph.needs("cli") if first(name) in ("report", "presets")}
    assert early == {"report", "report.numbers"}
    assert not {name for name in graph.needs("algorithms") if name.startswith("algorithms.")}


def test_every_row_is_one_package_or_module_that_is_there_and_says_what_it_is_for() -> None:
    names = [layer.name for layer in LAYERS]
    assert len(names) == len(set(names))
    assert set(names) == {name.partition(".")[0] for name in package().modules}
    for layer in LAYERS:
        assert layer.about.endswith((".", "?")) and "\n" not in layer.about
        unknown = layer.allowed - set(names)
        assert not unknown, f"{layer.name} may import {unknown}, which nobody knows"


def test_no_new_file_stands_beside_the_packages() -> None:
    beside = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert beside == BESIDE_THE_PACKAGES, "a new module belongs into the package of its layer"


def test_no_package_hides_a_public_function() -> None:
    assert not PUBLIC_FUNCTIONS & {path.stem for path in PACKAGE.iterdir()}


def planted(root: Path, **sources: str) -> Graph:
    """A package with the given sources; the first `__` in a name ends a folder."""
    for name, source in sources.items():
        path = root / f"{name.replace('__', '/', 1)}.py"
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
    assert violations(graph) == ["utils has no row in LAYERS"]


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


def test_a_name_that_a_package_hands_on_is_followed_to_its_home(tmp_path: Path) -> None:
    graph = planted(
        tmp_path,
        core____init__="if TYPE_CHECKING:\n    from fedrift.core.flat import Vec",
        core__flat="import torch",
        core__faults="",
        grammar="from fedrift.core import Vec",
        figures__style="from fedrift.core import faults",
    )
    assert graph.inside("grammar") == {"core.flat"}
    assert heavy(graph) == ["grammar imports torch through core.flat"]
