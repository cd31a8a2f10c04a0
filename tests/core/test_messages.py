"""Messages: what is packed comes back; what is declared is how it is reduced and what it costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrift.core import Gather, Mean, Sum, Vec, derived, message, pack, state
from fedrift.core.exchange import signature
from fedrift.core.messages import Reducer, Size, all_finite, nbytes, unpack
from fedrift.errors import InputError


@state
class Inner:
    v: Vec
    k: int
    maybe: Vec | None = None


@message
class Everything:
    w: Vec
    n: int
    x: float
    flag: bool
    absent: Vec | None
    inner: Inner
    other: Inner | None
    vectors: tuple[Vec, ...]
    numbers: tuple[int, ...] | None
    states: tuple[Inner, ...]


@message
class Up:
    delta: Mean[Vec]
    total: Sum[Vec]
    all: Gather[Vec]
    count: Sum[float]
    drift: Mean[float]
    label: int = 0
    rate: Mean[Vec] = derived(lambda up: up.delta / up.drift)


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])
VECTORS = st.builds(
    lambda n, dtype: (torch.arange(n) % 2).to(dtype), st.integers(0, 5), dtype=DTYPES
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INNER = st.builds(Inner, v=VECTORS, k=st.integers(), maybe=st.none() | VECTORS)
MESSAGES = st.builds(
    Everything,
    w=VECTORS,
    n=st.integers(),
    x=FINITE,
    flag=st.booleans(),
    absent=st.none() | VECTORS,
    inner=INNER,
    other=st.none() | INNER,
    vectors=st.lists(VECTORS, max_size=3).map(tuple),
    numbers=st.none() | st.lists(st.integers(), max_size=3).map(tuple),
    states=st.lists(INNER, max_size=3).map(tuple),
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, shape, dtype and value, all the way down."""
    left, right = pack(a), pack(b)
    if list(left) != list(right) or type(a) is not type(b):
        return False
    for x, y in zip(left.values(), right.values(), strict=True):
        if type(x) is not type(y):
            return False
        if isinstance(x, torch.Tensor):
            if x.dtype != y.dtype or not torch.equal(x, y):
                return False
        elif x != y:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(MESSAGES)
def test_what_is_packed_comes_back(sent: Everything) -> None:
    received = unpack(Everything, pack(sent))
    assert received is not None
    assert same(sent, received)
    assert len(received.states) == len(sent.states)
    assert isinstance(received.inner, Inner)


def test_nothing_is_nothing_again() -> None:
    assert pack(None) == {}
    assert unpack(None, {}) is None


def test_a_tuple_may_mix_what_it_holds() -> None:
    @state
    class Mixed:
        pair: tuple[Vec, Inner]

    Mixed.__annotations__["pair"] = tuple[torch.Tensor, Inner]  # local names have no hints
    held = Mixed(pair=(torch.ones(2), Inner(v=torch.zeros(1), k=1)))
    assert same(held, unpack(Mixed, pack(held)))


@pytest.mark.parametrize("wrong", ["text", [1, 2], {"a": 1}, {1, 2}])
def test_a_leaf_that_cannot_travel_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"field 'v' holds a (str|list|dict|set)"):
        pack(Inner(v=wrong, k=0))


def reply(i: int, dtype: torch.dtype = torch.float32) -> Up:
    v = torch.tensor([1.0 + i, -2.0 * i], dtype=dtype)
    return Up(delta=v, total=v * 10, all=v, count=float(i), drift=2.0 + i, label=i)


def fold(replies: list[Up], weights: list[float]) -> Any:
    reducer = Reducer(Up)
    for up, weight in zip(replies, weights, strict=True):
        reducer.fold(up, weight)
    assert reducer.replies == len(replies)
    return reducer.result()


