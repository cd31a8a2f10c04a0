"""A worker process: single-threaded, started once, serves the visits of one or several runs."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from multiprocessing.util import get_temp_dir
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedrift.backends.profiling import account
from fedrift.backends.visit import Call, Reply, VisitInput, Visitor
from fedrift.core.algorithm import Algorithm, EvaluatedModel, Signature, owner_of
from fedrift.core.evaluation import ChunkMetric, Evaluator
from fedrift.core.flat import map_tree
from fedrift.core.messages import Packed, Size, nbytes, pack, unpack
from fedrift.core.problem import Problem
from fedrift.core.site import Augment, Site
from fedrift.data.split import Make, Split
from fedrift.errors import is_out_of_memory
from fedrift.storage.client_state import RowLayout, StateRows
from fedrift.storage.shared_memory import Block, packed_to_tree

# Messages of several clients in one: leaves of equal form become the rows of one tensor.

Bundle: TypeAlias = Packed
"""Path → rows, or `number path` → the leaf of one message, where they differ in form."""


def bundled(messages: Sequence[Packed]) -> Bundle:
    """All messages as one; numbers stay a tuple."""
    first = messages[0]
    if any(m.keys() != first.keys() for m in messages):
        return {f"{i} {path}": leaf for i, m in enumerate(messages) for path, leaf in m.items()}
    bundle: Bundle = {}
    for path in first:
        leaves = [m[path] for m in messages]
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            bundle[path] = tuple(leaves)
        elif len({_form(leaf) for leaf in leaves}) == 1:
            bundle[path] = torch.stack(leaves)
        else:
            bundle |= {f"{i} {path}": leaf for i, leaf in enumerate(leaves)}
    return bundle


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None


def unbundled(bundle: Bundle, number: int) -> list[Packed]:
    """The messages again; their tensors are views of the rows."""
    messages: list[Packed] = [{} for _ in range(number)]
    for path, leaf in bundle.items():
        place, _, name = path.partition(" ")
        if name:
            messages[int(place)][name] = leaf
            continue
        rows = leaf.unbind() if isinstance(leaf, Tensor) else leaf
        for message, row in zip(messages, rows, strict=True):
            message[path] = row
    return messages


def each_size(bundle: Bundle) -> dict[str, Size] | None:
    """Bytes of every message, if they are the same for all."""
    if any(" " in path or path.startswith("#") for path in bundle):
        return None
    first = {path: leaf[0] for path, leaf in bundle.items()}
    absent = (leaf for leaf in bundle.values() if not isinstance(leaf, Tensor))
    if any(any((v is None) != (leaf[0] is None) for v in leaf) for leaf in absent):
        return None
    return nbytes(first)


# What the parent tells a worker process: a run, an exchange, visits and evaluations.


@dataclass(frozen=True)
class Setup:
    """What a worker is told of a run once, pickled by the parent (classes of a notebook too)."""

    root: Algorithm[Any, Any]
    problem: Problem
    augment: Augment | None
    measure: ChunkMetric
    keeps_outputs: bool
    has_test: bool
    skeletons: dict[str, Any]
    """Shapes of the trees x, y, x_test, y_test."""
    where: dict[str, tuple[str, Packed]]
    """For each tree the block that holds it, and where its tensors stand in it."""
    layouts: dict[str, RowLayout]
    make: Make | None = None
    site: Callable[..., Any] = Site


@dataclass(frozen=True)
class Ask:
    """An exchange as a worker sees it."""

    call: Call
    signature: Signature
    down: Packed
    buffers: Packed
    frozen: Packed


@dataclass(frozen=True)
class Visit:
    """One client of the current exchange: where its row is read and written, where to answer."""

    client: int
    read: int
    write: int
    private: Packed | None
    slot: str = ""


@dataclass(frozen=True)
class Visits:
    """Clients of the current exchange whose visits are one task."""

    tasks: tuple[Visit, ...]
    slot: str = ""

    @property
    def client(self) -> int:
        """The first of them, to speak of."""
        return self.tasks[0].client


@dataclass(frozen=True)
class Evaluation:
    """A few chunks of the test data."""

    chunks: range
    block: str
    where: Packed
    temperature: float


OUT_OF_MEMORY = 77  # exit code of a worker that could not allocate


class Run:
    """One run as a worker knows it."""

    def __init__(self, setup: Setup, blocks: dict[str, Block], own: str) -> None:
        self.setup, self._blocks, self._own = setup, blocks, own
        self.rows: dict[str, StateRows] = {}
        trees: dict[str, Any] = {}
        for name, (block, where) in setup.where.items():
            packed = blocks[block].get(where)
            trees[name] = packed_to_tree(setup.skeletons[name], packed, name)
        split = Split.from_flat(trees["x"], trees["y"], trees["parts"], trees["ends"], setup.make)
        self.visitor = Visitor(setup.root, setup.problem, split, setup.augment, setup.site)
        if setup.has_test:
            self.evaluator = Evaluator(
                setup.problem, trees["x_test"], trees["y_test"], setup.measure, setup.keeps_outputs
            )
        self.initial: dict[str, Any] = {}

    def ask(self, blob: bytes) -> None:
        ask: Ask = pickle.loads(blob)  # from our own parent, over its pipe
        block = self._blocks[f"{self._own} down"]
        self.current = ask
        self.down = unpack(ask.signature.down, block.get(ask.down))
        self.buffers = tuple(block.get(ask.buffers).values())
        self.frozen = block.get(ask.frozen)

    def visit(self, task: Visit) -> tuple[Any, ...]:
        came = perf_counter()
        (reply,), seconds = self._replies([task])
        where = self._blocks[task.slot].put(_said(reply))
        account(reply.work, seconds, perf_counter() - came - seconds)
        return where, reply.up is not None, reply.work, reply.is_finite

    def visits(self, task: Visits) -> tuple[Any, ...]:
        """The same for several; what they say is one message."""
        came = perf_counter()
        replies, seconds = self._replies(task.tasks)
        where = self._blocks[task.slot].put(bundled([_said(reply) for reply in replies]))
        around = perf_counter() - came - seconds
        for reply in replies:
            account(reply.work, seconds / len(replies), around / len(replies))
        return where, [(r.up is not None, r.work, r.is_finite) for r in replies]

    def _replies(self, tasks: Sequence[Visit]) -> tuple[list[Reply], float]:
        """What the clients say, and the seconds that took."""
        ask, path = self.current, owner_of(self.current.call.phase)
        callers = [VisitInput(t.client, self._private(t), self._mine(t, path)) for t in tasks]
        began = perf_counter()
        replies = self.visitor.visits(ask.call, callers, self.down, self.buffers, self.frozen)
        seconds = perf_counter() - began
        for task, reply in zip(tasks, replies, strict=True):
            if task.write >= 0:
                self.rows[path].write(task.write, reply.mine)
        return replies, seconds

    def _private(self, task: Visit) -> Any:
        if task.private is None:
            return None
        block = self._blocks[f"{self._own} down"]
        return unpack(self.current.signature.private, block.get(task.private))

    def _mine(self, task: Visit, path: str) -> Any:
        return self.rows[path].read(task.read) if task.read >= 0 else self._initial(path)

    def _initial(self, path: str) -> Any:
        if path not in self.initial:
            node, problem = self.visitor.owner(path)
            self.initial[path] = node.client(problem)
        return self.initial[path]

    def evaluate(self, task: Evaluation) -> tuple[list[dict[str, Any]], float]:
        began = perf_counter()
        given = self._blocks[task.block].get(task.where)
        frozen = {k.removeprefix("frozen/"): v for k, v in given.items() if k.startswith("frozen/")}
        buffers = tuple(v for k, v in given.items() if k.startswith("buffer."))
        shown = EvaluatedModel(given["w"], buffers, given.get("allowed"), task.temperature, frozen)
        measured = self.evaluator.chunks(shown, task.chunks)
        for sums in measured:
            if "output" in sums:
                sums["output"] = map_tree(lambda t: t.numpy(), sums["output"])
        return measured, perf_counter() - began


class Worker:
    """Holds the memory it was sent and the runs it was told of; does one task at a time."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.blocks: dict[str, Block] = {}
        self.runs: dict[str, Run] = {}

    def attach(self, name: str) -> None:
        self.blocks[name] = Block(recv_handle(self.pipe))

    def run(self, content: tuple[str, Packed]) -> None:
        name, where = content
        blob = self.blocks[f"{name} setup"].get(where)["setup"].numpy().tobytes()
        self.runs[name] = Run(pickle.loads(blob), self.blocks, name)
        gc.freeze()

    def rows(self, content: tuple[str, str]) -> None:
        name, path = content
        run = self.runs[name]
        run.rows[path] = StateRows(recv_handle(self.pipe), run.setup.layouts[path])

    def ask(self, content: tuple[str, bytes]) -> None:
        self.runs[content[0]].ask(content[1])

    def forget(self, name: str) -> None:
        self.runs.pop(name, None)
        for block in [b for b in self.blocks if b.startswith(f"{name} ")]:
            self.blocks.pop(block).close()

    def visit(self, content: tuple[str, Visit]) -> tuple[Any, ...]:
        return self.runs[content[0]].visit(content[1])

    def visits(self, content: tuple[str, Visits]) -> tuple[Any, ...]:
        return self.runs[content[0]].visits(content[1])

    def evaluate(self, content: tuple[str, Evaluation]) -> tuple[list[dict[str, Any]], float]:
        return self.runs[content[0]].evaluate(content[1])


