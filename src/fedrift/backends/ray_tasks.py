"""Visits as Ray tasks, here or on a cluster; client states and the fold stay with the driver."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import sysconfig
import uuid
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.backends.backend import Cost, Fold, RunParts
from fedrift.backends.visit import VisitInput, Visitor
from fedrift.backends.worker import Run
from fedrift.backends.worker_messages import (
    FAILED,
    UNTOLD,
    Ask,
    Evaluation,
    Failure,
    Told,
    Visit,
    asked,
    described,
    packed_model,
    packed_reply,
    reply_from,
    with_paths,
    without_paths,
)
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.alignment import is_channels_last, settled
from fedrift.core.evaluation import Chunk, Evaluator
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import Packed, pack, unpack
from fedrift.data.split import Split
from fedrift.errors import InputError, RunError
from fedrift.storage.client_state import Store
from fedrift.storage.shared_memory import packed_to_tree, tree_to_packed

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
        tensor = torch.from_numpy(leaf.array)
    tensor = tensor.permute(0, 3, 1, 2) if leaf.channels_last else tensor
    return tensor.clone() if copies else settled(tensor)


_runs: dict[str, Run] = {}


def _run(name: str, refs: dict[str, Any]) -> Run:
    """The run, bound when this process first hears of it. References in a dict arrive as such."""
    if name not in _runs:
        torch.set_num_threads(1)
        while len(_runs) >= KEPT:
            _runs.pop(next(iter(_runs)))
        blob, data = ray.get([refs["setup"], refs["data"]])
        setup, held = without_paths(blob.tobytes()), loaded(data, copies=False)
        shapes = setup.skeletons
        trees = {tree: packed_to_tree(shapes[tree], held, tree) for tree in shapes}
        _runs[name] = Run(setup, trees)
    return _runs[name]


@contextmanager
def _telling(what: str) -> Generator[None]:
    """What a task fails with is told by a sentence: the author's own error may not travel."""
    try:
        yield
    except Exception as error:
        raise Failure.of(what, error).error() from None


def visit(name: str, refs: dict[str, Any], task: Visit) -> tuple[Packed, Packed, Told]:
    """One client: its message up with the buffers, its new state, and what is said of it."""
    with _telling(UNTOLD):
        run = _run(name, refs)
        ask: Ask = ray.get(refs["ask"])  # only now can its classes be imported
        run.hear(ask, loaded)
    with _telling(FAILED["visit"]):
        return _visited(run, ask, task)


def _visited(run: Run, ask: Ask, task: Visit) -> tuple[Packed, Packed, Told]:
    mine = run.visitor.initial(run.visitor.state_path(ask.call.phase))
    if mine is not None:
        mine = unpack(type(mine), loaded(task.mine or {}), mine)
    [reply] = run.visits([VisitInput(task.client, run.private(task, loaded), mine)])
    packed, told = packed_reply(reply)
    return stored(packed), stored(pack(reply.mine)), told


def evaluate(name: str, refs: dict[str, Any], task: Evaluation, model: Packed) -> Sequence[Chunk]:
    """A few chunks of the test data."""
    with _telling(UNTOLD):
        run = _run(name, refs)
    with _telling(FAILED["evaluate"]):
        return run.evaluate(task, lambda: loaded(model))


JOBS = 4  # evaluation tasks per worker
RETRIES = 3  # of a visit whose worker or machine died


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
        self._visitor, self._store, self._cost = visitor, store, cost
        self._sizes = visitor.clients.sizes
        self._chunks = len(evaluator) if evaluator is not None else 0
        self._owns = connect(address, workers)
        self.workers = int(ray.cluster_resources().get("CPU", 1))
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        options: dict[str, Any] = {"num_cpus": 1, "max_retries": RETRIES}
        self._visit = ray.remote(visit).options(**options)
        self._evaluate = ray.remote(evaluate).options(**options)
        setup, trees = described(visitor, visitor.clients, evaluator)
        blob = np.frombuffer(with_paths(setup), np.uint8)
        data: Packed = {}
        for name, tree in trees.items():
            data |= tree_to_packed(tree, name)
        self._refs = {"setup": ray.put(blob), "data": ray.put(stored(data))}

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold = Fold(exchange)
        ask, private = asked(exchange, next(self._count), stored)
        refs = {**self._refs, "ask": ray.put(ask)}
        path = self._visitor.state_path(exchange.phase)
        order = sorted(clients, key=lambda c: (-self._cost(c, exchange.round), c))
        under_way = {c: self._start(refs, path, c, private.get(c)) for c in order}
        try:
            for client in sorted(clients):
                [content] = _wait([under_way.pop(client)])
                self._fold(fold, exchange, client, content)
        except BaseException:
            for left in under_way.values():
                ray.cancel(left)
            raise
        return fold.outcome()

    def _start(self, refs: dict[str, Any], path: str, client: int, private: Packed | None) -> Any:
        task = Visit(client, private, mine=stored(pack(self._store.read(path, client))))
        return self._visit.remote(self._name, refs, task)

    def _fold(self, fold: Fold, exchange: Exchange, client: int, content: Any) -> None:
        packed, new, told = content
        path = self._visitor.state_path(exchange.phase)
        reply = reply_from(exchange.signature, loaded(packed, copies=False), told)
        counts = fold.add(client, int(self._sizes[client]), reply)
        like = self._store.initial[path]
        if exchange.is_evaluation or like is None:
            return
        if counts:
            self._store.keep(path, client, unpack(type(like), loaded(new, copies=False), like))
        else:
            self._store.drop(path, client)

    def evaluate(self, shown: EvaluatedModel) -> Evaluating:
        """Start all chunks of an evaluation."""
        model, number = ray.put(stored(packed_model(shown))), next(self._count)
        size = max(1, -(-self._chunks // (JOBS * self.workers)))
        some = [range(self._chunks)[i : i + size] for i in range(0, self._chunks, size)]
        tasks = [Evaluation(number, which) for which in some]
        start = self._evaluate.remote
        return Evaluating([start(self._name, self._refs, task, model) for task in tasks])

    def close(self) -> None:
        """Give the memory back, and end Ray if it was started for this run."""
        self._refs = {}
        if self._owns:
            disconnect()


def make(run: RunParts) -> Ray:
    """The backend of a run."""
    return Ray(
        run.visitor,
        run.store,
        run.evaluator,
        run.cost,
        address=run.address,
        workers=run.workers,
    )


@contextmanager
def opened(address: str, workers: int) -> Generator[None]:
    """Ray, started or joined once for several runs."""
    is_ours = connect(address, workers)
    try:
        yield
    finally:
        if is_ours:
            disconnect()


def _wait(refs: list[Any]) -> list[Any]:
    try:
        return ray.get(refs)
    except exceptions.RayTaskError as error:
        told = RunError(str(error.cause))
        told.add_note(str(error))
        raise told from None
    except exceptions.RayError as error:
        said = str(error).strip().splitlines()[0]
        raise RunError(
            f"a Ray task was given up after {RETRIES + 1} attempts ({type(error).__name__}: "
            f"{said}); often a machine is out of memory: try fewer workers or a smaller batch"
        ) from None
