"""The files of a run folder: their names, whether a folder may be used, how far a file reaches."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import zlib
from pathlib import Path

from fedrift.errors import InputError
from fedrift.experiment import Spec

SPEC, ROUNDS, LEDGER = "spec.toml", "rounds.jsonl", "ledger.jsonl"
ENVIRONMENT, SUMMARY, MODEL = "env.json", "summary.json", "model.safetensors"
CLIENTS, ORIGIN, ANALYSIS = "clients.json", "origin.toml", "analysis"
STATES = "clients"
"""Folder of the client states."""
BEGINNINGS = (ENVIRONMENT, CLIENTS, ORIGIN)
"""Written before the spec."""
TEMPORARY = ".tmp"


def check_free(path: Path) -> None:
    """Refuses a folder that holds another run or foreign files. Writes nothing."""
    try:
        if not path.exists():
            _check_parent(path)
        elif not path.is_dir():
            raise InputError(f"out '{path}' is a file; name a new folder")
        else:
            _check_empty(path)
    except OSError as error:
        raise InputError(f"out '{path}' cannot be used: {error.strerror}") from None


def _check_parent(path: Path) -> None:
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise InputError(f"out '{path}' is inside '{parent}', which is a file; name a new folder")
    if not os.access(parent, os.W_OK):
        raise InputError(f"out '{path}' cannot be made: '{parent}' is not writable")


def _check_empty(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise InputError(f"out '{path}' is not writable; name another folder")
    found = sorted(entry.name for entry in path.iterdir())
    if SPEC in found:
        raise InputError(
            f"out '{path}' holds another run; name a new folder, or continue that run with: "
            f"fedrift resume {shlex.quote(str(path))}"
        )
    # A run that was killed at its very beginning has left nothing worth keeping.
    foreign = [n for n in found if n not in BEGINNINGS and not is_temporary(n)]
    if foreign:
        raise InputError(f"out '{path}' is not empty (it holds {foreign[0]}); name a new folder")


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY)


def remove_beginnings(path: Path, *, is_ours: bool) -> None:
    """What a run that could not begin has written; a folder that is ours goes away with it."""
    with contextlib.suppress(OSError):
        for rows in (path / STATES).glob("*.rows"):
            rows.unlink()
        if (path / STATES).exists():
            (path / STATES).rmdir()
        for entry in path.iterdir():
            if entry.name in (*BEGINNINGS, SPEC) or is_temporary(entry.name):
                entry.unlink()
        if is_ours:
            path.rmdir()


def check_own(path: Path) -> None:
    """Refuses a folder with links or devices in it: through them a run would write elsewhere."""

    def fail(error: OSError) -> None:
        raise error

    try:
        for place, folders, files in os.walk(path, onerror=fail):
            for entry in (Path(place) / name for name in (*folders, *files)):
                mode = entry.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise InputError(f"'{entry}' is not a plain file of a run; remove it first")
    except OSError as error:
        raise InputError(f"'{error.filename}' cannot be read: {error.strerror}") from None


def locked(path: Path) -> int | None:
    """A descriptor that keeps other processes from writing a folder; None where there are no
    such locks. Refused if another process has it."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(
            f"out '{path}' is being written by another process; wait for it or stop it"
        ) from None
    return descriptor


def check_idle(path: Path) -> None:
    """Refuses a folder that may not be written or that somebody is writing: known at once, before
    data are read."""
    if not os.access(path, os.W_OK):
        raise InputError(f"out '{path}' is not writable; copy it to where you may write")
    descriptor = locked(path)
    if descriptor is not None:
        os.close(descriptor)


def crc_of(path: Path, most: int | None = None) -> tuple[int, int]:
    """Size and CRC of a file, or of its first `most` bytes."""
    size = crc = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while block := file.read(1 << 20 if most is None else min(1 << 20, most - size)):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def read_spec(path: Path) -> Spec:
    """The spec of a run folder; refuses what is none."""
    if not (path / SPEC).is_file():
        raise InputError(f"'{path}' is no run folder: it holds no {SPEC}")
    return Spec.from_toml(path / SPEC)
