"""Partitions: every sample exactly once, least sizes, seeds, and requests that make no sense."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrift.data.partition import NAMES, partition
from fedrift.errors import InputError
from tests.support.product import Partition

BALANCED = np.tile(np.arange(10), 5000)


def exactly_once(made: Partition, samples: int) -> None:
    assert all(part.dtype == np.int64 for part in made.parts)
    assert all((np.diff(part) > 0).all() for part in made.parts), "parts are sorted"
    assert np.array_equal(np.sort(np.concatenate(made.parts)), np.arange(samples))


@st.composite
def labelled(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Label vectors with uneven, even missing, classes; a number of clients; a seed."""
    sizes = st.one_of(st.integers(0, 3), st.integers(0, 80))
    counts = draw(st.lists(sizes, min_size=1, max_size=9).filter(any))
    first = draw(st.integers(-2, 3))
    y = np.repeat(np.arange(len(counts)) + first, counts)
    seed = draw(st.integers(0, 2**40))
    return np.random.default_rng(seed).permutation(y), draw(st.integers(1, min(len(y), 40))), seed


ALPHA = st.one_of(
    st.sampled_from([0, 1e-300, 0.001, 1000, 1e300]), st.floats(0.01, 10, allow_nan=False)
)


@settings(max_examples=200, deadline=None)
@given(data=labelled(), alpha=ALPHA, draw=st.data())
def test_every_sample_once_and_no_client_below_the_minimum(data, alpha, draw) -> None:
    y, clients, seed = data
    name = draw.draw(st.sampled_from(["dirichlet", "dirichlet-client", "hsu", "lognormal"]))
    value = min(alpha, 50) if name == "lognormal" else alpha
    least = draw.draw(st.integers(0, len(y) // clients))
    made = partition(f"{name}:{value},min_size={least}", y, clients=clients, seed=seed)
    exactly_once(made, len(y))
    assert made.clients == clients and made.sizes.min() >= least
    usual = partition(f"{name}:{value}", y, clients=clients, seed=seed)
    assert usual.sizes.min() >= max(1, min(10, len(y) // (2 * clients)))


@settings(max_examples=100, deadline=None)
@given(data=labelled(), draw=st.data())
def test_every_sample_once_in_the_other_schemes(data, draw) -> None:
    y, clients, seed = data
    most = len(y) // clients
    text = draw.draw(
        st.sampled_from(["iid", "powerlaw:1.5", "natural", f"shards:{min(3, most)}", "classes:"])
    )
    counts = np.unique(y, return_counts=True)[1]
    if text == "classes:":
        k = draw.draw(st.integers(1, len(counts)))
        text += str(k)
        if clients * k < len(counts) or np.minimum(counts, clients).sum() < clients * k:
            with pytest.raises(InputError, match="classes"):
                partition(text, y, clients=clients, seed=seed)
            return
    else:
        k = 0
    made = partition(text, y, clients=clients, seed=seed, users=y % 3)
    exactly_once(made, len(y))
    assert made.sizes.min() >= 1
    if text.startswith("classes"):
        assert all(len(set(y[part])) == k for part in made.parts)
    if text == "iid" or text.startswith("shards"):
        assert np.ptp(made.sizes) <= (1 if text == "iid" else int(text[7:]))


@pytest.mark.parametrize("name", ["dirichlet:0.3", "hsu:0.3", "dirichlet-client:0.3", "iid"])
def test_the_seed_fixes_the_result_and_nothing_else_does(name) -> None:
    y = BALANCED[:2000]
    np.random.seed(1)
    first = partition(name, y, clients=20, seed=5)
    np.random.seed(2)
    again = partition(name, y.astype(np.uint8), clients=20, seed=5)
    assert first.digest == again.digest
    assert first.digest != partition(name, y, clients=20, seed=6).digest


def test_golden_digest() -> None:
    """Partitions are part of results: a change of the streams must not go unseen."""
    made = partition("dirichlet:0.5", np.arange(200) % 7, clients=6, seed=0)
    assert made.name == "dirichlet:0.5"
    assert made.sizes.tolist() == [36, 34, 46, 29, 26, 29]
    assert made.digest.startswith("c3d4a121b61ef85f")


def test_named_classes() -> None:
    y = BALANCED[:1000]
    made = partition("classes:1,3|0,6|2,5|4,7|8,9", y, clients=5, seed=0)
    assert [set(y[part]) for part in made.parts] == [{1, 3}, {0, 6}, {2, 5}, {4, 7}, {8, 9}]
    shared = partition("classes:0,1|1", np.array([0, 1, 1, 1, 1, 0]), seed=0)
    exactly_once(shared, 6)
    assert shared.sizes.tolist() == [4, 2], "class 1 is split between both"
    with pytest.raises(InputError, match="2 clients claim class 0, which has 1 samples"):
        partition("classes:0|0,1", np.array([0, 1, 1]), seed=0)


def test_natural_is_one_client_per_user() -> None:
    users = np.array([7, 3, 3, 9, 7])
    made = partition("natural", np.zeros(5), clients=2, seed=0, users=users)
    assert [part.tolist() for part in made.parts] == [[1, 2], [0, 4], [3]]
    assert "clients=2 not used" in made.note


def test_targets_that_are_no_labels_can_be_divided_by_size() -> None:
    exactly_once(partition("iid", np.random.default_rng(0).random((30, 2)), clients=4, seed=0), 30)
    with pytest.raises(InputError, match=r"each sample has 2 labels, as .* use natural, iid"):
        partition("dirichlet:1", np.zeros((30, 2), np.int64), clients=4, seed=0)
    with pytest.raises(InputError, match="whole-number class label"):
        partition("hsu:1", np.random.default_rng(0).random(30), clients=4, seed=0)
    with pytest.raises(InputError, match="20000 different values for 10000 clients, too many"):
        partition("dirichlet:1", np.arange(20_000), clients=10_000, seed=0)


def test_alpha_overrides_and_spellings_agree() -> None:
    y = BALANCED[:1000]
    made = partition("dirichlet:0.5,min_size=3", y, clients=5, seed=0, alpha=0.25)
    assert made.name == "dirichlet:0.25,min_size=3"
    named = partition("dirichlet:alpha=0.25,min_size=3", y, clients=5, seed=0)
    assert named.name == made.name and named.digest == made.digest
    assert partition("hsu", y, clients=5, seed=0, alpha=0).name == "hsu:0"


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("dirichlet", {}, "alpha is missing; write for example dirichlet:0.5 or give --alpha"),
        ("hsu:-1", {}, "alpha must be a number of at least 0, not '-1'"),
        ("hsu:nan", {}, "alpha must be"),
        ("hsu:inf", {}, "alpha must be"),
        ("hsu:x", {}, "alpha must be"),
        ("hsu", {"alpha": float("nan")}, "alpha must be"),
        ("hsu", {"alpha": -0.1}, "alpha must be a number of at least 0, not -0.1"),
        ("iid", {"alpha": 0.1}, "alpha=0.1 has no meaning for partition 'iid'"),
        ("iid:3", {}, "iid takes no value"),
        ("iid", {"clients": 0}, "clients must be at least 1, not 0"),
        ("iid", {"clients": 101}, "clients=101 is more than the 100 samples"),
        ("iid", {"clients": 2.5}, "clients must be a whole number, not 2.5"),
        ("iid", {"clients": None}, "clients is missing"),
        ("iid", {"seed": -1}, "seed must be a whole number of at least 0"),
        ("dirichlett:1", {}, "did you mean 'dirichlet'"),
        ("dirichlet:1,size=2", {}, "has no option 'size' (did you mean 'min_size'?)"),
        ("dirichlet:1,alpha=2", {}, "alpha is given twice"),
        ("dirichlet:1,min_size=21", {}, "use at most min_size=20"),
        ("hsu:1,min_size=21", {}, "use at most min_size=20"),
        ("hsu:0,min_size=21", {}, "use at most min_size=20"),
        ("classes:0", {}, "k must be a whole number of at least 1"),
        ("classes:11", {}, "k=11 is more than the 10 classes"),
        ("classes:1", {}, "use classes:2 or clients=10"),
        ("classes:10", {"clients": 20}, "too few samples"),
        ("classes:1,3|0,6|2,5|4,7|8", {}, "no client has class 9"),
        ("classes:1,3|0,6", {}, "2 groups of classes for clients=5"),
        ("classes:1,1|0|2|3|4", {}, "class 1 stands twice in client 0"),
        ("classes:1,12|0|2|3|4", {}, "class 12 is not in the data"),
        ("classes:1,|0|2|3|4", {}, "class of client 0 must be a whole number"),
        ("shards:21", {}, "use at most shards:20"),
        ("shards:1.5", {}, "k must be a whole number"),
        ("lognormal:-1", {}, "sigma must be"),
        ("powerlaw", {}, "a is missing; write for example powerlaw:1.5"),
        ("natural", {}, "which user a sample came from"),
        ("natural", {"users": np.zeros(3)}, "users has shape"),
        ("manifest", {}, "write manifest:FILE"),
        ("manifest:no-such-file.json", {}, "no such file"),
    ],
)
def test_bad_requests_get_one_sentence(text, options, says) -> None:
    with pytest.raises(InputError) as caught:
        partition(text, BALANCED[:100], **{"clients": 5, "seed": 0, **options})
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_no_samples() -> None:
    with pytest.raises(InputError, match="no samples"):
        partition("iid", [], clients=1, seed=0)


def test_the_table_says_how_each_scheme_is_written() -> None:
    for name, scheme in NAMES.items():
        assert scheme.grammar.startswith(name) and scheme.about


@pytest.mark.parametrize("name", ["dirichlet:0.05", "hsu:0.1", "dirichlet-client:0.1", "classes:2"])
def test_speed(name) -> None:
    def seconds(y: np.ndarray, clients: int) -> float:
        start = time.perf_counter()
        partition(name, y, clients=clients, seed=0)
        return time.perf_counter() - start

    assert min(seconds(BALANCED, 100) for _ in range(3)) < 0.3
    assert seconds(np.arange(60_000) % 62, 10_000) < 5


def test_neither_torch_nor_matplotlib_is_imported() -> None:
    code = (
        "import sys; from fedrift.data import describe, manifest, partition; "
        "sys.exit(bool({'torch', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert found.returncode == 0
