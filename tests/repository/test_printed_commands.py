"""Every command and every piece of Python in README and documentation, run as printed, page by
page, each from a folder that holds only what the page says must be there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.support import printed
from tests.support.programs import BIN

FAST = (
    "docs/api.md",
    "docs/api-core.md",
    "docs/concepts.md",
    "docs/deploy.md",
    "docs/robustness.md",
)
"""Pages whose commands take seconds; the others are `slow`."""

ELSEWHERE = {
    "make demo": "tests/repository/test_printed_commands.py",  # what it starts is run below
    "make test": "Makefile",
    'pip install ".[report]"': "Makefile",
    "pip install 'fedrift[ray]'": "Makefile",
    "pip install 'fedrift[flower]'": "Makefile",
    "fedrift run scaffold --backend ray:10.0.0.5:6379": "tests/backends/test_ray.py",
    "flower-superlink --insecure": "tests/federation/test_flower_deployed.py",
    "flower-superlink --host": "tests/federation/test_flower_deployed.py",
    "flower-supernode --superlink": "tests/federation/test_flower_deployed.py",
    "flwr run my-app": "tests/federation/test_flower_deployed.py",
    "flwr supernode register": "tests/federation/test_flower_deployed.py",
    "ssh-keygen": "tests/federation/test_flower_deployed.py",
    "fedrift run scaffold --out runs/seen --watch": "tests/watch/test_command.py",  # a browser
    "fedrift watch runs": "tests/watch/test_command.py",  # it serves until it is stopped
    "tensorboard --logdir": "tests/engine/test_trackers.py",  # it serves until it is stopped
}
"""Beginnings of commands that need a cluster, a server that stays or an installation, and the file
that starts the same programs in its own way."""

EXTRAS = {
    "fedrift run scaffold --backend ray": "ray",
    "fedrift flower": "flwr",
    "fedrift run fedavg --out runs/watched --track tensorboard": "tensorboard",
}
"""Beginnings of commands that need an optional package, and the package."""

LIBRARIES = ("transformers",)

OBJECTS = """
import torch
from torch import nn
from sklearn.datasets import load_digits

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]
test = x_test, y_test
x0, x1, x2 = x[:500], x[500:1000], x[1000:1500]
y0, y1, y2 = y[:500], y[500:1000], y[1000:1500]
clients = [(x0, y0), (x1, y1), (x2, y2)]
"""
"""What a page's Python means by `Net`, `clients` and the like, where it does not make them."""

# What must be there before a page's first command, besides what its own blocks hold.

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(6, 3))
"""


def _own_data(folder: Path) -> None:
    from PIL import Image

    random = np.random.default_rng(0)
    x, y = random.normal(size=(300, 6)).astype("float32"), random.integers(0, 3, 300)
    np.savez(folder / "mine.npz", x=x, y=y)
    (folder / "my_module.py").write_text(NET)
    rows = ["path,label,user"]
    for i in range(12):
        Image.fromarray(random.integers(0, 255, (8, 8), "uint8")).save(folder / f"{i}.png")
        rows.append(f"{i}.png,{i % 2},u{i % 3}")
    (folder / "index.csv").write_text("\n".join(rows))


def _own_algorithm(folder: Path) -> None:
    text = printed.texts("docs/guides/own-algorithm.md", "python")[1]
    (folder / "my_module.py").write_text(text)


def _own_objective(folder: Path) -> None:
    text = printed.texts("docs/guides/own-objective.md", "python")[0]
    (folder / "moon.py").write_text(text)


def _explained(folder: Path) -> None:
    text = printed.texts("docs/guides/own-algorithm.md", "python")[1]
    (folder / "my_module.py").write_text(text.replace("Trimmed", "MyAlgorithm"))


def _experiment(page: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        named = [b.text for b in printed.blocks(page) if b.text.startswith("algorithm = ")]
        (folder / "experiment.toml").write_text(named[0])

    return write


GIVEN: dict[str, Callable[[Path], None]] = {
    "docs/deploy.md": _experiment("docs/deploy.md"),
    "docs/explain.md": _explained,
    "docs/guides/own-algorithm.md": _own_algorithm,
    "docs/guides/own-data.md": _own_data,
    "docs/guides/own-objective.md": _own_objective,
    "docs/guides/run.md": _experiment("docs/guides/run.md"),
}
BEGUN = {
    "docs/guides/report.md": "fedrift compare fedavg scaffold --rounds 12 --seeds 2 --clients 4 "
    "--out runs/compared",
    "docs/robustness.md": "fedrift run fedavg --rounds 2 --clients 4 --out runs/a",
}
"""A command whose folder a page speaks of."""


def started(folder: Path, command: str, programs: Path = BIN) -> None:
    """Runs a line in a shell, with the programs of this environment or those given first."""
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join(map(str, (programs, BIN, os.environ.get("PATH", "")))),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "MPLBACKEND": "agg",
        },
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    assert "Traceback" not in done.stderr, f"{command}\n{done.stderr[-3000:]}"


def is_elsewhere(command: str) -> bool:
    return any(command.startswith(known) for known in ELSEWHERE)


def extra_of(command: str) -> str | None:
    return next((name for known, name in EXTRAS.items() if command.startswith(known)), None)


def here(page: str) -> list[str]:
    """The page's commands that can be run wherever fedrift is."""
    return [c for c in printed.commands(page) if not is_elsewhere(c) and extra_of(c) is None]


