"""The same comparison interrupted, killed and continued gives the tables of one left alone."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedrift.cli import code_of
from fedrift.report import write
from fedrift.report.statistics.findings import as_records

WORDS = ["fedavg", "scaffold", "--data", "digits", "--model", "mlp", "--clients", "6"]
WORDS += ["--partition", "dirichlet", "--alpha", "0.1,1", "--lr", "0.1"]
TIMES = "seconds"  # measured, so never the same twice


def command(folder: Path, rounds: int, seeds: int, workers: int, *more: str) -> list[str]:
    sizes = ["--rounds", str(rounds), "--seeds", str(seeds), "--workers", str(workers)]
    compare = ["compare", *WORDS, *sizes, *more, "--out", str(folder), "--quiet"]
    return [sys.executable, "-m", "fedrift", *compare]


def begin(words: list[str]) -> subprocess.Popen[bytes]:
    """In a group of its own, so that a signal can reach its workers as Ctrl-C does."""
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr


def lines(folder: Path) -> int:
    return sum(f.read_bytes().count(b"\n") for f in folder.rglob("rounds.jsonl"))


def interrupt(words: list[str], folder: Path, after: int, kind: signal.Signals) -> int:
    """Send the signal once so many rounds stand in the folder; the exit code."""
    process = begin(words)
    end = time.monotonic() + 200
    while lines(folder) < after and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, kind)
    _, errors = process.communicate(timeout=200)
    if kind == signal.SIGINT:
        assert b"Traceback" not in errors, errors.decode()
        assert b"the same command goes on from here" in errors
    return process.returncode


def tables(folder: Path, place: Path) -> dict[str, Any]:
    """The tables as Markdown, CSV and JSON, without what was measured with a clock."""
    place.mkdir()
    written = write([folder], place / "page.html", format=["md", "csv"])
    found: dict[str, Any] = {}
    for file in written.files[1:]:
        text = file.read_text().replace(str(folder), "FOLDER")
        found[file.name] = _timeless(text, file.suffix)
    results = json.loads(json.dumps(as_records(written.findings)))
    for row in results:
        (row["to_target"] or {}).pop(TIMES, None)
    return found | {"json": results, "problems": written.problems}


def _timeless(text: str, kind: str) -> list[list[str]]:
    rows_ = [line.split("|") for line in text.splitlines()]
    if kind == ".csv":
        rows_ = list(csv.reader(text.splitlines()))
    table: list[list[str]] = []
    headings: list[str] = []
    for cells in rows_:
        if len(cells) != len(headings):
            headings = cells
        table.append([c for h, c in zip(headings, cells, strict=True) if TIMES not in h])
    return table


def test_a_comparison_stopped_by_ctrl_c_gives_the_same_tables(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = command(broken, 3, 1, 0)
    assert interrupt(words, broken, 4, signal.SIGINT) == 130
    assert lines(broken) < 3 * 4
    for folder in (broken, whole):  # in this process, which has torch already
        assert code_of(command(folder, 3, 1, 0)[3:]) == 0
    assert tables(broken, tmp_path / "b") == tables(whole, tmp_path / "w")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_and_killed_at_several_moments(workers: int, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(command(whole, 8, 2, workers))
    words = command(broken, 8, 2, workers)
    moments = [
        (0, signal.SIGKILL),
        (3, signal.SIGINT),
        (9, signal.SIGKILL),
        (20, signal.SIGINT),
        (21, signal.SIGKILL),
        (40, signal.SIGKILL),
        (55, signal.SIGINT),
    ]
    for after, kind in moments:
        code = interrupt(words, broken, after, kind)
        assert code == (130 if kind == signal.SIGINT else -signal.SIGKILL)
    finish(words)
    assert tables(broken, tmp_path / "b") == tables(whole, tmp_path / "w")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interrupted_and_killed_while_tuning(tmp_path: Path) -> None:
    tune = ("--tune", "lr=0.01,0.05,0.1,0.5", "--tune-budget", "24")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(command(whole, 4, 1, 2, *tune))
    words = command(broken, 4, 1, 2, *tune)
    for after, kind in ((2, signal.SIGINT), (4, signal.SIGKILL), (12, signal.SIGINT)):
        interrupt(words, broken, after, kind)
    finish(words)
    assert (broken / "compare.toml").read_text() == (whole / "compare.toml").read_text()
    assert tables(broken, tmp_path / "b") == tables(whole, tmp_path / "w")
