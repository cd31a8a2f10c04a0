"""Published files: where they are looked for, which are taken, and how they are fetched."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedrift.data import files as places
from fedrift.data.sources import cifar, mnist
from fedrift.errors import InputError
from tests.support.product import load_data
from tests.support.small_files import (
    NOBODY,
    SMALL,
    Families,
    idx,
    is_family,
    isolate,
    small_cifar,
    small_families,
    write_idx,
)

ONLINE = places.download


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Families:
    return small_families(monkeypatch)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
def test_mnist_in_every_layout(families: Families, tmp_path: Path, below: str, packed: bool):
    write_idx(tmp_path / "d" / below, 0, packed)
    found = mnist.load(families[0], NOBODY, tmp_path / "d")
    assert is_family(found, 0)
    assert found.x.shape == (20, 1, 28, 28) and found.x_test is not None
    assert found.x_test.shape == (10, 1, 28, 28) and found.mean == (0.1307,)


def test_dotted_names_are_known(families: Families, tmp_path: Path):
    write_idx(tmp_path / "d", 0, packed=False)
    for name in SMALL:
        (tmp_path / "d" / name).rename(tmp_path / "d" / name.replace("-idx", ".idx"))
    assert is_family(mnist.load(families[0], NOBODY, tmp_path / "d"), 0)


def test_the_argument_goes_before_environment_system_and_cache(
    families: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fashion = replace(families[1], system=(write_idx(tmp_path / "system", 1),))
    monkeypatch.setattr(mnist, "FAMILIES", (families[0], fashion))
    folders = {
        "cache": write_idx(tmp_path / "cache" / "fashion-mnist", 1),
        "system": tmp_path / "system",
        "environment": write_idx(tmp_path / "environment", 1),
        "argument": write_idx(tmp_path / "argument", 1),
    }
    monkeypatch.setenv("FEDRIFT_DATA", str(folders["environment"]))
    taken: list[Path] = []
    real = mnist._read
    monkeypatch.setattr(
        mnist,
        "_read",
        lambda files, f: taken.append(files[mnist.SMALLEST].parent) or real(files, f),
    )
    for removed in ("", "argument", "environment", "system"):
        if removed:
            (folders[removed] / "train-labels-idx1-ubyte.gz").unlink()
        mnist.load(fashion, NOBODY, tmp_path / "argument")
    assert taken == [folders[k] for k in ("argument", "environment", "system", "cache")]


def test_the_other_family_is_recognised(
    families: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_idx(tmp_path / "d", 1)
    words = "holds Fashion-MNIST, not MNIST; ask for 'fashion-mnist', or put .*d/mnist'.*go online"
    # A folder of several data sets may hold the other one: go on looking, and say so in the end.
    with pytest.raises(InputError, match=f"not found.*{words}"):
        mnist.load(families[0], NOBODY, tmp_path / "d")
    monkeypatch.setenv("FEDRIFT_DATA", str(tmp_path / "d"))
    with pytest.raises(InputError, match=f"not found.*{words}"):
        mnist.load(families[0], NOBODY, None)
    write_idx(tmp_path / "cache" / "mnist", 0)
    for folder in (tmp_path / "d", None):
        assert is_family(mnist.load(families[0], NOBODY, folder), 0)
    # One stray file among the right ones is named.
    stray = tmp_path / "cache" / "mnist" / "train-images-idx3-ubyte.gz"
    stray.write_bytes(gzip.compress(idx("train-images-idx3-ubyte", 1)))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz' is a file of Fashion-MNIST"):
        mnist.load(families[0], NOBODY, None)


def test_one_folder_holds_both_families(families: Families, tmp_path: Path):
    """As they are named after one another, one of them at least lies in a folder of its own."""
    write_idx(tmp_path / "d", 0)
    write_idx(tmp_path / "d" / "fashion-mnist", 1)
    for seed, family in enumerate(families):
        assert is_family(mnist.load(family, NOBODY, tmp_path / "d"), seed)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "d").mkdir()
    with pytest.raises(InputError) as caught:
        load_data("mnist", tmp_path / "d")
    for word in ("train-images-idx3-ubyte", "--data-dir", str(tmp_path / "d"), "FEDRIFT_DATA",
                 "no connection", "go online"):  # fmt: skip
        assert word in str(caught.value)
    (tmp_path / "d" / "t10k-labels-idx1-ubyte").touch()
    with pytest.raises(InputError, match=r"d' lacks train-images-idx3-ubyte, train-labels"):
        load_data("mnist", tmp_path / "d")
    with pytest.raises(InputError, match=r"--data-dir '.*none' is not a folder"):
        load_data("mnist", tmp_path / "none")
    monkeypatch.setenv("FEDRIFT_DATA", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"FEDRIFT_DATA '.*none' is not a folder"):
        load_data("cifar10")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(places, "download", ONLINE)
    folder = write_idx(tmp_path / "host", 0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_downloads_are_checked_and_kept(
    families: Families, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    md5 = tuple(
        hashlib.md5((tmp_path / "host" / f"{name}.gz").read_bytes()).hexdigest() for name in SMALL
    )
    dead = "http://127.0.0.1:9/"
    wrong = replace(families[0], urls=(host,), md5=("0" * 32, *md5[1:]))
    monkeypatch.setattr(mnist, "FAMILIES", (wrong, families[1]))
    with pytest.raises(InputError, match=f"download failed \\({host}train-images.*ValueError"):
        mnist.load(wrong, NOBODY, None)
    right = replace(families[0], urls=(dead, host), md5=md5)
    monkeypatch.setattr(mnist, "FAMILIES", (right, families[1]))
    assert is_family(mnist.load(right, NOBODY, None), 0)
    kept = replace(right, urls=(dead,))
    monkeypatch.setattr(mnist, "FAMILIES", (kept, families[1]))
    assert is_family(mnist.load(kept, NOBODY, None), 0)


@pytest.mark.parametrize(("of", "labels"), [(cifar.CIFAR10, 1), (cifar.CIFAR100, 2)])
def test_cifar_is_the_same_in_every_form(of: cifar.Cifar, labels: int, tmp_path: Path):
    small = small_cifar(tmp_path / "d", of, labels)
    loaded = [cifar.load(small, NOBODY, tmp_path / "d" / form) for form in ("strips", "bin", "tar")]
    direct = tmp_path / "d" / "bin" / of.folder
    loaded.append(cifar.load(small, NOBODY, direct))
    first = loaded[0]
    assert first.x.shape == (125, 3, 32, 32) and len(first.class_names) in (10, 100)
    raw = np.frombuffer((direct / of.train[0].file).read_bytes(), np.uint8).reshape(125, -1)
    assert sorted(map(bytes, first.x.reshape(125, -1))) == sorted(map(bytes, raw[:, labels:]))
    assert np.array_equal(first.y, raw[:, labels - 1]) == (labels == 1)
    for other in loaded[1:]:
        for name in ("x", "y", "x_test", "y_test"):
            assert np.array_equal(getattr(other, name), getattr(first, name)), name


def test_the_pickled_version_is_named_but_not_opened(tmp_path: Path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "cifar-10-python.tar.gz").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(InputError, match=r"pickled Python version.*cifar-10-binary.tar.gz"):
        load_data("cifar10", tmp_path / "d")


def test_somebody_elses_train_bin_is_left_alone(tmp_path: Path):
    (tmp_path / "d").mkdir()
    for name in ("train.bin", "test.bin"):
        (tmp_path / "d" / name).write_bytes(b"tokens")
    with pytest.raises(InputError, match=r"not found.*train.bin' has 6 bytes, not 153700000"):
        load_data("cifar100", tmp_path / "d")


def test_mnist_itself(data_folder: Path):
    data = load_data("mnist", data_folder)
    assert data.x.shape == (60_000, 1, 28, 28) and data.x_test.shape == (10_000, 1, 28, 28)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y).tolist() == train
    assert float(data.x.mean()) == pytest.approx(0, abs=0.01)
    assert float(data.x[::9].std()) == pytest.approx(1, abs=0.01)


def test_fashion_mnist_itself():
    if not mnist.FASHION.system[0].is_dir():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    data = load_data("fashion-mnist:train=500,test=100")
    assert np.bincount(data.y).tolist() == [50] * 10 and data.class_names[9] == "Ankle boot"
    with pytest.raises(InputError, match="holds Fashion-MNIST, not MNIST"):
        load_data("mnist", mnist.FASHION.system[0])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_itself(data_folder: Path, name: str, classes: int):
    data = load_data(name, data_folder)
    assert data.x.shape == (50_000, 3, 32, 32) and data.x_test.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.y).tolist() == [50_000 // classes] * classes
    assert np.abs(data.x.mean(axis=(0, 2, 3), dtype=np.float64)).max() < 2e-3
    assert len(set(data.y[:100].tolist())) > classes / 3  # mixed, not sorted by class
