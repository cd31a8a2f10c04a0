"""Imports inside the package go one way: a table says who may import whom, without cycles."""

from __future__ import annotations

from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from import_graph import FRONT_DOOR, Graph

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "fedrift"

WORDS = "errors grammar streams"
INPUT = (
    f"{WORDS} toml_files options source catalogue fields workload "
    "model_names loss_names faults protection"
)
VECTORS = f"{WORDS} flat messages reducing optim"
LOOP = f"{VECTORS} flat_model pieces local data.batches data.augment"
CORE = f"{LOOP} problem requests site faults exchange algorithm"
PLACES = f"{CORE} together profiling shared ledger rows store data.resident"
KEPT = f"{PLACES} unbroken backends backends.* participation checkpoint aggregation rounds books"
ENGINE = f"{KEPT} engine"
FOLDERS = "experiment records run_files run_folder results origin"
RUNS = f"{ENGINE} metrics {FOLDERS} keeping figures result room memory planning"
GRIDS = "grid validation comparison task"
READ = (
    "experiment records run_files run_folder results figures quantities pictures pictures.* tuned "
    "grid statistics.* report.*"
)

SEEN = "examinations pictures pictures.*"

# Module → what it may import from the package; a row of its own goes before a pattern. Rows are
# in the order of the layers: only the command line may import what a later row describes.
ALLOWED = {
    "version": "",
    "errors": "",
    "streams": "",
    "unbroken": "",
    "toml_files": "errors",
    "grammar": "errors",
    "options": "errors",
    "source": "errors options",
    "catalogue": "errors grammar options source",
    "fields": WORDS,
    "workload": f"{WORDS} fields",
    "model_names": WORDS,
    "loss_names": WORDS,
    "records": "errors",
    "figures": "errors",
    "quantities": "",
    "pictures": "records",
    "pictures.*": "errors records figures pictures pictures.*",
    "examinations": WORDS,
    "participation": WORDS,
    "faults": WORDS,
    "protection": f"{WORDS} participation",
    "flat": WORDS,
    "flat_model": "flat",
    "messages": f"{WORDS} flat",
    "reducing": "messages",
    "optim": f"{WORDS} flat messages",
    "data": "",
    "data.*": f"{WORDS} flat data.*",
    "resnet": WORDS,
    "own_code": "errors",
    "mobilenet": f"{WORDS} model_names",
    "random_convolutions": "model_names",
    "models": f"{WORDS} model_names own_code resnet mobilenet random_convolutions",
    "metrics": f"{WORDS} flat",
    "pieces": VECTORS,
    "local": LOOP,
    "problem": LOOP,
    "chain": "flat",
    "linking": "flat chain",
    "requests": LOOP,
    "minibatches": f"{LOOP} chain requests data.resident",
    "stacked": f"{LOOP} chain requests minibatches",
    "site": f"{LOOP} problem requests",
    "together": f"{LOOP} problem chain linking requests stacked data.resident",
    "profiling": f"{LOOP} problem requests site",
    "exchange": f"{LOOP} site faults",
    "algorithm": f"{LOOP} problem site exchange",
    "aggregation": f"{CORE} protection",
    "algorithms.*": "errors flat messages optim pieces local algorithm problem site algorithms.*",
    "algorithms": "algorithm algorithms.*",
    "shared": f"{WORDS} messages",
    "checkpoint": f"{WORDS} messages",
    "ledger": CORE,
    "rows": f"{CORE} shared",
    "store": f"{CORE} shared rows",
    "backends": PLACES,
    "backends.*": f"{PLACES} records checkpoint backends backends.*",
    "rounds": f"{PLACES} backends backends.* participation checkpoint aggregation",
    "books": KEPT,
    "engine": ENGINE,
    "losses": f"{WORDS} own_code",
    "own_algorithm": f"{WORDS} options own_code algorithm",
    "build": f"{INPUT} {CORE} algorithms own_algorithm",
    "experiment": f"{INPUT} data.datasets data.partition data.augment",
    "foreign": f"{INPUT} data.datasets experiment",
    "prepare": f"{INPUT} data.* participation experiment",
    "run_files": f"{WORDS} experiment",
    "run_folder": f"{WORDS} records experiment run_files",
    "results": f"{WORDS} records experiment run_files run_folder",
    "origin": f"{WORDS} toml_files experiment run_files",
    "keeping": f"{ENGINE} version records experiment run_files run_folder results",
    "result": f"{ENGINE} records experiment run_files run_folder results keeping figures",
    "room": f"{ENGINE}",
    "memory": f"{ENGINE} data.given protection",
    "planning": RUNS,
    "continuing": RUNS,
    "placing": RUNS,
    "ending": RUNS,
    "session": f"{RUNS} continuing placing ending",
    "features": f"{RUNS} session data.places",
    "tuned": "errors",
    "grid": f"{INPUT} experiment tuned",
    "search": f"{INPUT} experiment grid",
    "statistics": "",
    "statistics.*": "errors grammar experiment records statistics.*",
    "report.*": f"{INPUT} {READ}",
    "report": f"{INPUT} {READ}",
    "track.*": "errors rounds result track.*",
    "track": "errors grammar rounds result track.*",
    "validation": f"{WORDS} data.samples",
    "comparison": f"{RUNS} placing session grid track report",
    "dividing": f"{WORDS} flat data.*",
    "described": f"{LOOP} experiment keeping dividing",
    "checks": f"{CORE} data.resident",
    "guard": f"{CORE} aggregation participation protection",
    "entrant": f"{CORE} experiment build",
    "converted": f"{WORDS} flat flat_model models data.given data.resident",
    "binding": f"{CORE} data.* checks",
    "task": f"{INPUT} {RUNS} guard binding data.* models losses build described checks converted "
    "entrant prepare session",
    "analysis.*": f"{INPUT} {RUNS} {SEEN} data.* prepare session task analysis.*",
    "analysis": "analysis.*",
    "front": f"{INPUT} {RUNS} examinations data.* {GRIDS} checks converted described entrant "
    "track prepare session analysis.during",
    "comparing": f"{INPUT} {RUNS} {GRIDS} described entrant front track",
    "verification": f"{INPUT} {RUNS} prepare task front cli.progress",
    "contests": f"{INPUT} {RUNS} data.* {GRIDS} tuned search track prepare session",
    "federation": "",
    "federation.*": f"{INPUT} {RUNS} version foreign data.* {GRIDS} models prepare session "
    "federation.*",
    "conform.*": f"{INPUT} {RUNS} data.* own_code build task session algorithms algorithms.* "
    "conform.*",
    "conform": "errors conform.*",
    "conform.survey": f"{WORDS} backends algorithms conform conform.*",
    "explain.*": f"{INPUT} {RUNS} {READ} session conform.* explain.*",
    "explain": f"{INPUT} {READ} report explain.*",
    "presets.findings": "errors records",
    "presets.reading": "errors",
    "presets.trends": "",
    "presets.relations": "errors presets.findings presets.reading presets.trends",
    "presets.studies": "errors presets.findings",
    "presets.preset": (
        f"{INPUT} experiment examinations grid "
        "presets.findings presets.reading presets.relations presets.studies"
    ),
    "presets.page": (
        "quantities records presets.findings presets.preset presets.relations presets.trends"
    ),
    "presets.effort": "",
    "presets.synthetic": "streams data.samples",
    "presets.variants": f"{CORE} algorithms.scaffold",
    "presets.drawn": f"{READ} presets.*",
    "presets.inside": f"{READ} session analysis.* presets.*",
    "presets.compared": f"{INPUT} {READ} presets.*",
    "presets.running": f"{INPUT} {READ} version backends comparison contests presets.*",
    "presets.studies.*": "*",
    "presets": "errors presets.preset",
    "cli": "*",
    "cli.*": "*",
    "__main__": "cli",
    FRONT_DOOR: "version algorithm comparing comparison data.resident dividing engine errors front "
    "local result",
}

