"""A disk that is full or may not be written to: said early, in a sentence; nothing good is lost."""

from __future__ import annotations

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
