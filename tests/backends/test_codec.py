"""The wire codec: what is declared comes back bit for bit, anything else is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedrift.backends.codec import MOST_ITEMS, Codec, Form, Piece, Pieces, Refused, tensors
from fedrift.core import (
    Algorithm,
    Cohort,
    Local,
    Mean,
    OptState,
    Problem,
    Site,
    Sum,
    define,
    derived,
    message,
    pack,
    shaped,
    state,
)
from fedrift.errors import RunError
from tests.support.problems import Net, small_run

D = 5 * 3 + 3


@message
class Up:
    delta: Mean[Tensor]
    extra: Mean[Tensor | None]
    table: Sum[Tensor] = shaped(torch.float64, lambda algorithm, problem: (2, problem.classes))
    drift: Sum[float]
    steps: int
    is_last: bool
    opt: OptState
    pair: tuple[float, int]
    double: Mean[Tensor] = derived(lambda up: 2 * up.delta)


@pytest.fixture(scope="module")
def problem() -> Problem:
    x, y = torch.zeros(2, 5), torch.tensor([0, 1])
    return define(
        lambda: nn.Linear(5, 3),
        nn.functional.cross_entropy,
        (x, y),
        init_seed=0,
        population=3,
        participation=1.0,
        rounds=1,
    )


@pytest.fixture(scope="module")
def codec(problem: Problem) -> Codec:
    return Codec(Up, None, problem)  # type: ignore[arg-type]


def up(**changes: Any) -> Up:
    values: dict[str, Any] = {
        "delta": torch.arange(float(D)),
        "extra": None,
        "table": torch.ones(2, 3, dtype=torch.float64),
        "drift": 0.1,
        "steps": 7,
        "is_last": True,
        "opt": OptState(slots=(torch.ones(D),) * 2, count=torch.tensor(3)),
        "pair": (0.5, -1),
    }
    return Up(**(values | changes))


def same(one: Any, other: Any) -> None:
    a, b = pack(one), pack(other)
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        assert type(leaf) is type(b[path]), path
        if isinstance(leaf, Tensor):
            assert leaf.dtype == b[path].dtype and leaf.shape == b[path].shape, path
            assert leaf.numpy().tobytes() == b[path].numpy().tobytes(), path
        else:
            assert repr(leaf) == repr(b[path]), path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"extra": torch.full((D,), float("nan"))},
        {"drift": math.inf, "steps": -(2**63)},
        {"delta": torch.randn(D, 2)[:, 0]},
        {"opt": OptState(count=torch.tensor(0))},
    ],
)
def test_what_is_declared_comes_back_bit_for_bit(codec: Codec, changes: dict[str, Any]) -> None:
    sent = up(**changes)
    pieces = codec.encode(sent)
    assert "double" not in pieces, "derived where it is folded, never sent"
    same(codec.decode(pieces), sent)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"delta": torch.zeros(D + 1)}, "'delta'.*(19,).*declared is float32 of shape (18,)"),
        ({"delta": torch.zeros(D, dtype=torch.float64)}, "'delta' is float64"),
        ({"table": torch.zeros(3, 2, dtype=torch.float64)}, "'table'"),
        ({"table": torch.zeros(2, 3)}, "'table'"),
        ({"delta": None}, "'delta' is a NoneType"),
        ({"delta": 1.0}, "'delta' is a float"),
        ({"drift": torch.tensor(1.0)}, "'drift'"),
        ({"drift": "x"}, "'drift' is 'x'"),
        ({"steps": 0.5}, "'steps' is 0.5, declared is a int"),
        ({"steps": 2**63}, "'steps'"),
        ({"is_last": 1}, "'is_last'"),
        ({"pair": (1.0,)}, "'pair' has 1 items"),
        ({"opt": None}, "'opt'"),
        ({"opt": OptState(slots=(torch.ones(1),), count=torch.tensor(3))}, "'opt.slots.0'"),
        ({"opt": OptState(count=torch.zeros(2))}, "'opt.count'"),
    ],
)
def test_what_is_not_declared_does_not_leave(
    codec: Codec, changes: dict[str, Any], says: str
) -> None:
    import re

    pattern = ".*".join(re.escape(part) for part in says.split(".*"))
    with pytest.raises(Refused, match=pattern):
        codec.encode(up(**changes))


def broken(pieces: Pieces, path: str, **changes: Any) -> Pieces:
    return {**pieces, path: replace(pieces[path], **changes)}


def test_what_is_not_declared_does_not_arrive(codec: Codec) -> None:
    good = codec.encode(up())
    one = Piece("int64", (), (MOST_ITEMS + 1).to_bytes(8, "little"))
    less = Piece("int64", (), (-1).to_bytes(8, "little", signed=True))
    bad: list[Pieces] = [
        {k: v for k, v in good.items() if k != "delta"},
        {**good, "delta.0": good["delta"]},
        {**good, "../../etc/passwd": good["delta"]},
        {**good, "double": good["delta"]},
        broken(good, "delta", shape=(D + 1,)),
        broken(good, "delta", shape=(-D,)),
        broken(good, "delta", shape=(D, 1)),
        broken(good, "delta", dtype="float64"),
        broken(good, "delta", dtype="object"),
        broken(good, "delta", data=good["delta"].data + b"\0"),
        broken(good, "delta", data=b""),
        broken(good, "delta", shape=(10**9,), data=bytes(4)),
        broken(good, "table", shape=(3, 2)),
        broken(good, "drift", dtype="float32", data=bytes(4)),
        broken(good, "is_last", data=b"\x07"),
        {**good, "opt.slots#": one},
        {**good, "opt.slots#": less},
        {**good, "opt.slots#": Piece("int64", (), (1).to_bytes(8, "little"))},
        {**good, "pair#": Piece("int64", (), (3).to_bytes(8, "little"))},
        {},
    ]
    for pieces in bad:
        with pytest.raises(Refused, match="field '"):
            codec.decode(pieces)


names = st.sampled_from(["delta", "extra", "opt.slots#", "opt.slots.0", "pair.1", "x", "", "a.b.c"])
dtypes = st.sampled_from(["float32", "float64", "int64", "bool", "object", "uint8", "", "<f4"])
strange_pieces = st.builds(
    Piece,
    dtypes,
    st.lists(st.integers(-3, 10**12), max_size=3).map(tuple),
    st.binary(max_size=80),
)


@given(st.dictionaries(names, strange_pieces, min_size=1), st.booleans())
def test_noise_is_refused_and_never_crashes(changes: Pieces, on_top: bool) -> None:
    x, y = torch.zeros(2, 5), torch.tensor([0, 1])
    problem = define(
        lambda: nn.Linear(5, 3),
        nn.functional.cross_entropy,
        (x, y),
        init_seed=0,
        population=3,
        participation=1.0,
        rounds=1,
    )
    codec = Codec(Up, None, problem)  # type: ignore[arg-type]
    pieces = {**(codec.encode(up()) if on_top else {}), **changes}
    try:
        decoded = codec.decode(pieces)
    except Refused:
        return
    assert codec.encode(decoded) == pieces


def test_named_tensors_are_checked_too() -> None:
    forms = {"mean": Form(torch.float32, (2,)), "count": Form(torch.int64, ())}
    good = Piece("float32", (2,), bytes(8))
    assert tensors({"mean": good}, forms)["mean"].tolist() == [0.0, 0.0]
    for bad in ({"other": good}, {"count": good}, {"mean": replace(good, data=bytes(9))}):
        with pytest.raises(Refused):
            tensors(bad, forms)


@message
class Down:
    w: Tensor


@message
class UpOdd:
    delta: Mean[Tensor]
    square: Sum[Tensor]


@state
class Server:
    w: Tensor


@dataclass(frozen=True)
class Undeclared(Algorithm[Server, None]):
    """Sends a tensor whose form it does not declare."""

    local: Local = Local()

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    def train(self, site: Site, down: Down, mine: None) -> tuple[UpOdd, None]:
        return UpOdd(delta=site.train(self.local, down.w).delta, square=torch.eye(2)), mine


def test_a_simulation_forgives_what_the_wire_refuses() -> None:
    assert small_run(Undeclared(), model=Net).status == "done"
    with pytest.raises(RunError, match=r"'square' is float32 of shape \(2, 2\), declared is"):
        small_run(Undeclared(), model=Net, backend="wire")
