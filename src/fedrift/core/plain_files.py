"""Whole files, whoever made them: plain ones only are read, and none is ever half written.

A pipe or a device may never end, a link leads elsewhere, a file may be larger than memory; and what
another program reads while it is written must be the old content or the new.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Sequence
from pathlib import Path

from fedrift.errors import InputError, RunError, is_of_disk

LARGEST = 2 << 30  # bytes; a run's lines are far fewer
AT_ONCE = 1 << 16  # bytes that are asked for where a file does not say how many it has
LONGEST_NAME = 100  # characters of a file's name that stand in that of its temporary file


def read_plain(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a plain file; a pipe or a device is an OSError, and so are more than `most`."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        there = os.fstat(file.fileno())
        _refuse_special(there)
        if there.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
        return file.read(min(most, max(there.st_size, AT_ONCE)))


def check_plain(path: Path) -> None:
    """OSError unless it is a plain file, for libraries that open files themselves."""
    _refuse_special(os.stat(path))


def _refuse_special(there: os.stat_result) -> None:
    if not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file")


def write_file(path: Path, content: bytes | str) -> None:
    """A file that somebody asked for, and its folder: what hinders is said in one sentence."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        if is_of_disk(error):
            raise RunError(f"'{path}' cannot be written: {error.strerror}") from None
        raise InputError(
            f"'{path}' cannot be written: {error.strerror}; name another place"
        ) from None


def replace_text(path: Path, text: str) -> None:
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file as a whole: a reader sees the old one or the new one, never a part. An OSError
    names it."""
    with written_beside(path, content) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def written_beside(path: Path, content: bytes) -> Generator[Path]:
    """A complete, synced file next to `path`, to be renamed to it; else it goes away. An OSError
    names the path."""
    temporary = path.with_name(f".{path.name[:LONGEST_NAME]}.{os.getpid()}.tmp")
    try:
        # Exclusively: what somebody may have put there, a link even, is not written to.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


# What a refused command has written is taken back.


def missing_folders(path: Path) -> list[Path]:
    """The folders that have to be made for this one, itself first."""
    return [one for one in (path, *path.parents) if not os.path.exists(one)]


def make_folders(path: Path) -> None:
    """A folder with those that it lies in: all of them or none."""
    missing = missing_folders(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        remove_empty([folder for folder in missing if os.path.exists(folder)])
        raise


def remove_empty(folders: Sequence[Path]) -> None:
    """Folders in this order, up to the first that holds something."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _entries(folder: Path) -> set[Path]:
    with contextlib.suppress(OSError):
        return set(folder.iterdir())
    return set()


@contextlib.contextmanager
def taken_back(folder: Path, *names: str) -> Generator[None]:
    """If what is done is refused, these files of the folder are as before and folders made for it
    are gone; not if something else has come into it meanwhile, which the files then describe."""
    missing, known = missing_folders(folder), _entries(folder)
    files, before = {folder / name for name in names}, dict[Path, bytes]()
    for path in files & known:
        with contextlib.suppress(OSError):
            before[path] = read_plain(path)
    try:
        yield
    except InputError:
        for path in _entries(folder) - known - files:
            remove_empty([path])
        new = _entries(folder) - known
        if new <= files:
            for path, content in before.items():
                write_file(path, content)
            for path in new:
                path.unlink()
            remove_empty(missing)
        raise
