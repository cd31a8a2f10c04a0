"""What server and nodes write to each other: a small header and arrays, no code and no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedrift.backends.codec import Form, Piece, Pieces, Refused
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import parts, personal_path
from fedrift.core.evaluation import evaluation_signature
from fedrift.core.exchange import Signature, signature
from fedrift.core.phases import EVALUATE, owner_of
from fedrift.core.problem import Problem
from fedrift.core.training_report import Training
from fedrift.errors import InputError

ABOUT, VISIT = "query", "train"  # the two kinds of envelopes
LARGEST_NUMBER = 1 << 62
LONGEST_TEXT = 200

Value = str | int | float
V = TypeVar("V", str, int, float)


@dataclass(frozen=True)
class Envelope:
    """One message in either direction."""

    header: Mapping[str, Value]
    parts: Mapping[str, Mapping[str, Piece]] = field(default_factory=dict[str, Pieces])

    def part(self, name: str) -> Mapping[str, Piece]:
        return self.parts.get(name, {})


def read_header(envelope: Envelope, name: str, kind: type[V]) -> V:
    """A value of the header that is of its kind; numbers are not negative below −1 nor huge."""
    value: Any = envelope.header.get(name)
    if type(value) is not kind:
        raise Refused(f"header '{name}' is {str(value)[:40]!r}, expected is a {kind.__name__}")
    if isinstance(value, int) and not -1 <= value < LARGEST_NUMBER:
        raise Refused(f"header '{name}' is {value}, which is out of range")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise Refused(f"header '{name}' is longer than {LONGEST_TEXT} characters")
    return value


# What training reports at a node, as numbers of a reply's header.

REPORT = {f"train_{name}": int if name == "weight" else float for name in Training._fields}
"""Its names and kinds; those of the accuracy are left out where there are no classes."""


def report_header(training: Training | None) -> dict[str, Value]:
    """A report as it travels."""
    said = {} if training is None else training._asdict()
    return {f"train_{name}": value for name, value in said.items() if value is not None}


def report_from(envelope: Envelope) -> Training | None:
    """The inverse, from a header that nobody vouches for."""
    said = [name for name in REPORT if name in envelope.header]
    if not said:
        return None
    values: list[Any] = [read_header(envelope, name, REPORT[name]) for name in said]
    if len(values) not in (4, len(REPORT)) or said != list(REPORT)[: len(said)] or values[0] < 1:
        raise Refused("what it reports of its training is not whole")
    return Training(*values)


def declared_signature(
    root: Algorithm[Any, Any], phase: str, problem: Problem | None = None
) -> Signature:
    """The classes of a phase; refused if it is no client method of the algorithm, nor, where there
    is a problem, the evaluation at clients."""
    path, _, name = phase.rpartition(".")
    if problem is not None and name == EVALUATE:
        if path != (personal_path(root, problem) or ""):
            raise Refused(f"phase '{phase[:60]}' is not of whoever makes the clients' own models")
        return evaluation_signature(root, problem, path)
    owner = next((node for where, node in parts(root) if where == owner_of(phase)), None)
    method = None if owner is None or name.startswith("_") else getattr(owner, name, None)
    if method is None or getattr(method, "__self__", None) is not owner:
        raise Refused(f"phase '{phase[:60]}' is not a client method of the algorithm")
    try:
        classes = signature(method)
    except (InputError, TypeError, NameError, AttributeError):
        raise Refused(f"phase '{phase[:60]}' is not a client method of '{path}'") from None
    if "site" not in method.__func__.__annotations__:
        raise Refused(f"phase '{phase[:60]}' is not a client method of '{path}'")
    return classes


def buffer_forms(problem: Problem) -> dict[str, Form]:
    """What training moves beside the parameters, by number."""
    return {str(i): Form.like(problem.rest[name]) for i, name in enumerate(problem.moving)}


def frozen_forms(problem: Problem) -> dict[str, Form]:
    """Everything in the model that may be decided during a run."""
    named = {**problem.rest, **problem.layout.named(problem.w0)}
    return {name: Form.like(value) for name, value in named.items()}


def digest(pieces: Mapping[str, Piece]) -> str:
    """Short hash of arrays and their names; empty for none."""
    if not pieces:
        return ""
    hashed = hashlib.sha256()
    for path in sorted(pieces):
        one = pieces[path]
        hashed.update(f"{path} {one.dtype} {one.shape} ".encode() + one.data)
    return hashed.hexdigest()[:16]
