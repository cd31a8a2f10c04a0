"""`fedrift.core` as the one import for authors: complete, lazy, and the same for type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fedrift import core


def for_the_checker() -> dict[str, str]:
    """Name → module, as the imports under TYPE_CHECKING say."""
    tree = ast.parse(Path(core.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_checkers_and_python_see_the_same_names() -> None:
    assert for_the_checker() == core._HOMES
    assert sorted(core.__all__) == sorted(core._HOMES) == dir(core)


@pytest.mark.parametrize("name", core.__all__)
def test_a_name_is_that_of_its_module(name: str) -> None:
    assert getattr(core, name) is getattr(import_module(core._HOMES[name]), name)


def test_importing_it_does_not_import_torch() -> None:
    code = (
        "import sys, fedrift.core, fedrift.core.sampling, fedrift.core.faults\n"
        "if 'torch' in sys.modules: sys.exit('torch was imported')\n"
        "from fedrift.core import Vec, flat\n"
        "assert Vec is flat.Vec"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_an_unknown_name_is_said() -> None:
    with pytest.raises(ImportError, match="Vector"):
        exec("from fedrift.core import Vector", {})