def _said(reply: Reply) -> Packed:
    return {**pack(reply.up), **{f"#buffer.{i}": b for i, b in enumerate(reply.buffers)}}


def say(pipe: Connection, kind: str, content: Any) -> None:
    """Send a message; plain pickle is several times faster than a connection's own `send`."""
    pipe.send_bytes(pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL))


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        shutil.rmtree(get_temp_dir(), ignore_errors=True)  # the parent's, who was killed
        os._exit(1)


def main(pipe: Connection) -> None:
    """The loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    worker = Worker(pipe)
    silent = {
        "attach": worker.attach,
        "run": worker.run,
        "rows": worker.rows,
        "ask": worker.ask,
        "forget": worker.forget,
    }
    answering = {
        "visit": worker.visit,
        "visits": worker.visits,
        "evaluate": worker.evaluate,
    }
    while True:
        try:
            kind, content = pickle.loads(pipe.recv_bytes())  # from our own parent
        except (EOFError, OSError):
            return
        if kind == "stop":
            return
        try:
            if kind in silent:
                silent[kind](content)
            else:
                say(pipe, "done", answering[kind](content))
        except Exception as error:
            if is_out_of_memory(error):
                os._exit(OUT_OF_MEMORY)  # what it holds is given back, and the visit repeated
            told = f"{type(error).__name__}: {error}", traceback.format_exc()
            try:
                say(pipe, "error", told)
            except OSError:  # the parent was interrupted and hears nobody
                return
