"""A worker process: single-threaded, started once per run, told what to do over a pipe."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

import torch
from torch import Tensor

from fedrift.algorithm import Algorithm, Signature, owner_of
from fedrift.backends.visit import Call, ChunkMetric, Evaluator, Visitor
from fedrift.data.resident import Split
from fedrift.messages import Packed, pack, unpack
from fedrift.problem import Problem
from fedrift.shared import Block, packed_to_tree
from fedrift.site import Augment
from fedrift.store import RowLayout, Rows


@dataclass(frozen=True)
class Setup:
    """What a worker is given once, pickled by the parent (classes of a notebook included)."""

    root: Algorithm[Any, Any]
    problem: Problem
    augment: Augment | None
    measure: ChunkMetric
    keeps_outputs: bool
    has_test: bool
    skeletons: dict[str, Any]
    """Shapes of the trees x, y, x_test, y_test."""
    where: Packed
    """Where their tensors stand in the data block."""
    layouts: dict[str, RowLayout]


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
    slot: str
    private: Packed | None


@dataclass(frozen=True)
class Evaluation:
    """One chunk of the test data."""

    ticket: int
    chunk: int
    weights: Packed
    temperature: float


class Worker:
    """Holds the blocks it was sent and does one task at a time."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.blocks: dict[str, Block] = {}
        self.rows: dict[str, Rows] = {}

    def attach(self, name: str) -> None:
        self.blocks[name] = Block(recv_handle(self.pipe))

    def attach_rows(self, path: str) -> None:
        self.rows[path] = Rows(recv_handle(self.pipe), self.setup.layouts[path])

    def set_up(self, blob: bytes) -> None:
        self.setup: Setup = pickle.loads(blob)  # from our own parent, over its pipe
        setup, data = self.setup, self.blocks["data"].get(self.setup.where)
        tree = {n: packed_to_tree(s, data, n) for n, s in setup.skeletons.items()}
        split = Split.from_flat(tree["x"], tree["y"], data["parts"], data["ends"])
        self.visitor = Visitor(setup.root, setup.problem, split, setup.augment)
        if setup.has_test:
            self.evaluator = Evaluator(
                setup.problem, tree["x_test"], tree["y_test"], setup.measure, setup.keeps_outputs
            )
        self.initial: dict[str, Any] = {}
        gc.freeze()

    def ask(self, blob: bytes) -> None:
        ask: Ask = pickle.loads(blob)
        block = self.blocks["down"]
        self.current = ask
        self.down = unpack(ask.signature.down, block.get(ask.down))
        self.buffers = tuple(block.get(ask.buffers).values())
        self.frozen = block.get(ask.frozen)

    def visit(self, task: Visit) -> tuple[Any, ...]:
        ask, path = self.current, owner_of(self.current.call.phase)
        private = None
        if task.private is not None:
            private = unpack(ask.signature.private, self.blocks["down"].get(task.private))
        mine = self.rows[path].read(task.read) if task.read >= 0 else self._initial(path)
        reply = self.visitor.visit(
            ask.call, task.client, self.down, private, mine, self.buffers, self.frozen
        )
        if task.write >= 0:
            self.rows[path].write(task.write, reply.mine)
        buffers = {f"#buffer.{i}": b for i, b in enumerate(reply.buffers)}
        where = self.blocks[task.slot].put({**pack(reply.up), **buffers})
        return task.client, where, reply.up is not None, reply.work, reply.is_finite

    def _initial(self, path: str) -> Any:
        if path not in self.initial:
            node, problem = self.visitor.owner(path)
            self.initial[path] = node.client(problem)
        return self.initial[path]

    def evaluate(self, task: Evaluation) -> tuple[Any, ...]:
        given = self.blocks["evaluation"].get(task.weights)
        buffers = tuple(v for k, v in given.items() if k.startswith("buffer"))
        sums = self.evaluator.chunk(
            task.chunk, given["w"], buffers, given.get("allowed"), task.temperature
        )
        return task.ticket, task.chunk, {k: _plain(v) for k, v in sums.items()}


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def main(pipe: Connection) -> None:
    """The loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    worker = Worker(pipe)
    silent = {
        "attach": worker.attach,
        "rows": worker.attach_rows,
        "setup": worker.set_up,
        "ask": worker.ask,
    }
    answering = {"visit": worker.visit, "evaluate": worker.evaluate}
    while True:
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):
            return
        if kind == "stop":
            return
        try:
            if kind in silent:
                silent[kind](content)
            else:
                pipe.send((kind, answering[kind](content)))
        except Exception as error:
            pipe.send(("error", (f"{type(error).__name__}: {error}", traceback.format_exc())))
