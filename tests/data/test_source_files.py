"""The files that decide a data set: exactly those that loading it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrift.data import datasets
from fedrift.data.sources import cifar, mnist
from fedrift.errors import InputError
from tests.support.small_files import NOBODY, isolate, small_cifar, small_families, write_idx

Listed = Callable[[], Sequence[Path] | None]
Loads = Callable[[], object]
FORMS = ("npz", "images", "csv", "mnist", "strips", "bin", "tar")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


def published(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Listed, Loads]:
    if form == "mnist":
        family = small_families(monkeypatch)[0]
        write_idx(folder, 0)
        (folder / "other.gz").write_bytes(b"")
        return (
            partial(mnist.source_files, family, NOBODY, folder),
            partial(mnist.load, family, NOBODY, folder),
        )
    small = small_cifar(folder, cifar.CIFAR10, 1)
    place = folder / form
    return (
        partial(cifar.source_files, small, NOBODY, place),
        partial(cifar.load, small, NOBODY, place),
    )


def own(form: str, folder: Path) -> tuple[Listed, Loads]:
    for at in range(10):
        path = folder / "pictures" / "ab"[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), at).save(path)
    rows = (f"pictures/{'ab'[at % 2]}/{at}.png,{at % 2}\n" for at in range(10))
    (folder / "t.csv").write_text("path,label\n" + "".join(rows))
    np.savez(folder / "d.npz", x=np.zeros((10, 3), np.float32), y=np.arange(10) % 2)
    where = {"npz": "d.npz", "images": "pictures", "csv": "t.csv"}
    text = f"{form}:{folder / where[form]}"
    return partial(datasets.source_files, text), partial(datasets.load, text)


@pytest.mark.parametrize("form", FORMS)
def test_a_data_set_needs_the_files_it_lists_and_no_others(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    is_own = form in ("npz", "images", "csv")
    listed, loads = own(form, folder) if is_own else published(form, folder, monkeypatch)
    files = listed()
    assert files and len(set(files)) == len(files)
    for other in {path for path in folder.rglob("*") if path.is_file()} - set(files):
        other.unlink()
    loads()
    for file in files:
        content = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(InputError):
            loads()
        file.write_bytes(content)


@pytest.mark.parametrize("text", ["digits", "synthetic:1,1", "tests.data.own:make"])
def test_what_more_than_files_decides_lists_none(text: str) -> None:
    assert datasets.source_files(text) is None


def test_published_data_that_are_not_here_list_none() -> None:
    assert datasets.source_files("cifar10") is None and datasets.source_files("mnist") is None
