"""A worker: the runs it was told of, what it computes for them, and the loop of its process."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from multiprocessing.util import get_temp_dir
from time import perf_counter
from typing import Any

import torch

from fedrift.backends import give_back_freed_memory
from fedrift.backends.profiling import account
from fedrift.backends.visit import Reply, VisitInput, Visitor
from fedrift.backends.worker_messages import (
    FAILED,
    UNTOLD,
    Ask,
    Evaluation,
    Failure,
    Move,
    Setup,
    Shared,
    Told,
    Visit,
    Visits,
    bundled,
    model_from,
    packed_reply,
    split_of,
    without_paths,
)
from fedrift.core.evaluation import Chunk, Evaluator
from fedrift.core.flat import map_tree, take
from fedrift.core.messages import Packed, unpack
from fedrift.core.problem import TRIED
from fedrift.errors import is_out_of_memory
from fedrift.storage.client_state import StateRows
from fedrift.storage.shared_memory import Base, Block, packed_to_tree

OUT_OF_MEMORY = 77  # exit code of a worker that could not allocate


class Run:
    """One run as any worker knows it."""

    def __init__(self, setup: Setup, trees: dict[str, Any], base: Base | None = None) -> None:
        """`base` is where this machine holds what is frozen, if all its workers see it there."""
        setup.settings.apply()
        split = split_of(trees, setup)
        problem = setup.problem
        if "base" in trees:
            problem = replace(problem, rest=trees["base"], base=base)
        self.visitor = Visitor(setup.root, problem, split, setup.augment, setup.site)
        if base is not None and problem.model:  # the base that the model was built with is replaced
            give_back_freed_memory()
        if setup.measure is not None:
            self._evaluator = Evaluator(
                problem,
                trees["x_test"],
                trees["y_test"],
                setup.measure,
                setup.keeps_outputs,
                setup.sizes,
            )
        self._number = self._shown_number = -1

    def hear(self, ask: Ask, get: Move) -> None:
        """Take up an exchange; its number tells if that was done before."""
        if ask.number != self._number:
            self.ask, self._number = ask, ask.number
            self._down = unpack(ask.signature.down, get(ask.down))
            self._buffers = tuple(get(ask.buffers).values())
            self._frozen = get(ask.frozen)

    def private(self, task: Visit, get: Move) -> Any:
        """What is for the client alone."""
        kind, packed = self.ask.signature.private, task.private
        return None if packed is None else unpack(kind, get(packed))

    def visits(self, callers: Sequence[VisitInput]) -> list[Reply]:
        """Visits of the current exchange."""
        call = self.ask.call
        return self.visitor.visits(call, callers, self._down, self._buffers, self._frozen)

    def evaluate(self, task: Evaluation, model: Callable[[], Packed]) -> Sequence[Chunk]:
        """A part of an evaluation; the model is fetched when it is another than before."""
        if task.number != self._shown_number:
            self._shown, self._shown_number = model_from(model()), task.number
        measured = self._evaluator.chunks(self._shown, task.chunks)
        for sums in measured:
            if "output" in sums:
                sums["output"] = map_tree(lambda t: t.numpy(), sums["output"])
        return measured


# A worker process: memory it shares with its parent, and a pipe.


class SharedRun:
    """A run whose messages, data and client states are in shared memory."""

    def __init__(self, setup: Setup, shared: Shared, blocks: dict[str, Block], own: str) -> None:
        self._blocks, self._own, self.layouts = blocks, own, shared.layouts
        self.rows: dict[str, StateRows] = {}
        trees: dict[str, Any] = {}
        for name, (block, where) in shared.trees.items():
            trees[name] = packed_to_tree(setup.skeletons[name], blocks[block].get(where), name)
        base = None
        if "base" in trees:
            block, where = shared.trees["base"]
            named = {path.removeprefix("base."): ref for path, ref in where.items()}
            base = Base(blocks[block], named)
        self._run = Run(setup, trees, base)
        few = torch.from_numpy(split_of(trees, setup).first(TRIED))
        setup.problem.check_tried(take(trees["x"], few), take(trees["y"], few))

    def _get(self, where: Packed) -> Packed:
        return self._blocks[f"{self._own} down"].get(where)

    def ask(self, blob: bytes) -> None:
        self._run.hear(pickle.loads(blob), self._get)  # from our own parent, over its pipe

    def visit(self, task: Visit) -> tuple[Packed, Told]:
        came = perf_counter()
        (reply,), seconds = self._replies([task])
        packed, told = packed_reply(reply)
        where = self._blocks[task.slot].put(packed)
        account(reply.work, seconds, perf_counter() - came - seconds)
        return where, told

    def visits(self, task: Visits) -> tuple[Packed, list[Told]]:
        """The same for several; what they say is one message."""
        came = perf_counter()
        replies, seconds = self._replies(task.tasks)
        packed, told = zip(*map(packed_reply, replies), strict=True)
        where = self._blocks[task.slot].put(bundled(packed))
        around = perf_counter() - came - seconds
        for reply in replies:
            account(reply.work, seconds / len(replies), around / len(replies))
        return where, list(told)

    def _replies(self, tasks: Sequence[Visit]) -> tuple[list[Reply], float]:
        """What the clients say, and the seconds that took."""
        run = self._run
        path = run.visitor.state_path(run.ask.call.phase)
        given = [
            VisitInput(t.client, run.private(t, self._get), self._mine(t, path)) for t in tasks
        ]
        began = perf_counter()
        replies = run.visits(given)
        seconds = perf_counter() - began
        for task, reply in zip(tasks, replies, strict=True):
            if task.write >= 0:
                self.rows[path].write(task.write, reply.mine)
        return replies, seconds

    def _mine(self, task: Visit, path: str) -> Any:
        if task.read >= 0:
            return self.rows[path].read(task.read)
        return self._run.visitor.initial(path)

    def evaluate(self, task: Evaluation) -> tuple[Sequence[Chunk], float]:
        began = perf_counter()
        measured = self._run.evaluate(task, lambda: self._blocks[task.block].get(task.where))
        return measured, perf_counter() - began


class Worker:
    """Holds the memory it was sent and the runs it was told of; does one task at a time."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.blocks: dict[str, Block] = {}
        self.runs: dict[str, SharedRun] = {}
        self.failures: dict[str, Failure] = {}
        """Runs of which it could not be told, and why."""

    def attach(self, name: str) -> None:
        self.blocks[name] = Block(recv_handle(self.pipe))

    def run(self, content: tuple[str, Packed]) -> None:
        name, where = content
        blob = self.blocks[f"{name} setup"].get(where)["setup"].numpy().tobytes()
        setup, shared = without_paths(blob)
        self.runs[name] = SharedRun(setup, shared, self.blocks, name)
        gc.freeze()

    def rows(self, content: tuple[str, str]) -> None:
        name, path = content
        descriptor = recv_handle(self.pipe)  # it comes, whatever became of the run
        if (run := self.runs.get(name)) is None:
            os.close(descriptor)
        else:
            run.rows[path] = StateRows(descriptor, run.layouts[path])

    def ask(self, content: tuple[str, bytes]) -> None:
        if content[0] in self.runs:
            self.runs[content[0]].ask(content[1])

    def forget(self, name: str) -> None:
        self.runs.pop(name, None)
        self.failures.pop(name, None)
        for block in [b for b in self.blocks if b.startswith(f"{name} ")]:
            self.blocks.pop(block).close()

    def visit(self, content: tuple[str, Visit]) -> tuple[Packed, Told]:
        return self.runs[content[0]].visit(content[1])

    def visits(self, content: tuple[str, Visits]) -> tuple[Packed, list[Told]]:
        return self.runs[content[0]].visits(content[1])

    def evaluate(self, content: tuple[str, Evaluation]) -> tuple[Sequence[Chunk], float]:
        return self.runs[content[0]].evaluate(content[1])


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
    memory = {"attach": worker.attach, "forget": worker.forget}
    silent = {"run": worker.run, "rows": worker.rows, "ask": worker.ask}
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
            if kind in memory:
                memory[kind](content)
            elif kind in silent:
                silent[kind](content)
            elif content[0] in worker.failures:
                say(pipe, "error", worker.failures[content[0]])
            else:
                say(pipe, "done", answering[kind](content))
        except Exception as error:
            if is_out_of_memory(error):
                os._exit(OUT_OF_MEMORY)  # what it holds is given back, and the visit repeated
            if kind in memory:
                raise  # it has lost the thread: another takes its place
            if kind in silent:  # nobody waits for an answer: the run's next task gets it
                worker.failures[content[0]] = Failure.of(UNTOLD, error)
                continue
            try:
                say(pipe, "error", Failure.of(FAILED[kind], error))
            except OSError:  # the parent was interrupted and hears nobody
                return
