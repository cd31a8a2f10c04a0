"""What a reader of the source meets: modules, imports, and how many of them a task leads through.

    python benchmarks/tree.py [--source CHECKOUT ...] [--static]

Other checkouts, each with a `src/fedrift`, stand in columns before this one. A module is entered
if one of its functions is called, in the main process; importing it does not count. `--static`
leaves out what needs runs, which take a minute a checkout.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
sys.path.append(str(HERE))

from tests.support.layers import Graph, first  # noqa: E402

TABLES = ("tests/support/layers.py", "tests/repository/test_layers.py", "tests/test_layers.py")
RUN = "--data digits --clients 5 --rounds 2 --lr 0.1 --workers 0 --quiet".split()
INSIDE = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # of a module or of a function


# What the files say.


def read(checkout: Path) -> dict[str, str]:
    """The figures of the source as it stands."""
    root = checkout / "src" / "fedrift"
    graph = Graph(root)
    lines = [len(path.read_text("utf-8").splitlines()) for path in root.rglob("*.py")]
    importers = Counter(used for name in graph.modules for used in graph.inside(name) - {name})
    return {
        "modules": f"{len(graph.modules):,}",
        "files directly in src/fedrift": f"{len(list(root.glob('*.py'))):,}",
        "lines of source": f"{sum(lines):,}",
        "median module, lines": f"{statistics.median(lines):.0f}",
        "longest module, lines": f"{max(lines):,}",
        "modules with a single importer": f"{sum(1 for n in importers.values() if n == 1):,}",
        "imports of one module by another": f"{sum(importers.values()):,}",
        "lines of imports": f"{sum(map(import_lines, graph.modules.values())):,}",
        "rows of the layer table": f"{rows(checkout):,}",
        "cycles of packages": f"{len(cycles(graph)):,}",
    }


def import_lines(module: Any) -> int:
    """Lines of import statements, wherever they stand."""
    nodes = [n for n in ast.walk(module.tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def rows(checkout: Path) -> int:
    """Of the table that says who may import whom, whatever file holds it."""
    for path in (checkout / name for name in TABLES):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if path.exists() else ():
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            if node.targets[0].id not in ("LAYERS", "ALLOWED"):
                continue
            if isinstance(node.value, ast.Dict):
                return len(node.value.keys)
            if isinstance(node.value, ast.Tuple | ast.List):
                return len(node.value.elts)
    return 0


def cycles(graph: Graph) -> list[set[str]]:
    """Packages, or modules beside them, that import one another in a circle."""
    names = {first(name) for name in graph.modules}
    uses = {name: set[str]() for name in names}
    for name in graph.modules:
        uses[first(name)] |= {first(used) for used in graph.inside(name)} - {first(name)}
    reach = {name: reachable(uses, name) for name in names}
    circles = {frozenset(b for b in reach[a] if a in reach[b]) for a in names if a in reach[a]}
    return [set(circle) for circle in circles]


def reachable(uses: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = set(uses[start])
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= uses[name] - seen
    return seen


# What is entered: each task in a process of its own, with the checkout's source first on the path.


class Tracer:
    """The files of which a function is called, and those of them before an algorithm's first round.

    What runs because a module is imported (its own lines, bodies of classes, calls in them) does
    not count.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root) + os.sep
        self.codes: set[CodeType] = set()
        self.before: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self.codes or not code.co_filename.startswith(self.root):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_name in INSIDE:
            return
        if self._is_importing(frame):
            return
        if self.before is None and code.co_name == "round" and "/algorithms/" in code.co_filename:
            self.before = self.files()
        self.codes.add(code)

    def _is_importing(self, frame: FrameType) -> bool:
        above = frame.f_back
        while above is not None:
            code = above.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self.root):
                return True
            above = above.f_back
        return False

    def files(self) -> set[str]:
        return {code.co_filename for code in self.codes}

    def trace(self, task: Callable[[], object]) -> dict[str, int]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            task()
        finally:
            sys.setprofile(None)
        return {"all": len(self.files()), "before": len(self.before or self.files())}


def command(*words: str) -> Callable[[], None]:
    """As the console calls it."""

    def call() -> None:
        from fedrift.__main__ import main

        sys.argv = ["fedrift", *words]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise

    return call


def in_python(name: str) -> None:
    """`fr.run` or `fr.compare`, as the README calls them."""
    import torch
    from sklearn.datasets import load_digits

    import fedrift as fr

    digits: Any = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    clients = fr.split(x[:1500], y[:1500], "dirichlet:0.1", clients=5, seed=0)
    what: Any = {"run": "scaffold", "compare": ["fedavg", "scaffold"]}[name]
    make: Any = {"run": fr.run, "compare": fr.compare}[name]
    test = (x[1500:], y[1500:])
    make(
        what, model=lambda: torch.nn.Linear(64, 10), clients=clients, test=test, rounds=2, workers=0
    )


def entered(task: str, folder: str) -> dict[str, int]:
    import fedrift

    tasks: dict[str, Callable[[], object]] = {
        "run": command("run", "scaffold", *RUN, "--out", folder),
        "analyse": command("analyse", folder, "--quiet"),
        "fr.run": lambda: in_python("run"),
        "fr.compare": lambda: in_python("compare"),
    }
    return Tracer(Path(fedrift.__file__).parent).trace(tasks[task])


def walked(checkout: Path) -> dict[str, str]:
    """The figures of `entered`, from processes that see this checkout only."""
    with tempfile.TemporaryDirectory() as place:
        found = {task: _apart(checkout, task, place) for task in ("run", "analyse")}
        found |= {task: _apart(checkout, task, place) for task in ("fr.run", "fr.compare")}
    return {
        "entered by fedrift run scaffold": str(found["run"]["all"]),
        "… before its first round": str(found["run"]["before"]),
        "entered by fr.run": str(found["fr.run"]["all"]),
        "entered by fr.compare": str(found["fr.compare"]["all"]),
        "entered by fedrift analyse": str(found["analyse"]["all"]),
    }


def _apart(checkout: Path, task: str, place: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, __file__, "--entered", task, str(Path(place) / "run")],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{checkout}: {task} failed\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, action="append", default=[], metavar="CHECKOUT")
    parser.add_argument("--static", action="store_true", help="only what the files say")
    parser.add_argument("--entered", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.entered:
        print(json.dumps(entered(*given.entered)))
        return
    checkouts = [*(path.resolve() for path in given.source), HERE]
    figures = [read(path) | ({} if given.static else walked(path)) for path in checkouts]
    table = Table("", *(path.name for path in checkouts[:-1]), "here")
    for key in figures[0]:
        table.add_row(key, *(column[key] for column in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
