"""Minibatches, resident data, and the forms in which people bring their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import fedrift as fr
from fedrift.core import Site
from fedrift.core.local import batches, steps_per_epoch
from fedrift.data.arrays import channels_last, gather, pair
from tests.support.problems import blobs, small_run, uneven_clients
from tests.support.product import generator

SIZES = st.integers(1, 60)


def drawn(n: int, size: int | None, steps: int, pairs: bool = False, seed: int = 0) -> list[Any]:
    return list(batches(n, size, steps, generator(seed, "order", 3, 1), pairs))


@settings(max_examples=80, deadline=None)
@given(n=SIZES, size=SIZES, pairs=st.booleans(), epochs=st.integers(1, 3))
def test_every_pass_takes_every_sample_once(n: int, size: int, pairs: bool, epochs: int) -> None:
    per_epoch = steps_per_epoch(n, size, pairs)
    if not pairs:
        assert per_epoch == -(-n // size), "K = E·ceil(n/B): no batch is dropped"
    chosen = drawn(n, size, epochs * per_epoch, pairs)
    assert len(chosen) == epochs * per_epoch
    for epoch in range(epochs):
        mine = chosen[epoch * per_epoch : (epoch + 1) * per_epoch]
        parts = [np.arange(n) if b is None else b for b in mine]
        assert sorted(np.concatenate(parts)) == list(range(n))
        if pairs and n > 1 and size > 1:
            assert min(map(len, parts)) > 1, "a last batch of one joins the one before"


def test_sizes_of_batches() -> None:
    assert [len(b) for b in drawn(500, 64, 8)] == [64] * 7 + [52]
    assert [len(b) for b in drawn(13, 4, 4)] == [4, 4, 4, 1]
    assert [len(b) for b in drawn(13, 4, 3, pairs=True)] == [4, 4, 5]
    assert drawn(5, None, 3) == drawn(5, 5, 3) == drawn(5, 9, 3) == [None] * 3
    assert steps_per_epoch(0, 4) == steps_per_epoch(0, None) == 0


def test_steps_run_over_the_end_of_a_pass() -> None:
    seven = drawn(10, 4, 7)
    assert [len(b) for b in seven] == [4, 4, 2, 4, 4, 2, 4]
    assert not np.array_equal(seven[0], seven[3]), "every pass has an order of its own"
    for a, b in zip(seven, drawn(10, 4, 9), strict=False):
        assert np.array_equal(a, b), "more steps begin with the same batches"


def test_streams_depend_on_every_part_of_their_key() -> None:
    keys = [(0, "order", 1, 2), (1, "order", 1, 2), (0, "work", 1, 2), (0, "order", 2, 2)]
    keys.append((0, "order", 1, 3))
    firsts = [generator(*key).integers(2**62) for key in keys]
    assert len(set(firsts)) == len(firsts)
    assert firsts[0] == generator(*keys[0]).integers(2**62)


def test_an_algorithms_own_draws_go_on_from_one_another() -> None:
    problem, data = small_run("fedavg", rounds=1).problem, uneven_clients().view(0)
    site, again = (Site(problem, data, client=0, round=1, seed=2) for _ in range(2))
    draws = [float(site.rng.random()) for _ in range(3)]
    assert len(set(draws)) == 3, "asking for the generator does not start it anew"
    assert draws == [float(again.rng.random()) for _ in range(3)]


def test_a_split_is_like_a_list() -> None:
    x, y = blobs(50)
    split = fr.split(x, y, "iid", clients=4, seed=1)
    assert len(split) == 4 and len(list(split)) == 4
    assert sum(len(y_i) for _, y_i in split) == 50
    last, first_two = split[-1], split[:2]
    assert torch.equal(last[0], split[3][0]) and isinstance(first_two, list)
    assert torch.equal(first_two[1][1], split[1][1])
    with pytest.raises(IndexError):
        split[4]
    assert "4 clients, 50 samples" in repr(split)


def test_a_view_holds_its_own_samples_only() -> None:
    split = fr.Split(torch.arange(10), torch.arange(10) * 10, [np.array([7, 2, 5]), np.array([0])])
    x, y = split.view(0).batch(np.array([2, 0]))
    assert x.tolist() == [5, 7] and y.tolist() == [50, 70]
    assert split.view(0).batch(None)[0].tolist() == [7, 2, 5]
    again = fr.Split.from_flat(split.x, split.y, *split.flat())
    assert [p.tolist() for p in again.parts] == [[7, 2, 5], [0]]


def test_parts_may_be_empty_when_they_travel() -> None:
    parts = [np.array([], dtype=np.int64), np.array([3]), np.array([], dtype=np.int64)]
    split = fr.Split(torch.arange(4), torch.arange(4), parts)
    again = fr.Split.from_flat(split.x, split.y, *split.flat())
    assert again.sizes.tolist() == [0, 1, 0]


def test_split_keeps_the_precision_it_is_given() -> None:
    x = torch.rand(20, 3, dtype=torch.float64)
    split = fr.split(x.numpy(), x[:, 0], "iid", clients=2)
    taken = gather(split, torch.float64)
    assert torch.equal(taken.x, x), "float64 data must reach a float64 run unrounded"


def test_arrays_become_tensors_of_the_runs_dtype() -> None:
    x, y = pair((np.ones((3, 2)), np.array([0, 1, 2], dtype=np.uint8)), torch.float32, "test")
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    assert pair(([[1.0], [2.0]], [True, False]), torch.float64, "t")[1].dtype == torch.float64
    tree, _ = pair(({"a": np.ones(2), "b": torch.ones(2, 3)}, [0, 1]), torch.float64, "test")
    assert {k: tuple(v.shape) for k, v in tree.items()} == {"a": (2,), "b": (2, 3)}


def test_read_only_arrays_are_taken_without_a_murmur() -> None:
    x = np.ones((3, 2), dtype=np.float32)
    x.setflags(write=False)
    assert pair((x, np.arange(3)), torch.float32, "test")[0].shape == (3, 2)


BAD: list[tuple[Any, str]] = [
    ((torch.ones(3), torch.ones(2)), r"c: x has 3 samples but y has 2"),
    ((torch.tensor([1.0, float("nan")]), torch.ones(2)), r"c x: holds NaN"),
    ((torch.ones(2), torch.tensor([1.0, float("inf")])), r"c y: holds NaN or inf"),
    ((torch.tensor(1.0), torch.tensor(1)), r"c x: a single number"),
    ((np.array([object(), object()]), [0, 1]), r"c x: ndarray cannot become"),
    ((torch.ones(2),), r"c must be a pair"),
    ("ab", r"c must be a pair"),
    (None, r"c must be a pair"),
    (((torch.ones(3), torch.ones(2)), torch.ones(3)), r"c x"),
    (({"a": torch.ones(3), "b": torch.ones(4)}, torch.ones(3)), r"c x"),
]


@pytest.mark.parametrize(("value", "says"), BAD)
def test_data_that_cannot_be_used_are_named(value: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        pair(value, torch.float32, "c")


class Noisy(Dataset[tuple[Tensor, int]]):
    """Augments as it reads."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.randn(3), i


