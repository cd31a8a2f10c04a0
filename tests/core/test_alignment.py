"""The layout itself is asserted, so that these tests bite on any processor."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedrift as fr
from fedrift.backends.codec import Form, piece, tensor
from fedrift.core import (
    Algorithm,
    Cohort,
    Local,
    Mean,
    Problem,
    Site,
    Vec,
    alignment,
    evaluation,
    message,
    state,
)
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.alignment import (
    BOUNDARY,
    check_settled,
    dense,
    empty_rows,
    has_settled_rows,
    is_settled,
    settled,
    settled_rows,
    strides_of,
)
from fedrift.core.evaluation import Evaluator
from fedrift.core.problem import define
from fedrift.data.arrays import inputs
from fedrift.data.split import Split
from fedrift.storage.shared_memory import Block

KINDS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def views(draw: Any) -> Tensor:
    """Any tensor people have: other strides, an offset in its storage, images in either format."""
    shape, kind = draw(SHAPES), draw(st.sampled_from(KINDS))
    before = draw(st.integers(0, 17))
    steps = [draw(st.sampled_from((1, 1, 2))) for _ in shape]
    large = tuple(n * step for n, step in zip(shape, steps, strict=True))
    room = torch.arange(before + int(np.prod(large))) % 7
    t = room.to(kind)[before:].view(large)
    t = t[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        t = t.permute(draw(st.permutations(range(t.dim()))))
    if t.dim() == 4 and draw(st.booleans()):
        t = t.to(memory_format=torch.channels_last)
    return t.expand(draw(st.integers(0, 3)), *t.shape) if draw(st.booleans()) else t


@given(views())
def test_every_tensor_is_settled(t: Tensor) -> None:
    made = settled(t)
    assert made.stride() in (strides_of(tuple(t.shape)), made.clone().stride())
    assert made.data_ptr() % BOUNDARY == 0 and is_settled(made)
    assert made.dtype == t.dtype and torch.equal(made, t)
    assert settled(made) is made
    for is_last in (False, True) if t.dim() == 4 else (False,):
        order = torch.channels_last if is_last else torch.contiguous_format
        fresh = torch.empty(t.shape, dtype=t.dtype).to(memory_format=order)
        assert dense(t, is_last).stride() == fresh.stride() or not t.numel()


@given(views(), views())
def test_samples_messages_and_states_too(a: Tensor, b: Tensor) -> None:
    @state
    class Kept:
        own: Vec
        several: tuple[Vec, ...]
        nothing: Vec | None = None

    kept = Kept(own=a, several=(b, a))
    for value in (kept, {"a": a, "b": (b, 1.0)}, (a, {"b": b})):
        check_settled("settled", made := settled(value))
        assert settled(made) is made
        assert type(made) is type(value)


ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as it is": lambda a: a,
    "backwards": lambda a: a[::-1],
    "every other column": lambda a: np.repeat(a, 2, 1)[:, ::2],
    "Fortran": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "across places": lambda a: _across(a),
    "of a record": lambda a: _record(a)["x"],
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "from a file": lambda a: _from_file(a),
}


def _across(a: np.ndarray) -> np.ndarray:
    room = np.zeros(a.nbytes + 1, np.uint8)
    odd = room[1:].view(a.dtype).reshape(a.shape)
    odd[...] = a
    return odd


def _record(a: np.ndarray) -> Any:
    made = np.zeros(len(a), [("flag", np.int8), ("x", a.dtype, a.shape[1:])])
    made["x"] = a
    return made


def _from_file(a: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.save(file, a)
    return np.frombuffer(file.getvalue(), a.dtype, offset=len(file.getvalue()) - a.nbytes).reshape(
        a.shape
    )


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("how", ARRAYS)
def test_arrays_of_numpy(how: str, kind: Any) -> None:
    a = (np.arange(300 * 5).reshape(300, 5) % 11).astype(kind)
    given = ARRAYS[how](a)
    assert np.array_equal(given, a) or how == "backwards"
    x = inputs(given, torch.float64, "x")
    assert x.stride() == (5, 1) and np.array_equal(x.numpy(), np.asarray(given, x.numpy().dtype))
    split = Split(x, x[:, 0], [np.arange(7), np.arange(7, 300)])
    for client in (0, 1):
        for positions in (None, np.array([3, 1])):
            check_settled("batch", split.view(client).batch(positions))


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9), st.sampled_from(KINDS[:2]))
def test_rows(number: int, a: int, b: int, kind: torch.dtype) -> None:
    t = torch.randn(number, a, b, dtype=kind)
    made = settled_rows(t)
    assert has_settled_rows(made) and torch.equal(made, t)
    assert settled_rows(made) is made
    assert all(is_settled(row) for row in made)
    assert has_settled_rows(empty_rows(t, t.shape))


@given(views())
def test_shared_memory_and_messages(t: Tensor) -> None:
    t = settled(t)
    block = Block()
    there = block.get(block.put({"first": torch.ones(3), "t": t}))
    check_settled("shared memory", there)
    assert there["t"].stride() == t.stride() and torch.equal(there["t"], t)
    came = tensor(piece(t), Form.like(t), "t")
    check_settled("message", came)
    assert torch.equal(came, t)
    block.close()


def test_chunks_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            seen.append((a, b))
            return self.layer(a + b)

    x = torch.randn(60, 7)
    clients = [((x[:30, :3], x[:30, 4:]), torch.zeros(30).long())] * 2
    monkeypatch.setattr(evaluation, "EVALUATION_CHUNK", 7)
    fr.run("fedavg", model=Looks, clients=clients, test=clients[0], rounds=2, workers=0)
    whole = [one for one in seen if len(one[0]) != 2]  # but for those that the model is tried on
    assert len(whole) > 10
    check_settled("inputs", *whole)


# Runs whose data, states and checkpoints come from everywhere.

SAMPLES = torch.randn(90, 11, generator=torch.Generator().manual_seed(0))
LABELS = SAMPLES[:, :3].argmax(1)
PAIRS = [(SAMPLES[10 * i : 10 * i + 10], LABELS[10 * i : 10 * i + 10]) for i in range(6)]


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]


@state
class Server:
    w: Vec
    matrix: Vec
    """Is multiplied with, so what comes of a round depends on where it stands."""


@state
class Client:
    seen: Vec


@dataclass(frozen=True)
class Multiplies(Algorithm[Server, Client]):
    """Its round, its clients and their states use products of what they are given."""

    local: Local = Local()

    def server(self, p: Problem) -> Server:
        size = p.layout.size
        some = torch.randn(size + 1, size, generator=torch.Generator().manual_seed(1))
        return Server(w=p.w0, matrix=some[1:] / size)

    def client(self, p: Problem) -> Client:
        return Client(seen=torch.zeros(2, p.layout.size)[1])

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=torch.stack([s.w, s.w])[1]))
        moved = s.matrix @ up.delta + torch.dot(s.w, up.delta) * s.w
        several = torch.stack([s.w, s.w + up.delta + 0.1 * moved])
        return replace(s, w=several[1], matrix=torch.cat([several, s.matrix])[2:])

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w)
        scale = torch.dot(mine.seen, down.w) + torch.dot(run.w, down.w)
        new = torch.stack([mine.seen, mine.seen + run.delta])
        return Up(delta=run.delta * (1 + 0.01 * scale)), Client(seen=new[1])


def run(workers: int | str = 0, **changes: Any) -> fr.Result:
    settings: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 3)),
        "clients": PAIRS,
        "test": (SAMPLES[60:], LABELS[60:]),
        "rounds": 4,
        "per_round": 3,
        "lr": 0.1,
        "batch_size": 4,
        "workers": workers,
    }
    return fr.run(Multiplies(), **(settings | changes))


@pytest.mark.parametrize("stack", ["auto", "off"])
def test_states_that_are_multiplied(stack: str, tmp_path: Path) -> None:
    """In process, in workers, through the wire and after each round's resume: the same bits."""

    class Stop(fr.Callback):
        def __init__(self, at: int) -> None:
            self.at = at

        def on_round(self, report: Any) -> bool:
            return report.round == self.at

    whole = run(stack=stack)
    assert run(2, stack=stack).fingerprint == whole.fingerprint
    assert run(backend="wire", stack=stack).fingerprint == whole.fingerprint
    for at in (1, 2, 3):
        out = tmp_path / str(at)
        run(stack=stack, out=out, callbacks=[Stop(at)])
        assert run(stack=stack, out=out).fingerprint == whole.fingerprint


VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "columns": lambda x: x[:, :5],
    "tuple": lambda x: (x[:, :5], x[:, 5:]),
    "dict": lambda x: {"a": x[:, 3:8], "b": x[:, 2:7]},
    "numpy": lambda x: x.numpy()[:, 5:0:-1],
}


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(3)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.layer(a if b is None else torch.cat([a, b], 1))


@pytest.mark.parametrize("how", VIEWS)
def test_views_as_samples(how: str) -> None:
    """Samples and test samples that are views, and copies of them, in process and in workers."""

    def copied(x: Any) -> Any:
        if isinstance(x, (tuple, dict)):
            parts = x.values() if isinstance(x, dict) else x
            made = [part.clone() for part in parts]
            return dict(zip(x, made, strict=True)) if isinstance(x, dict) else tuple(made)
        return x.copy() if isinstance(x, np.ndarray) else x.clone()

    cut, prints = VIEWS[how], set[str]()
    for keep in (lambda x: x, copied):
        clients = [(keep(cut(x)), y) for x, y in PAIRS]
        test = (keep(cut(SAMPLES[50:83])), LABELS[50:83])
        for workers in (0, 2):
            prints.add(run(workers, model=Adds, clients=clients, test=test).fingerprint)
    assert len(prints) == 1


def test_a_client_does_not_depend_on_who_stands_beside_it() -> None:
    """Also in its last bit, which products of matrices take from the place in the stack."""
    replies: dict[int, dict[int, Tensor]] = {}

    class Look(fr.Callback):
        def __init__(self, to: dict[int, Tensor]) -> None:
            self.to = to

        def on_reply(self, exchange: Any, client: int, weight: float, up: Any) -> None:
            self.to[client] = up.delta.clone()

        def looks_at(self, round: int) -> bool:
            return True

    clients = [(x[: 5 + i], y[: 5 + i]) for i, (x, y) in enumerate(PAIRS)]
    everybody = [*range(6)]
    for first in (0, 1, 2, 3, 4, 5, 6):
        who = everybody if first == 6 else [first]
        replies[first] = {}
        look = Look(replies[first])
        for size in (3, 4, None):
            run(
                stack="on",
                clients=clients,
                participants=[who],
                rounds=1,
                per_round=None,
                epochs=3,
                batch_size=size,
                callbacks=[look],
            )
    for client in everybody:
        assert torch.equal(replies[client][client], replies[6][client])


def test_the_check_sees_what_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alignment.CHECKS  # in all tests, here and in workers
    monkeypatch.setattr(evaluation, "settled", lambda value: value)
    problem = define(
        lambda: nn.Linear(7, 3),
        nn.functional.cross_entropy,
        (torch.zeros(2, 7), torch.zeros(2).long()),
        init_seed=0,
        population=1,
        participation=1.0,
        rounds=1,
    )
    x = torch.randn(60, 11)[:, :7]
    look = Evaluator(problem, x, torch.zeros(60).long(), evaluation.evaluate_chunk)
    with pytest.raises(AssertionError, match=r"test samples: .* strides \(11, 1\)"):
        look.chunks(EvaluatedModel(problem.w0))
