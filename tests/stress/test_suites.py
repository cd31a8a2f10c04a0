"""A few cases of `make test-stress`, which does thousands; and that it finds mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stress.hostile import folders, lines, mutants, trial
from tests.stress.portions import ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


def suite(**counts: object) -> tuple[int, str]:
    """The suite with so many cases: exit code and what it printed."""
    given = {"lines": 0, "forged": 0, "damaged": 0, "kills": 0} | counts
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.hostile", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_nothing_from_outside_breaks_it() -> None:
    code, said = suite(lines=24, forged=14, damaged=14, kills=8, first=1215)
    assert code == 0, said
    for kind in ("24 command lines", "14 forged folders", "14 damaged folders"):
        assert f"{kind}: 0 tracebacks, 0 hangs, 0 writes elsewhere, 0 wrong results" in said, said
    assert re.search(r"\d+ kills and signals: 0 tracebacks", said), said


def test_lines_meet_every_command_and_every_option() -> None:
    drawn = [lines.draw(0, number) for number in range(1500)]
    known = lines.commands()
    met = {(line.path, option.name) for line in drawn for option, _ in line.options}
    assert met == {(path, option.name) for path, found in known.items() for option in found}


def test_cases_are_drawn_from_their_seed_alone() -> None:
    for kind in folders.KINDS:
        drawn = [folders.changes(kind, 3, number) for number in range(300)]
        assert drawn == [folders.changes(kind, 3, number) for number in range(300)]
        assert {change for what in drawn for change, _ in what} == {*folders.KINDS[kind]}
    assert lines.draw(0, 5) == lines.draw(0, 5) != lines.draw(1, 5)


def test_cases_are_computed_under_the_same_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked or begun anew: else they round otherwise than what they are compared with."""
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    place = trial.Place(tmp_path / "place")

    def tell() -> int:
        print(os.environ["MKL_CBWR"], os.environ["PATH"])
        return 0

    ended = trial.started(place, tell).ended()
    assert (ended.code, ended.out) == (0, f"COMPATIBLE {os.environ['PATH']}\n"), ended.errors
    assert place.environment()["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_a_mistake_is_found(mutant: str) -> None:
    _, kind, sort = mutants.MUTANTS[mutant]
    code, said = suite(mutant=mutant, **{kind: 4 if mutant == "hang" else 20})
    counted = re.search(rf"(\d+) {sort.replace('written', 'writes elsewhere').split()[0]}", said)
    assert code == 1 and counted is not None and int(counted[1]) > 0, said
    assert "again: " in said