class Named(Dataset[Any]):
    """Several inputs, a number as its label."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return {"a": torch.full((2,), float(i)), "b": i}, i % 2


def test_data_sets_are_read_once() -> None:
    x, y = blobs(12)
    whole = TensorDataset(x, y)
    held = gather([Subset(whole, [0, 2]), Subset(whole, []), whole], torch.float32)
    assert held.sizes.tolist() == [2, 0, 12]
    assert torch.equal(held[0][0], x[[0, 2]]) and torch.equal(held[2][1], y)
    tree, labels = pair(Named(), torch.float32, "c")
    assert tree["a"].shape == (3, 2) and tree["b"].tolist() == [0, 1, 2]
    assert labels.tolist() == [0, 1, 0]


def test_an_augmenting_data_set_is_refused() -> None:
    with pytest.raises(fr.InputError, match=r"clients\[1\].*augment"):
        gather([TensorDataset(*blobs(3)), Noisy()], torch.float32)


class Odd(Dataset[Any]):
    """Items of a form that is no (x, y)."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return self.item


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), 0)])


@pytest.mark.parametrize(
    "data",
    [Odd(torch.zeros(2)), Odd({"x": 1, "y": 2}), Odd((object(), 1)), Odd(("a", 1)), Stream()],
    ids=["one tensor", "dict", "object", "text", "iterable"],
)
def test_a_data_set_of_another_kind_is_refused(data: Any) -> None:
    with pytest.raises(fr.InputError, match=r"clients\[0\]"):
        gather([data], torch.float32)


@pytest.mark.parametrize(
    "clients",
    [
        [],
        [(torch.ones(0, 2), torch.ones(0))],
        [(torch.ones(2, 3), torch.ones(2)), (torch.ones(2, 4), torch.ones(2))],
        [({"a": torch.ones(2)}, torch.ones(2)), ({"b": torch.ones(2)}, torch.ones(2))],
        [(torch.ones(2, 3), torch.ones(2)), ((torch.ones(2, 3),), torch.ones(2))],
        {0: (torch.ones(2), torch.ones(2))},
    ],
    ids=["none", "all empty", "shapes", "keys", "trees", "dict"],
)
def test_clients_that_do_not_fit_together_are_refused(clients: Any) -> None:
    with pytest.raises(fr.InputError, match="clients"):
        gather(clients, torch.float32)


def test_images_are_turned_once_into_the_fast_memory_format() -> None:
    x = torch.rand(4, 1, 5, 5)
    fast = channels_last({"image": x, "more": torch.ones(4)})
    assert fast["image"].stride(1) == 1 and torch.equal(fast["image"], x)
    assert fast["image"][[0, 2]].stride(1) == 1, "indexing keeps the format"
