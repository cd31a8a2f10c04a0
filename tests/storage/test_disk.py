"""A disk that is full or may not be written to: said early, in a sentence; nothing good is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedrift as fr
from fedrift.cli import code_of
from tests.support.problems import small_run
from tests.support.product import RunFolder, Spec, run_folder

NOBODY = 65534


@pytest.fixture
def small(tmp_path: Path) -> Generator[Path]:
    """A file system of a few hundred kilobytes."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take up all the room there is."""
    with suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return place / "ballast"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_disk_that_fills_up_is_told_and_the_run_goes_on_later(
    name: str, workers: int, small: Path
) -> None:
    def burden(r: fr.RoundReport) -> None:
        if r.round == 2:
            fill(small)

    how: dict[str, Any] = {"out": small / "run", "rounds": 60, "workers": workers}
    with pytest.raises(fr.RunError, match=r"disk of .* is full.*resume"):
        small_run(name, **how, on_round=burden)
    (small / "ballast").unlink()
    again = small_run(name, **how)
    assert again.fingerprint == small_run(name, rounds=60).fingerprint


def test_a_folder_on_a_full_disk_is_refused_and_not_left_behind(small: Path) -> None:
    fill(small)
    with pytest.raises(fr.InputError, match=r"run.*No space left"):
        small_run("fedavg", out=small / "run")
    assert not (small / "run").exists()


def as_nobody(act: Callable[[], object]) -> str:
    """What the first error of another user says; that user is a child process."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        said = "nothing"
        try:
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        return pipe.read().decode()


def test_a_folder_without_permission_is_refused_before_training(tmp_path: Path) -> None:
    top = Path(tempfile.gettempdir())
    for folder in [tmp_path, *tmp_path.parents]:
        if top in folder.parents:
            folder.chmod(0o755)
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    for path in (there, there / "below"):
        said = as_nobody(partial(run_folder.check_free, path))
        assert said.startswith("InputError") and "not writable" in said
    run = tmp_path / "run"
    RunFolder.create(run, Spec()).close()
    said = as_nobody(partial(RunFolder.reopen, run))
    assert said.startswith("InputError") and "not writable" in said


COMMANDS = {
    "report": "report RUN -o small/page.html",
    "report with tables": "report RUN -o small/page.html --format csv --figures svg",
    "analyse": "analyse small/run --what drift",
    "compare": "compare fedavg --data digits --model logistic --rounds 1 --workers 0 --out small/c",
    "partition": "partition --picture small/p.png",
    "partition to a file": "partition --save small/p.json",
    "explain": "explain fedavg -o small/e.html",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_a_full_disk_say_so(
    command: str, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(small.parent)
    run = "run fedavg --data digits --model logistic --rounds 2 --workers 0 -q --out small/run"
    assert code_of(run.split()) == 0
    fill(small)
    before = {p: p.read_bytes() for p in small.rglob("*") if p.is_file()}
    assert code_of(COMMANDS[command].replace("RUN", "small/run").split()) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said and "FEDRIFT_DEBUG" not in said, said
    after = {p: p.read_bytes() for p in small.rglob("*") if p.is_file()}
    assert {p: after.get(p) for p in before} == before
    assert {p.name for p in after.keys() - before.keys()} <= {"rounds.jsonl", "ledger.jsonl"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("method", ["write_model", "write_summary"])
def test_the_end_of_a_run_can_be_made_up_for(
    method: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, method, fail)
        with pytest.raises(fr.RunError, match=r"what was finished is kept: .* fedrift resume"):
            small_run("scaffold", out=tmp_path / "run", rounds=3)
    again = small_run("scaffold", out=tmp_path / "run", rounds=3)
    assert again.fingerprint == small_run("scaffold", rounds=3).fingerprint