def test_every_field_is_reduced_as_it_declares() -> None:
    weights = [1.0, 2.0, 5.0]
    up = fold([reply(i) for i in range(3)], weights)
    v = torch.tensor([[1.0, 0.0], [2.0, -2.0], [3.0, -4.0]])
    share = (torch.tensor(weights) / 8.0).unsqueeze(1)
    torch.testing.assert_close(up.delta, (v * share).sum(0))
    torch.testing.assert_close(up.total, v.sum(0) * 10)  # a sum takes no weights
    assert torch.equal(up.all, v)
    assert up.count == 3.0
    assert up.drift == pytest.approx((2 * 1 + 3 * 2 + 4 * 5) / 8)
    rate = v / torch.tensor([[2.0], [3.0], [4.0]])
    torch.testing.assert_close(up.rate, (rate * share).sum(0))  # mean of ratios, not a ratio
    assert up.label is None, "it declares no reduction"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=8))
def test_a_mean_is_the_weighted_average(pairs: list[tuple[float, float]]) -> None:
    replies = [
        Up(
            delta=torch.tensor([x], dtype=torch.float64),
            total=torch.zeros(1),
            all=torch.zeros(1),
            count=0.0,
            drift=1.0,
        )
        for x, _ in pairs
    ]
    values, weights = zip(*pairs, strict=True)
    up = fold(replies, list(weights))
    assert float(up.delta) == pytest.approx(np.average(values, weights=weights), abs=1e-9)


def alike(x: float) -> Up:
    v = torch.full((2,), x)
    return Up(delta=v, total=v, all=v, count=x, drift=1.0)


def test_sums_are_made_in_float64_and_come_back_in_their_own_dtype() -> None:
    tiny = 2.0**-24  # 1 + tiny is 1 in float32
    up = fold([alike(1.0), *(alike(tiny) for _ in range(1024))], [1.0] * 1025)
    assert up.total.dtype == torch.float32
    assert torch.equal(up.total, torch.full((2,), 1 + 1024 * tiny))


def test_replies_without_a_field_do_not_dilute_its_mean() -> None:
    @message
    class Some:
        x: Any

    Some.__annotations__["x"] = Mean[float]
    reducer = Reducer(Some)
    for x, weight in ((4.0, 1.0), (None, 100.0), (8.0, 3.0)):
        reducer.fold(Some(x=x), weight)
    assert reducer.result().x == pytest.approx(7.0)


def test_nobody_with_a_field_leaves_it_absent() -> None:
    assert Reducer(Up).result().delta is None


def test_gathered_values_outlive_the_memory_they_came_in() -> None:
    slot = torch.zeros(2)
    reducer = Reducer(Up)
    for i in range(3):
        slot.fill_(i)
        reducer.fold(Up(delta=slot, total=slot, all=slot, count=1.0, drift=1.0), 1.0)
    assert reducer.result().all.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_bytes_are_counted_by_field() -> None:
    inner = Inner(v=torch.zeros(3, dtype=torch.float64), k=1, maybe=None)
    sent = Everything(
        w=torch.zeros(7),
        n=1,
        x=1.0,
        flag=True,
        absent=None,
        inner=inner,
        other=None,
        vectors=(torch.zeros(2), torch.zeros(())),
        numbers=(1, 2, 3),
        states=(),
    )
    assert nbytes(pack(sent)) == {
        "w": Size(tensors=28),
        "n": Size(numbers=8),
        "x": Size(numbers=8),
        "flag": Size(numbers=8),
        "inner": Size(tensors=24, numbers=8),
        "vectors": Size(tensors=8, numbers=8),
        "numbers": Size(numbers=24),
    }
    assert sum(nbytes(pack(reply(1))).values(), Size()) == Size(tensors=24, numbers=24)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_number_spoils_a_reply(bad: float) -> None:
    good = Inner(v=torch.ones(2), k=1)
    assert all_finite(pack(good))
    assert not all_finite(pack(Inner(v=torch.tensor([1.0, bad]), k=1)))
    assert not all_finite({"x": bad})
    assert not all_finite({"a#": 1, "a.0": torch.tensor(bad)})
    assert all_finite({"k": 2**70, "none": None, "flag": True})


@message
class Forgotten:
    delta: Vec
    n: Sum[float]


class Forgets:
    def train(self, site: Any, down: Up, mine: None) -> tuple[Forgotten, None]: ...


def test_a_field_of_a_reply_that_nothing_is_made_of_is_refused() -> None:
    with pytest.raises(InputError, match=r"Forgotten.delta does not say .* delta: Mean\[…\], Sum"):
        signature(Forgets().train)
