"""Whole files: plain ones only are read, and none is half written or written through a link."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from fedrift.core.plain_files import (
    check_plain,
    read_plain,
    replace_bytes,
    taken_back,
    write_file,
)
from fedrift.errors import InputError, RunError, sentence


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_plain, check_plain):
        with pytest.raises(OSError, match="not a plain file"):
            read(tmp_path / "pipe")
        with pytest.raises(OSError, match="not a plain file"):
            read(Path("/dev/zero"))


def test_no_more_is_read_than_was_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_plain(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_plain(tmp_path / "file", 4)


def test_what_stands_under_two_names_is_written_under_one(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"old")
    os.link(tmp_path / "mine", tmp_path / "theirs")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    write_file(tmp_path / "mine", "new")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "mine").read_text() == (tmp_path / "link").read_text() == "new"
    assert (tmp_path / "theirs").read_text() == "old"


def test_the_longest_name_that_there_is(tmp_path: Path) -> None:
    write_file(tmp_path / ("n" * 255), "x")
    with pytest.raises(InputError, match="too long; name another place"):
        write_file(tmp_path / ("n" * 256), "x")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, RunError),
        (errno.EROFS, RunError),
        (errno.EDQUOT, RunError),
        (errno.EACCES, InputError),
    ],
)
def test_disks_and_places(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(kind, match=r"file' cannot be written: "):
        write_file(tmp_path / "file", "new")
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        replace_bytes(tmp_path / "file", b"new")
    said = f"'{tmp_path / 'file'}' cannot be used: {os.strerror(number)}"
    assert sentence(caught.value).startswith(said) or "test_plain_files" in sentence(caught.value)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x" * 100_000)
    tracemalloc.start()
    try:
        assert len(read_plain(path)) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_a_refused_command_wrote_is_taken_back(tmp_path: Path) -> None:
    def refused(folder: Path, *more: str) -> None:
        with pytest.raises(InputError, match="no"), taken_back(folder, "a", "b"):
            for name in ("a", *more):
                write_file(folder / name, "new")
            (folder / "runs").mkdir(exist_ok=True)
            raise InputError("no")

    refused(tmp_path / "x" / "y")
    assert not list(tmp_path.iterdir())
    (tmp_path / "b").write_text("old")
    (tmp_path / "c").write_text("other")
    refused(tmp_path, "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]
    assert (tmp_path / "b").read_text() == "old"
    refused(tmp_path, "b", "result")  # something was made: the files that tell of it stay
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c", "result"]
    assert (tmp_path / "b").read_text() == "new"
