"""Workers: what they are told, what they do with it, and the loop of a worker process.

The messages are those of all workers, processes of this machine as well as Ray's; how tensors
travel is up to the backend, which puts the leaves of a message somewhere and gets them there.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from multiprocessing.util import get_temp_dir
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import torch
from torch import Tensor

from fedrift.backends import give_back_freed_memory
from fedrift.backends.profiling import account
from fedrift.backends.visit import Call, Reply, VisitInput, Visitor
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.evaluation import Chunk, ChunkMetric, Evaluator
from fedrift.core.exchange import Exchange, Signature
from fedrift.core.flat import map_tree, take
from fedrift.core.flat_model import hollow
from fedrift.core.isolation import TorchSettings
from fedrift.core.messages import Packed, Size, nbytes, pack, unpack
from fedrift.core.problem import TRIED, Problem
from fedrift.core.site import Augment, Site, Work
from fedrift.core.training_report import Training
from fedrift.data.split import Make, Split
from fedrift.errors import InputError, RunError, is_out_of_memory, sentence
from fedrift.storage.client_state import RowLayout, StateRows
from fedrift.storage.shared_memory import Base, Block, packed_to_tree, skeleton

OWN = ("own_parts", "own_ends")
OUT_OF_MEMORY = 77  # exit code of a worker that could not allocate

Move = Callable[[Packed], Packed]
"""Puts the leaves of a message where workers find them, or gets them from there."""


@dataclass(frozen=True)
class Setup:
    """A run as workers are told of it once, pickled (classes of a notebook too)."""

    root: Algorithm[Any, Any]
    problem: Problem
    augment: Augment | None
    measure: ChunkMetric | None
    """None: there are no test data."""
    keeps_outputs: bool
    sizes: tuple[int, ...]
    """Of the parts of the test data."""
    skeletons: dict[str, Any]
    """Shapes of the trees x, y, parts, ends and x_test, y_test, which come apart, as does the base
    below an adapter; the clients' own test data are own_parts, own_ends and, unless they are of
    the same block, own_x, own_y."""
    make: Make | None
    settings: TorchSettings
    site: Callable[..., Any] = Site
    make_test: Make | None = None


def described(
    visitor: Visitor, split: Split, evaluator: Evaluator | None
) -> tuple[Setup, dict[str, Any]]:
    """A run as workers are told of it, and the trees of its data."""
    parts, ends = split.flat()
    trees = {"x": split.x, "y": split.y, "parts": parts, "ends": ends}
    if evaluator is not None:
        trees |= {"x_test": evaluator.x, "y_test": evaluator.y}
    own = split.test
    if own is not None:
        trees |= dict(zip(OWN, own.flat(), strict=True))
        if own.x is not split.x or own.y is not split.y:
            trees |= {"own_x": own.x, "own_y": own.y}
    problem = visitor.problem
    if problem.is_base_still:  # it can be large: all workers see the same memory
        trees["base"] = dict(problem.rest)
        problem = replace(problem, rest={}, make=hollow(problem.make))
    setup = Setup(
        root=visitor.root,
        problem=problem,
        augment=visitor.augment,
        measure=None if evaluator is None else evaluator.measure,
        keeps_outputs=evaluator is not None and evaluator.keeps_outputs,
        sizes=() if evaluator is None else evaluator.sizes,
        skeletons={name: skeleton(tree) for name, tree in trees.items()},
        make=split.make,
        settings=TorchSettings.current(),
        site=visitor.site,
        make_test=None if own is None else own.make,
    )
    return setup, trees


def with_paths(content: Any) -> bytes:
    """Pickled, with the folders in which its modules are found: a worker may be older than the
    caller's wish to import from one of them."""
    paths = [path or os.getcwd() for path in sys.path]
    return pickle.dumps((paths, cloudpickle.dumps(content)))


def without_paths(blob: bytes) -> Any:
    """The inverse, in a worker; what it finds by itself comes first."""
    paths, content = pickle.loads(blob)  # from our own parent or driver
    sys.path += [path for path in paths if path not in sys.path]
    return pickle.loads(content)


def _split_of(trees: dict[str, Any], setup: Setup) -> Split:
    """The inverse: the clients' data, and what they test on."""
    x, y, own = trees["x"], trees["y"], None
    if OWN[0] in trees:
        where = trees[OWN[0]], trees[OWN[1]]
        own = Split.from_flat(trees.get("own_x", x), trees.get("own_y", y), *where, setup.make_test)
    return Split.from_flat(x, y, trees["parts"], trees["ends"], setup.make, own)


@dataclass(frozen=True)
class Shared:
    """Where in shared memory a run's data and the states of its clients stand."""

    trees: dict[str, tuple[str, Packed]]
    """For each tree the block that holds it, and where its tensors stand in it."""
    layouts: dict[str, RowLayout]


@dataclass(frozen=True)
class Ask:
    """An exchange, told once to each worker that has a part in it."""

    number: int
    call: Call
    signature: Signature
    down: Packed
    buffers: Packed
    frozen: Packed


