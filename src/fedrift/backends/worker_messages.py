"""What is said between a run and its workers, processes of this machine as well as Ray's.

How tensors travel is up to the backend, which puts the leaves of a message somewhere and gets them
there.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import torch
from torch import Tensor

from fedrift.backends.visit import Call, Reply, Visitor
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.evaluation import ChunkMetric, Evaluator
from fedrift.core.exchange import Exchange, Signature
from fedrift.core.flat_model import hollow
from fedrift.core.isolation import TorchSettings
from fedrift.core.messages import Packed, Size, nbytes, pack, unpack
from fedrift.core.problem import Problem
from fedrift.core.site import Augment, Site, Work
from fedrift.core.training_report import Training
from fedrift.data.split import Make, Split
from fedrift.errors import InputError, RunError, sentence
from fedrift.storage.client_state import RowLayout
from fedrift.storage.shared_memory import skeleton

OWN = ("own_parts", "own_ends")

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


def split_of(trees: dict[str, Any], setup: Setup) -> Split:
    """The clients' data again, and what they test on."""
    x, y, own = trees["x"], trees["y"], None
    if OWN[0] in trees:
        where = trees[OWN[0]], trees[OWN[1]]
        own = Split.from_flat(trees.get("own_x", x), trees.get("own_y", y), *where, setup.make_test)
    return Split.from_flat(x, y, trees["parts"], trees["ends"], setup.make, own)


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


# What went wrong.


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
