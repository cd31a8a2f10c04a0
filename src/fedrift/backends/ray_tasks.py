"""Visits as Ray tasks, here or on a cluster; client states and the fold stay with the driver."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import sys
import sysconfig
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from fedrift.backends.backend import Fold
from fedrift.backends.visit import Call, Reply, Visitor
from fedrift.core.algorithm import Algorithm, EvaluatedModel, Exchange, Outcome, Signature, owner_of
from fedrift.core.evaluation import Chunk, ChunkMetric, Evaluator
from fedrift.core.flat import map_tree
from fedrift.core.messages import Packed, pack, unpack
from fedrift.core.problem import Problem
from fedrift.core.site import Augment
from fedrift.data.split import Split
from fedrift.errors import InputError, RunError
from fedrift.storage.client_state import Store
from fedrift.storage.shared_memory import is_channels_last, packed_to_tree, skeleton, tree_to_packed

try:
    import ray  # pyright: ignore[reportMissingImports]
    from ray import exceptions  # pyright: ignore[reportMissingImports]
except ImportError:
    raise InputError(
        "backend 'ray' needs the package ray; install it with: pip install 'fedrift[ray]'"
    ) from None

# What a Ray worker does: one visit or a part of an evaluation, on a model it keeps bound.

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
        self.shown: tuple[int, EvaluatedModel] = -1, EvaluatedModel(torch.empty(0))

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
        run.shown = number, EvaluatedModel(given["w"], buffers, given.get("allowed"), heat, frozen)
    measured = run.evaluator.chunks(run.shown[1], which)
    for sums in measured:
        if "output" in sums:
            sums["output"] = map_tree(lambda t: t.numpy(), sums["output"])
    return measured


JOBS = 4  # evaluation tasks per worker
RETRIES = 3  # of a visit whose worker or machine died

Cost = Callable[[int, int], float]


@dataclass(frozen=True)
class Evaluating:
    """An evaluation whose chunks are tasks."""

    parts: Sequence[Any]

    def chunks(self) -> list[Chunk]:
        return [chunk for part in _wait(list(self.parts)) for chunk in part]


def connect(address: str, workers: int) -> bool:
    """Join the cluster at an address, or start one on this machine; True if it was not there."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    place: dict[str, Any] = {"address": address}
    if own := _own_paths():  # workers know the interpreter's paths, not those a script has added
        place["runtime_env"] = {"env_vars": {"PYTHONPATH": os.pathsep.join(own)}}
    if not address:
        place |= {"address": "local", "num_cpus": max(1, workers), "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**place, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"backend 'ray:{address}' cannot be reached: {said[0]}") from None
    return True


def _own_paths() -> list[str]:
    """Where this process looks for modules beyond what its interpreter came with."""
    came = tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    return [path for path in sys.path if os.path.isdir(path) and not path.startswith(came)]


def disconnect() -> None:
    """Leave the cluster, or end the one that was started here."""
    ray.shutdown()


class Ray:
    """`down` and the data are put into the object store once; a visit whose worker died is redone.

    Client states travel with the visit and are kept in the driver's rows, so that they survive any
    worker, are committed with the round and stand in the checkpoint as in every other backend.
    """

    def __init__(
        self,
        visitor: Visitor,
        store: Store,
        evaluator: Evaluator | None,
        cost: Cost,
        *,
        address: str = "",
        workers: int = 1,
    ) -> None:
        if not isinstance(visitor.clients, Split):
            raise InputError("backend 'ray': this kind of client data cannot be sent to workers")
        self._store, self._cost, self._sizes = store, cost, visitor.clients.sizes
        self._chunks = len(evaluator) if evaluator is not None else 0
        self._owns = connect(address, workers)
        self.workers = int(ray.cluster_resources().get("CPU", 1))
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": RETRIES}
        self._visit = ray.remote(visit).options(**options)
        self._evaluate = ray.remote(evaluate).options(**options)
        setup, data = _described(visitor, visitor.clients, evaluator)
        blob = np.frombuffer(cloudpickle.dumps(setup), np.uint8)
        self._refs = {"setup": ray.put(blob), "data": ray.put(stored(data))}

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold = Fold(exchange)
        ask = ray.put(self._ask(exchange))
        order = sorted(clients, key=lambda c: (-self._cost(c, exchange.round), c))
        under_way = {c: self._start(ask, exchange, c) for c in order}
        try:
            for client in sorted(clients):
                [content] = _wait([under_way.pop(client)])
                self._fold(fold, exchange, client, content)
        except BaseException:
            for left in under_way.values():
                ray.cancel(left)
            raise
        return fold.outcome()

    def _ask(self, exchange: Exchange) -> Ask:
        return Ask(
            next(self._count),
            Call.of(exchange),
            exchange.signature,
            stored(pack(exchange.down)),
            stored({str(i): b for i, b in enumerate(exchange.buffers)}),
            stored(dict(exchange.frozen)),
        )

    def _start(self, ask: Any, exchange: Exchange, client: int) -> Any:
        own = exchange.private.get(client)
        private = None if own is None else stored(pack(own))
        path = owner_of(exchange.phase)
        mine = stored(pack(self._store.read(path, client)))
        return self._visit.remote(self._name, self._refs, ask, client, private, mine)

    def _fold(self, fold: Fold, exchange: Exchange, client: int, content: Any) -> None:
        packed, new, speaks, work, finite = content
        kinds, table = exchange.signature, self._store.tables.get(owner_of(exchange.phase))
        up = loaded(packed, copies=False)
        buffers = tuple(v for k, v in up.items() if k.startswith("#buffer"))
        reply = Reply(unpack(kinds.up, up) if speaks else None, None, buffers, work, finite)
        counts = fold.add(client, int(self._sizes[client]), reply)
        if table is not None and counts:
            slot = table.reserve()
            table.rows.write(slot, unpack(kinds.state, loaded(new, copies=False)))
            table.keep(client, slot)
        elif table is not None:
            table.drop(client)

    def evaluate(self, shown: EvaluatedModel) -> Evaluating:
        """Start all chunks of an evaluation."""
        packed: Packed = {"w": shown.w, "temperature": shown.temperature}
        packed |= {f"buffer.{i}": b for i, b in enumerate(shown.buffers)}
        packed |= {f"frozen/{name}": value for name, value in shown.frozen.items()}
        if shown.allowed is not None:
            packed["allowed"] = shown.allowed
        model, number = ray.put(stored(packed)), next(self._count)
        start = self._evaluate.remote
        size = max(1, -(-self._chunks // (JOBS * self.workers)))
        some = [range(self._chunks)[i : i + size] for i in range(0, self._chunks, size)]
        return Evaluating([start(self._name, self._refs, number, model, which) for which in some])

    def close(self) -> None:
        """Give the memory back, and end Ray if it was started for this run."""
        self._refs = {}
        if self._owns:
            disconnect()


def _wait(refs: list[Any]) -> list[Any]:
    try:
        return ray.get(refs)
    except exceptions.RayTaskError as error:
        cause = error.cause
        said = f"{type(cause).__name__}: {cause}"
        raise RunError(f"a client method failed: {said}\n{error}") from None
    except exceptions.RayError as error:
        said = str(error).strip().splitlines()[0]
        raise RunError(
            f"a Ray task was given up after {RETRIES + 1} attempts ({type(error).__name__}: "
            f"{said}); often a machine is out of memory: try fewer workers or a smaller batch"
        ) from None


def _described(visitor: Visitor, split: Split, evaluator: Evaluator | None) -> tuple[Setup, Packed]:
    trees = {"x": split.x, "y": split.y}
    if evaluator is not None:
        trees |= {"x_test": evaluator.x, "y_test": evaluator.y}
    data: Packed = {}
    for name, tree in trees.items():
        data |= tree_to_packed(tree, name)
    data["parts"], data["ends"] = split.flat()
    setup = Setup(
        root=visitor.root,
        problem=visitor.problem,
        augment=visitor.augment,
        measure=None if evaluator is None else evaluator.measure,
        keeps_outputs=evaluator is not None and evaluator.keeps_outputs,
        skeletons={n: skeleton(tree) for n, tree in trees.items()} | {"parts": None, "ends": None},
    )
    return setup, data
