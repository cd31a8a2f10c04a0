"""`fedrift watch`: prints where the page is, serves it, and ends with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "fedrift", "watch"]


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [*COMMAND, "runs", "--no-open"]
    with subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{address}runs", timeout=20) as answer:
            assert b'"runs": []' in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert "the page has ended; runs go on" in process.stderr.read()


def test_a_run_opens_a_page_that_ends_with_it(tmp_path: Path) -> None:
    words = ["run", "fedavg", "--rounds", "3", "--workers", "0", "--out", "runs/first", "--watch"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedrift", *words],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BROWSER": "true"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        name, address = process.stderr.readline().split()
        assert name == "page"
        with urllib.request.urlopen(f"{address}runs", timeout=20) as answer:
            assert b'"root": "runs"' in answer.read()
        rest = process.stderr.read()
        assert process.wait(60) == 0 and "round 3/3" in rest
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{address}runs", timeout=20)


def test_without_a_folder_there_is_nothing_to_watch(tmp_path: Path) -> None:
    for words in (["run", "fedavg"], ["compare", "fedavg", "scaffold"]):
        command = [sys.executable, "-m", "fedrift", *words, "--rounds", "1", "--watch"]
        ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
        assert ended.returncode == 2
        assert ended.stderr == "error: --watch shows what a run writes; give --out FOLDER\n"


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    command = [*COMMAND, "none", "--no-open"]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "error: 'none' is no folder; name one that holds runs, or will\n"