def asked(exchange: Exchange, number: int, put: Move) -> tuple[Ask, dict[int, Packed]]:
    """An exchange as workers are told of it, and what is for single clients."""
    packed = {f"down/{p}": v for p, v in pack(exchange.down).items()}
    packed |= {f"buffers/{i}": b for i, b in enumerate(exchange.buffers)}
    packed |= {f"frozen/{name}": v for name, v in exchange.frozen.items()}
    for client, message in exchange.private.items():
        packed |= {f"{client}/{p}": v for p, v in pack(message).items()}
    parts: dict[str, Packed] = {"down": {}, "buffers": {}, "frozen": {}}
    parts |= {str(client): {} for client in exchange.private}
    for path, leaf in put(packed).items():
        part, _, name = path.partition("/")
        parts[part][name] = leaf
    call, kinds = Call.of(exchange), exchange.signature
    ask = Ask(number, call, kinds, parts["down"], parts["buffers"], parts["frozen"])
    return ask, {client: parts[str(client)] for client in exchange.private}


@dataclass(frozen=True)
class Visit:
    """One client of the current exchange, and where its state is and goes."""

    client: int
    private: Packed | None
    mine: Packed | None = None
    """Its state, where that travels with the visit and its reply."""
    read: int = -1
    """The row of its state, where that is in shared memory; −1: it has none yet."""
    write: int = -1
    slot: str = ""
    """The block for the reply."""


@dataclass(frozen=True)
class Visits:
    """Clients of the current exchange whose visits are one task."""

    tasks: tuple[Visit, ...]
    slot: str = ""

    @property
    def client(self) -> int:
        """The first of them, to speak of."""
        return self.tasks[0].client


class Told(NamedTuple):
    """What a worker says of a visit besides the message."""

    speaks: bool
    work: Work
    is_finite: bool
    training: Training | None


def packed_reply(reply: Reply) -> tuple[Packed, Told]:
    """A reply as it travels, without the client's state."""
    packed = {**pack(reply.up), **{f"#buffer.{i}": b for i, b in enumerate(reply.buffers)}}
    return packed, Told(reply.up is not None, reply.work, reply.is_finite, reply.training())


def reply_from(kinds: Signature, packed: Packed, told: Told) -> Reply:
    """The inverse."""
    buffers = tuple(v for k, v in packed.items() if k.startswith("#buffer"))
    up = unpack(kinds.up, packed) if told.speaks else None
    return Reply(up, None, buffers, told.work, told.is_finite, training=lambda: told.training)


@dataclass(frozen=True)
class Evaluation:
    """A few chunks of the test data."""

    number: int
    """Of the model that is evaluated."""
    chunks: range
    block: str = ""
    """Where the model is, unless it comes with the message."""
    where: Packed = field(default_factory=dict[str, Any])


def packed_model(shown: EvaluatedModel) -> Packed:
    """A model to be evaluated, as it travels."""
    packed: Packed = {"w": shown.w, "temperature": shown.temperature}
    packed |= {f"buffer.{i}": b for i, b in enumerate(shown.buffers)}
    packed |= {f"frozen/{name}": value for name, value in shown.frozen.items()}
    return packed if shown.allowed is None else {**packed, "allowed": shown.allowed}


def model_from(packed: Packed) -> EvaluatedModel:
    """The inverse."""
    frozen = {k.removeprefix("frozen/"): v for k, v in packed.items() if k.startswith("frozen/")}
    buffers = tuple(v for k, v in packed.items() if k.startswith("buffer."))
    return EvaluatedModel(
        packed["w"], buffers, packed.get("allowed"), packed["temperature"], frozen
    )


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


class Run:
    """One run as any worker knows it."""

    def __init__(self, setup: Setup, trees: dict[str, Any], base: Base | None = None) -> None:
        """`base` is where this machine holds what is frozen, if all its workers see it there."""
        setup.settings.apply()
        split = _split_of(trees, setup)
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
        few = torch.from_numpy(_split_of(trees, setup).first(TRIED))
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


class Failure(NamedTuple):
    """Why a worker could not do something: a sentence, and the lines that led there."""

    said: str
    lines: str
    is_refusal: bool

    @classmethod
    def of(cls, what: str, error: Exception) -> Failure:
        if isinstance(error, InputError) and what != UNTOLD:  # as it is raised without workers
            return cls(str(error), traceback.format_exc(), True)
        return cls(f"{what}: {sentence(error)}", traceback.format_exc(), False)

    def error(self) -> InputError | RunError:
        """As the parent raises it; the lines are for those who ask."""
        error = InputError(self.said) if self.is_refusal else RunError(self.said)
        error.add_note(self.lines)
        return error


UNTOLD = "a worker cannot take up the run"
FAILED = {
    "visit": "a client method failed",
    "visits": "a client method failed",
    "evaluate": "the evaluation failed",
}


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
