"""Programs that are forked instead of started: what is told of them is what would be otherwise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import BIN

SCRIPT = """
import atexit, json, os, sys
import beside
atexit.register(lambda: print("at last", flush=True))
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("TOLD"), __name__, beside.HERE]))
print("to the other", file=sys.stderr)
{end}
"""
ENDS = {
    "nothing": "",
    "a number": "sys.exit(3)",
    "a sentence": "sys.exit('why')",
    "nobody": "sys.exit(None)",
    "an error": "raise KeyError('one')",
    "at once": "os._exit(9)",
    "a signal": "os.kill(os.getpid(), 15)",
}


def ended(program: Path, folder: Path, *words: str, told: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [program, *words],
        cwd=folder,
        env={**os.environ, "TOLD": told, "PYTHONPATH": str(folder / "library")},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().rpartition("\n")[2]  # the frames above an error are others
    return done.returncode % 256, done.stdout, last  # a signal is negative, or told by a code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "beside.py").write_text("HERE = __file__")
    return tmp_path


@pytest.mark.parametrize("end", ENDS)
def test_a_file_ends_as_it_would(end: str, folder: Path, programs: Path) -> None:
    (folder / "page.py").write_text(SCRIPT.format(end=ENDS[end]))
    words = ("page.py", "a b", "--c")
    there = ended(programs / "python", folder, *words, told="x")
    real = ended(BIN / "python", folder, *words, told="x")
    assert there == real


@pytest.mark.parametrize("words", ["list algorithms", "run fedagv", "run fedavg --rounds 1 --json"])
def test_fedrift_says_what_it_would(words: str, folder: Path, programs: Path) -> None:
    there, real = (ended(p / "fedrift", folder, *words.split()) for p in (programs, BIN))
    if "--json" in words:  # but for the seconds
        there, real = ((a, b.partition('"seconds"')[0], "") for a, b, _ in (there, real))
    assert there == real


def test_nothing_is_left_from_one_to_the_next(folder: Path, programs: Path) -> None:
    write = "import sys, os; sys.modules['beside'] = sys; os.environ['KEPT'] = 'x'; os.chdir('/')"
    (folder / "first.py").write_text(write)
    (folder / "page.py").write_text(SCRIPT.format(end="print(os.environ.get('KEPT'))"))
    assert ended(programs / "python", folder, "first.py")[0] == 0
    _, out, _ = ended(programs / "python", folder, "page.py")
    assert str(folder / "library" / "beside.py") in out and "None" in out


def test_other_python_is_started(folder: Path, programs: Path) -> None:
    code = "import sys; print('torch' in sys.modules, sys.argv)"
    assert ended(programs / "python", folder, "-c", code, "x")[1] == "False ['-c', 'x']\n"