# Outside the package an algorithm sees torch and the language, nothing else.
ALGORITHM_MAY_USE = "__future__ collections dataclasses functools math numpy torch typing"

LIGHT = "examinations results origin verification statistics statistics.* report report.*"
LIGHT = f"{LIGHT} pictures pictures.* presets presets.preset presets.page presets.running"
# `fedrift --help` and wrong input answer without the second that `import torch` takes.
WITHOUT_TORCH = f"{INPUT} data.datasets data.partition experiment foreign prepare {LIGHT} cli cli.*"


def matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def violations(graph: Graph) -> list[str]:
    """One sentence for every import that the tables do not allow."""
    found: list[str] = []
    for name in graph.modules:
        patterns = (pattern for pattern in ALLOWED if fnmatchcase(name, pattern))
        row = name if name in ALLOWED else next(patterns, None)
        if row is None:
            found.append(f"{name} has no row in ALLOWED")
            continue
        wrong = {used for used in graph.inside(name) if not matches(used, ALLOWED[row])}
        if row == "algorithms.*":
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
        ("flat", "from fedrift.engine import run", "engine"),
        ("flat", "import fedrift.engine as e", "engine"),
        ("flat", "from fedrift import engine", "engine"),
        ("flat", "from . import engine", "engine"),
        ("flat", "from .engine import run", "engine"),
        ("flat", "import fedrift", "fedrift"),
        ("local", "def late():\n    from fedrift.engine import run", "engine"),
        ("local", "if TYPE_CHECKING:\n    from fedrift.engine import run", "engine"),
        ("algorithms__fedavg", "from fedrift.data.partition import NAMES", "data.partition"),
        ("algorithms__fedavg", "from ..engine import run", "engine"),
        ("algorithms__fedavg", "import logging", "logging"),
        ("report", "from fedrift.front import run", "front"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, name: str, source: str, wrong: str) -> None:
    graph = planted(tmp_path, **{"engine": "", "data__partition": "", name: source})
    assert violations(graph) == [f"{name.replace('__', '.')} must not import {wrong}"]


def test_allowed_imports_and_unknown_modules_are_told_apart(tmp_path: Path) -> None:
    graph = planted(
        tmp_path, flat="import torch", local="from fedrift.flat import Vec", utils="import os"
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
        flat="import torch",
        grammar="def late():\n    import torch",
        data____init__="",
        data__partition="from fedrift.data.parts import Part",
        data__parts="from fedrift.flat import Vec",
    )
    assert heavy(graph) == ["data.partition imports torch through flat"]