def needs_more(piece: str) -> bool:
    """It imports one of the libraries that fedrift works with and does not ask for."""
    return any(f"import {n}" in piece or f"from {n}" in piece for n in LIBRARIES) and not all(
        find_spec(n) for n in LIBRARIES
    )


def script(page: str) -> str:
    """All Python of a page in one; what is a file of its own or a part of a class is left out, and
    what needs a library that is not installed."""
    pieces = [p for p in printed.texts(page, "python") if not needs_more(p)]
    if page == "docs/guides/own-algorithm.md":
        pieces = [pieces[-1]]
    if page == "docs/guides/own-objective.md":  # tests of its own run both pieces
        pieces = []
    return "\n".join(piece for piece in pieces if not piece.startswith((" ", "-")))


PRINTED = [page for page in printed.PAGES if here(page) or script(page)]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[] if p in FAST else pytest.mark.slow) for p in PRINTED]
)
def test_a_page_does_what_it_prints(
    page: str, tmp_path: Path, programs: Path, request: pytest.FixtureRequest
) -> None:
    if any("--data mnist:" in command for command in here(page)):
        request.getfixturevalue("data_folder")
    if page in GIVEN:
        GIVEN[page](tmp_path)
    for command in (*([BEGUN[page]] if page in BEGUN else []), *here(page)):
        started(tmp_path, command, programs)
    if script(page):
        (tmp_path / "page.py").write_text(OBJECTS + script(page))
        started(tmp_path, "python page.py", programs)


WITH_EXTRAS = [(p, c) for p in printed.PAGES for c in printed.commands(p) if extra_of(c)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("page", "command"), [pair for pair in WITH_EXTRAS if not is_elsewhere(pair[1])]
)
def test_a_command_of_an_optional_package(page: str, command: str, tmp_path: Path) -> None:
    package = extra_of(command)
    assert package is not None
    pytest.importorskip(package, reason=f"needs {package}")
    if page in GIVEN:
        GIVEN[page](tmp_path)
    if page in BEGUN:
        started(tmp_path, BEGUN[page])
    started(tmp_path, command)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo(tmp_path: Path) -> None:
    """`make demo` without the set-up of an environment."""
    recipe = (printed.ROOT / "Makefile").read_text(encoding="utf-8")
    assert "$(PY) examples/demo.py" in recipe
    started(tmp_path, f"python {printed.ROOT}/examples/demo.py")


def test_pieces_of_classes_are_python_at_least() -> None:
    pieces = [p for page in printed.PAGES for p in printed.texts(page, "python")]
    for piece in pieces:
        if not piece.startswith("--8<--"):
            ast.parse(textwrap.dedent(piece))


def test_every_block_with_a_command_is_known_as_such() -> None:
    """No line that begins as a command does stands in a block that is not run."""
    for page in printed.PAGES:
        text = printed.PAGES[page].read_text(encoding="utf-8")
        fenced, inside = [], False
        for line in text.splitlines():
            if line.lstrip().startswith("```"):
                inside = not inside
            elif inside and line.split() and line.split()[0] in ("fedrift", "$", "flwr", "make"):
                fenced.append(line)
        known = printed.commands(page)
        for line in fenced:
            words = line.split("#")[0].rstrip("\\ ").split()
            assert any(c.split()[: len(words)] == words for c in known), f"{page}: {line}"


def test_what_is_run_elsewhere_is_still_printed_and_has_its_file() -> None:
    every = [command for page in printed.PAGES for command in printed.commands(page)]
    for known, file in ELSEWHERE.items():
        assert any(command.startswith(known) for command in every), f"{known} is printed no more"
        assert (printed.ROOT / file).exists(), file
    for known in EXTRAS:
        assert any(command.startswith(known) for command in every), f"{known} is printed no more"


def test_a_command_is_read_as_a_shell_reads_it() -> None:
    block = printed.Block("", "fedrift run a \\\n    --lr 1   # why\n\npip install 'x[y]'\n")
    assert block.commands == ["fedrift run a --lr 1", "pip install 'x[y]'"]
    assert printed.Block("", "src/\n  a.py  The program fedrift.\n").commands == []
    assert printed.Block("toml", "fedrift = 1\n").commands == []
