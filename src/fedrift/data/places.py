"""Where data files are looked for, in order, and how missing ones are fetched."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedrift.data.files import existing
from fedrift.errors import InputError

CONNECT_SECONDS = 5
SILENCE_SECONDS = 30


class Place(NamedTuple):
    """A folder and who named it."""

    folder: Path
    origin: str

    def __str__(self) -> str:
        return f"{self.origin} '{self.folder}'"


class Unreachable(Exception):
    """A download that did not work; says why."""


def given(data_dir: Path | None) -> Iterator[Place]:
    """The folders the user named: the argument, then the environment."""
    if data_dir is not None:
        yield Place(existing(str(data_dir), "--data-dir", folder=True), "--data-dir")
    if text := os.environ.get("FEDRIFT_DATA"):
        yield Place(existing(text, "FEDRIFT_DATA", folder=True), "FEDRIFT_DATA")


def places(data_dir: Path | None, system: Sequence[Path] = ()) -> Iterator[Place]:
    """All folders to look in, in order; those after the user's own may not exist."""
    yield from given(data_dir)
    yield from (Place(folder, "the system's") for folder in system)
    yield Place(cache(), "the cache")


def cache() -> Path:
    """Where downloads are kept."""
    if text := os.environ.get("FEDRIFT_CACHE"):
        return Path(os.path.expanduser(text))
    import pooch  # a tenth of a second, spent only when the user's folders had nothing

    return Path(pooch.os_cache("fedrift"))


def fetch(urls: Sequence[str], md5: str, folder: Path) -> Path:
    """Downloads one file into `folder` from the first host that has it; its hash must fit."""
    import pooch

    timeout = (CONNECT_SECONDS, SILENCE_SECONDS)
    problems: list[str] = []
    for url in urls:
        load: Any = pooch.HTTPDownloader(timeout=timeout)
        name = url.rpartition("/")[2]
        try:
            return Path(pooch.retrieve(url, f"md5:{md5}", name, folder, downloader=load))
        except Exception as problem:  # no network, a changed file, a full disk: all end here
            problems.append(f"{url}: {type(problem).__name__}")
    raise Unreachable(", ".join(problems))


def not_found(
    name: str, files: str, data_dir: Path | None, notes: Sequence[str], why: str
) -> InputError:
    """The one error for data that is neither here nor to be had; names both ways out."""
    looked = " and ".join(map(str, given(data_dir)))
    where = f" in {looked}" if looked else ""
    noted = "".join(f"; {note}" for note in notes)
    return InputError(
        f"data set '{name}' was not found: looked for {files}{where}{noted}; the download failed "
        f"({why}); give a folder that holds them with --data-dir or FEDRIFT_DATA, or go online"
    )
