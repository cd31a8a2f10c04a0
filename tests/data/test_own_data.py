"""The reader's own arrays: npz files and functions, and every mistake they may hold."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedrift.data.samples import DataSet
from fedrift.errors import InputError
from tests.support.product import load_data


def refused(text: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_data(text)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def save(folder: Path, **arrays: object) -> str:
    np.savez_compressed(folder / "own.npz", **arrays)  # type: ignore[arg-type]
    return f"npz:{folder / 'own.npz'}"


def test_npz_pictures_are_scaled_and_turned(tmp_path: Path):
    x = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
    y = np.arange(10) % 2
    data = load_data(save(tmp_path, x=x, y=y, x_test=x[:4], y_test=y[:4], users=y + 5))
    assert data.x.shape == (10, 3, 6, 5) and data.x_test.shape == (4, 3, 6, 5)
    assert np.array_equal(data.x, x.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
    assert (data.mean, data.std) == ((0.0,) * 3, (1.0,) * 3)
    assert data.users is not None and np.array_equal(data.users, y)
    grey = load_data(
        save(tmp_path, x_train=x[..., 0], y_train=y[:, None], x_test=x[..., 0], y_test=y)
    )
    assert grey.x.shape == (10, 1, 6, 5) and grey.users is None


def test_npz_numbers_are_taken_as_they_are(tmp_path: Path):
    x = np.linspace(-3, 9, 60).reshape(20, 3)
    data = load_data(save(tmp_path, x=x, y=np.arange(20) % 2 * 1.0))
    assert data.x.dtype == np.float32 and data.x.shape == (16, 3) and data.mean == ()
    assert set(data.x.ravel()) <= set(x.astype(np.float32).ravel())
    assert data.classes == 2 and data.y.dtype == np.int64


GOOD_X, GOOD_Y = np.ones((6, 2)), np.arange(6) % 3


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": GOOD_X}, ("no array 'y'",)),
        ({"x": GOOD_X, "y": GOOD_Y[:5]}, ("x has 6", "y has 5")),
        ({"x": GOOD_X, "y": GOOD_Y - 1}, ("y", "label -1")),
        ({"x": GOOD_X, "y": GOOD_Y + 0.5}, ("y", "label 0.5")),
        ({"x": GOOD_X, "y": GOOD_Y * np.nan}, ("y", "label nan")),
        ({"x": GOOD_X, "y": GOOD_Y * 10**9}, ("y", "label 1000000000")),
        ({"x": GOOD_X, "y": np.eye(6)}, ("y", "(6, 6)")),
        ({"x": GOOD_X, "y": np.array(list("abcabc"))}, ("y", "<U1")),
        ({"x": GOOD_X[:0], "y": GOOD_Y[:0]}, ("empty",)),
        ({"x": GOOD_X[:, 0], "y": GOOD_Y}, ("x", "(6,)")),
        ({"x": GOOD_X * np.nan, "y": GOOD_Y}, ("x", "nan", "sample 0")),
        ({"x": GOOD_X * 1e300, "y": GOOD_Y}, ("x", "inf")),
        ({"x": np.array([["a", "b"]] * 6), "y": GOOD_Y}, ("x", "<U1")),
        ({"x": np.ones((6, 2, 7, 9), np.uint8), "y": GOOD_Y}, ("x", "channels")),
        ({"x": GOOD_X, "y": GOOD_Y, "x_test": GOOD_X}, ("x_test", "y_test")),
        ({"x": GOOD_X, "y": GOOD_Y, "x_test": GOOD_X, "y_test": GOOD_Y + 1}, ("y_test", "label 3")),
        ({"x": GOOD_X, "y": GOOD_Y, "x_test": GOOD_X[:, :1], "y_test": GOOD_Y}, ("x_test",)),
        ({"x": GOOD_X, "y": GOOD_Y, "users": GOOD_Y[:2]}, ("users", "(2,)")),
        ({"x": GOOD_X, "y": GOOD_Y, "users": GOOD_Y * 0.5}, ("users", "float64")),
        ({"x": GOOD_X[:1], "y": GOOD_Y[:1]}, ("1 sample",)),
    ],
)
def test_npz_mistakes_are_named(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: tuple[str, ...]
):
    refused(save(tmp_path, **arrays), *words, "own.npz")


def test_npz_of_objects_is_never_unpickled(tmp_path: Path):
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    text = save(tmp_path, x=np.array([Trap(), Trap()], dtype=object), y=GOOD_Y)
    refused(text, "x", "Python objects")
    assert not (tmp_path / "sprung").exists()


OWN = """
import numpy as np
from fedrift.data.datasets import DataSet
x, y = np.ones((10, 4), np.float32), np.arange(10) % 2
def pair(): return x, y
def four(): return [x, y, x[:3], y[:3]]
def whole(): return DataSet("mine", x, y, x, y, 3, ("a", "b", "c"), y, mean=(1.0,), std=(2.0,))
def unnamed(): return DataSet("mine", x, y, x, y, 5, ())
def fewer(): return DataSet("mine", x, y, x, y, 1, ("a",))
def odd(): return DataSet("mine", x, y, x, y, 3, ("a",))
def three(): return x, y, x
def fails(): raise KeyError("lost")
def ragged(): return [[1], [1, 2]], [0, 1]
"""


def test_functions_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mydata_fr.py").write_text(OWN)
    (tmp_path / "broken_fr.py").write_text("import not_there_fr")
    (tmp_path / "leaves_fr.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert load_data("mydata_fr:pair").x.shape == (8, 4)
    assert len(load_data("mydata_fr:four,test=2").y_test) == 2
    whole = load_data("mydata_fr:whole")
    assert isinstance(whole, DataSet) and whole.classes == 3 and whole.mean == (1.0,)
    assert whole.users is not None and whole.class_names == ("a", "b", "c")
    assert load_data("mydata_fr:unnamed").class_names == tuple("01234")
    refused("mydata_fr:fewer", "mydata_fr:fewer: y", "label 1")
    refused("mydata_fr:odd", "1 names for 3 classes")
    refused("mydata_fr:three", "returned tuple")
    refused("mydata_fr:fails", "KeyError", "lost")
    refused("mydata_fr:ragged", "mydata_fr:ragged: x")
    refused("mydata_fr:absent", "no function 'absent'")
    refused("mydata_fr:pair,colour=red", "no option 'colour'")
    refused("broken_fr:make", "broken_fr", "No module named 'not_there_fr'")
    refused("leaves_fr:make", "leaves_fr", "SystemExit")
    assert sys.path == before
