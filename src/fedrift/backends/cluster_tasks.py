"""What a Ray worker does: one visit or a part of an evaluation, on a model it keeps bound."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray  # pyright: ignore[reportMissingImports]
import torch
from torch import Tensor

from fedrift.algorithm import Algorithm
from fedrift.backends.evaluation import ChunkMetric, Evaluator
from fedrift.backends.visit import Call, Visitor
from fedrift.data.resident import Split
from fedrift.exchange import Shown, Signature
from fedrift.flat import map_tree
from fedrift.messages import Packed, pack, unpack
from fedrift.problem import Problem
from fedrift.shared import is_channels_last, packed_to_tree
from fedrift.site import Augment

KEPT = 2  # runs a worker process remembers


@dataclass(frozen=True)
class Stored:
    """A tensor in Ray's object store, which knows arrays in row order only."""

    array: np.ndarray
    channels_last: bool = False


@dataclass(frozen=True)
class Setup:
    """A run as a worker is told of it."""

    root: Algorithm[Any, Any]
    problem: Problem
    augment: Augment | None
    measure: ChunkMetric | None
    keeps_outputs: bool
    skeletons: dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """An exchange, put into the object store once for all of its visits."""

    number: int
    call: Call
    signature: Signature
    down: Packed
    buffers: Packed
    frozen: Packed


def stored(packed: Packed) -> Packed:
    """The same leaves with arrays that Ray shares without a copy."""
    return {path: _stored(leaf) for path, leaf in packed.items()}


def _stored(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if is_channels_last(leaf):
        return Stored(leaf.permute(0, 2, 3, 1).numpy(), channels_last=True)
    return Stored(leaf.detach().contiguous().numpy())


def loaded(packed: Packed, copies: bool = True) -> Packed:
    """The inverse; without a copy the tensors are views of memory that must not be written to."""
    return {path: _loaded(leaf, copies) for path, leaf in packed.items()}


def _loaded(leaf: Any, copies: bool) -> Any:
    if not isinstance(leaf, Stored):
        return leaf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        tensor = torch.from_numpy(leaf.array.copy() if copies else leaf.array)
    return tensor.permute(0, 3, 1, 2) if leaf.channels_last else tensor


class Run:
    """One run in one worker process."""

    def __init__(self, setup: Setup, data: Packed) -> None:
        held = loaded(data, copies=False)
        shapes = setup.skeletons
        trees = {name: packed_to_tree(shapes[name], held, name) for name in shapes}
        split = Split.from_flat(trees["x"], trees["y"], trees["parts"], trees["ends"])
        self.visitor = Visitor(setup.root, setup.problem, split, setup.augment)
        if setup.measure is not None:
            self.evaluator = Evaluator(
                setup.problem, trees["x_test"], trees["y_test"], setup.measure, setup.keeps_outputs
            )
        self.number = -1
        self.shown: tuple[int, Shown] = -1, Shown(torch.empty(0))

    def told(self, ask: Ask) -> None:
        if ask.number == self.number:
            return
        self.number = ask.number
        self.down = unpack(ask.signature.down, loaded(ask.down))
        self.buffers = tuple(loaded(ask.buffers).values())
        self.frozen = loaded(ask.frozen)


_runs: dict[str, Run] = {}


def _run(name: str, refs: dict[str, Any]) -> Run:
    """The run, bound when this process first hears of it. References in a dict arrive as such."""
    if name not in _runs:
        torch.set_num_threads(1)
        while len(_runs) >= KEPT:
            _runs.pop(next(iter(_runs)))
        setup, data = ray.get([refs["setup"], refs["data"]])
        _runs[name] = Run(pickle.loads(setup.tobytes()), data)  # from our own driver
    return _runs[name]


def visit(
    name: str, refs: dict[str, Any], ask: Ask, client: int, private: Packed | None, mine: Packed
) -> tuple[Packed, Packed, bool, Any, bool]:
    """One client: its message up with the buffers, its new state, did it speak, work, finite."""
    run, kinds = _run(name, refs), ask.signature
    run.told(ask)
    own = None if private is None else unpack(kinds.private, loaded(private))
    before = unpack(kinds.state, loaded(mine))
    reply = run.visitor.visit(ask.call, client, run.down, own, before, run.buffers, run.frozen)
    up = {**pack(reply.up), **{f"#buffer.{i}": b for i, b in enumerate(reply.buffers)}}
    new = stored(pack(reply.mine))
    return stored(up), new, reply.up is not None, reply.work, reply.is_finite


def evaluate(
    name: str, refs: dict[str, Any], number: int, model: Packed, which: range
) -> list[dict[str, Any]]:
    """A few chunks of the test data."""
    run = _run(name, refs)
    if run.shown[0] != number:
        given = loaded(model)
        frozen = {k[7:]: v for k, v in given.items() if k.startswith("frozen/")}
        buffers = tuple(v for k, v in given.items() if k.startswith("buffer."))
        heat = given["temperature"]
        run.shown = number, Shown(given["w"], buffers, given.get("allowed"), heat, frozen)
    measured = run.evaluator.chunks(run.shown[1], which)
    for sums in measured:
        if "output" in sums:
            sums["output"] = map_tree(lambda t: t.numpy(), sums["output"])
    return measured
