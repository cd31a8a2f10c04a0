"""What commands print: the values of local work, a table before words, and pipes that close."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedrift.analysis.case import Finding
from fedrift.analysis.examine import Examined
from fedrift.cli import code_of
from fedrift.config.analyses import WHAT
from fedrift.report.inside import COLUMNS

analyse: Any = import_module("fedrift.cli.analyse")  # the package has a function of this name
SHORT = "--rounds 1 --clients 3 --model logistic --workers 0".split()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedavg"], "local      epochs 1, batch size 64, lr 0.1\n"),
        (["fedavg", "--steps", "3", "--momentum", "0.9"], "steps 3, batch size 64, lr 0.1, mom"),
        (["swa(fedavg):start=1", "--batch-size", "full"], "local      epochs 1, batch size full"),
        (["fed3r"], "local      no training\n"),
    ],
)
def test_local_work_in_values(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["run", *words, *SHORT]) == 0
    assert says in capsys.readouterr().err


def found(run: str, what: str, numbers: dict[str, Any]) -> Examined:
    return Examined(run, what, Finding("A title", ("A sentence.", "Another."), numbers))


def test_several_runs_make_a_table_and_words_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    done = [
        found("fedavg", "drift", {"distance": 0.25, "dissimilarity": {"ratio": 3.5}}),
        found("fedavg", "landscape", {"lines": {"a": {"barrier": 1.0}, "b": {"barrier": 2.0}}}),
        found("scaffold", "drift", {"distance": 0.5, "cosine_between": -0.125}),
        found("scaffold", "cka", {"layers": {"a": {"between": 0.1}, "b": {"between": 0.75}}}),
    ]
    analyse._finish(done, None, (), as_json=False, verbose=False)
    short = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in short.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["fedavg", "0.25", "–", "3.5", "2", "–"],
        ["scaffold", "0.5", "\N{MINUS SIGN}0.125", "–", "–", "0.75"],
    ]
    assert "A sentence." not in short
    analyse._finish(done, None, (), as_json=False, verbose=True)
    assert capsys.readouterr().out.count("A sentence.") == 4
    analyse._finish(done[:1], None, (), as_json=False, verbose=False)  # one run: words at once
    assert "A sentence." in capsys.readouterr().out


def test_every_measurement_has_columns() -> None:
    assert {*COLUMNS} == {*WHAT}


@pytest.mark.parametrize("command", ["list algorithms", "run fedavg --rounds 1 --workers 0 2>&1"])
def test_a_reader_that_leaves_is_no_failure(command: str, tmp_path: Path) -> None:
    line = f"{sys.executable} -m fedrift {command} | head -1 > first; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (tmp_path / "first").read_text()
