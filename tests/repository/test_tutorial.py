"""The tutorial is a notebook whose cells run, one after the other, as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK: dict[str, Any] = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))
CELLS = NOTEBOOK["cells"]


def test_its_cells_run_from_an_empty_folder(tmp_path: Path) -> None:
    code = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) > 5
    (tmp_path / "tutorial.py").write_text("\n\n".join(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "tutorial.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error::UserWarning"},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert not done.stderr  # no bar where nobody looks


def test_it_is_a_notebook_without_the_output_of_one_machine() -> None:
    assert NOTEBOOK["nbformat"] == 4
    for cell in CELLS:
        assert cell["id"] and set(cell) <= {
            *("id", "cell_type", "metadata", "source", "outputs", "execution_count")
        }
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_its_links_are_there() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (DOCS / target).exists(), target
