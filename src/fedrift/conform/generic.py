"""Checks for any algorithm: its form, its messages, order, wire, backends, resuming."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedrift.backends import context, hidden_main
from fedrift.backends.visit import Visitor
from fedrift.conform.bench import Bench
from fedrift.conform.report import Cell, sum_up
from fedrift.conform.runs import run
from fedrift.conform.subject import Subject
from fedrift.conform.watched_run import Inside, Seen, backwards, differing_fields
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import parts
from fedrift.core.exchange import signature
from fedrift.core.messages import Packed, hints, pack, unpack
from fedrift.core.phases import owner_of
from fedrift.engine.callbacks import RoundReport

PURE = "messages and states belong to nobody: return new ones"
INTERRUPTED_AT = 3


def form(subject: Subject, bench: Bench) -> Cell:
    """Frozen dataclasses all through, annotated client methods, replies that can be reduced."""
    algorithm = subject.make(bench.trial.local, bench.trial.rounds)
    faults = [fault for path, node in parts_of(algorithm) for fault in _frozen(node, path)]
    if faults:
        return Cell(False, "; ".join(faults))
    inside = bench.watched(subject)
    phases = dict.fromkeys(seen.call.phase for seen in inside.backend.visits)
    if not phases:
        return Cell(False, "no client was ever asked: call cohort.ask in round")
    states = [inside.algorithm.server(inside.problem), *inside.store.initial.values()]
    form_faults = [fault for state in states for fault in _declared(type(state), "state")]
    for phase in phases:
        owner, _, name = phase.rpartition(".")
        node = dict(parts(inside.algorithm))[owner]
        kinds = signature(getattr(node, name))
        for side, kind in (("down", kinds.down), ("up", kinds.up), ("state", kinds.state)):
            form_faults += _declared(kind, f"{side} of '{phase}'")
    return sum_up(form_faults, len(phases), "client method")


def parts_of(algorithm: Algorithm[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The algorithm and what it wraps; only itself if it is no dataclass."""
    return parts(algorithm) if is_dataclass(algorithm) else iter([("", algorithm)])


def _frozen(node: Any, path: str) -> Iterator[str]:
    kind = type(node).__name__
    if not is_dataclass(node):
        yield f"{kind} is no dataclass: put @dataclass(frozen=True) above the class"
        return
    if not getattr(type(node), "__dataclass_params__").frozen:  # noqa: B009
        yield f"{kind} can be assigned to: write @dataclass(frozen=True)"
    for f in fields(node):
        value = getattr(node, f.name)
        if isinstance(value, (list, dict, set, bytearray)):
            place = f"{path}.{f.name}" if path else f.name
            yield f"field '{place}' is a {type(value).__name__}, which can change: use a tuple"


def _declared(kind: type | None, what: str) -> Iterator[str]:
    if kind is None or kind is type(None):
        return
    if not is_dataclass(kind) or not getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
        yield f"{kind.__name__} ({what}) is not declared with @message or @state"
        return
    try:
        hints(kind)
    except NameError as error:
        yield f"{kind.__name__} ({what}): the annotation of a field cannot be read: {error}"


def payload(subject: Subject, bench: Bench) -> Cell:
    """Nobody writes to a message, to a client's old state or to the server's."""
    inside = bench.watched(subject)
    written = dict.fromkeys(inside.backend.written)
    cell = sum_up(written, len(inside.backend.visits), "visit")
    return Cell(False, f"{cell.text}; {PURE}") if written else cell


def order(subject: Subject, bench: Bench) -> Cell:
    """The last client visited first: the same bits."""
    other = Inside(subject, bench.trial, backwards)
    other.run()
    last, end = bench.watched(subject).reports[-1], other.reports[-1]
    model = {"model": last.weights}, {"model": end.weights}
    wrong = differing_fields(pack(last.state) | model[0], pack(end.state) | model[1])
    if wrong:
        return Cell(
            False,
            f"{wrong[0]} depends on the order in which clients are visited: a visit leaves "
            "something behind that the next one finds",
        )
    return Cell(True, f"{bench.trial.rounds} rounds")


def wire(subject: Subject, bench: Bench) -> Cell:
    """Every message packed and unpacked: the same bits."""
    there = run(subject, bench.trial, backend="wire").fingerprint
    if there != bench.fingerprint(subject):
        return Cell(False, "packing and unpacking its messages changes the result")
    return Cell(True, there)


def backends(subject: Subject, bench: Bench) -> Cell:
    """In this process and with workers: the same bits."""
    there = run(subject, bench.trial, pool=bench.pool).fingerprint
    if there != bench.fingerprint(subject):
        return Cell(False, f"with {bench.pool.workers} workers it ends elsewhere than without")
    return Cell(True, f"{bench.pool.workers} workers")


class Interrupted(Exception):
    """Stands for whatever may end a run."""


def resume(subject: Subject, bench: Bench) -> Cell:
    """Interrupted, then continued from its folder: the same bits."""

    def stop(report: RoundReport) -> None:
        if report.round == INTERRUPTED_AT:
            raise Interrupted

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        with suppress(Interrupted):
            run(subject, bench.trial, out=out, on_round=stop)
        # in between another whole run: what one leaves behind in memory must not help the next
        whole = run(subject, bench.trial).fingerprint
        again = run(subject, bench.trial, out=out).fingerprint
    if again != whole:
        return Cell(
            False,
            "a run that was interrupted and continued ends elsewhere: everything that lasts "
            "belongs into the server's or a client's state",
        )
    return Cell(True, f"after round {INTERRUPTED_AT} of {bench.trial.rounds}")


# Isolation: nothing reaches a client but `down` and its own state.

ADVICE = "a client method may use only site, down, mine and the algorithm's own fields"
Answer = tuple[Packed, Packed] | str


def check(subject: Subject, bench: Bench) -> Cell:
    """Repeats all visits of a run elsewhere and compares every bit of the answers."""
    inside = bench.watched(subject)
    visits = inside.backend.visits[::-1]
    for seen, answer in zip(visits, _elsewhere(inside.before, visits), strict=True):
        if isinstance(answer, str):
            return Cell(False, f"{seen} fails where it knows nothing else: {answer}; {ADVICE}")
        up, new = answer
        wrong = [f"up.{p}" for p in differing_fields(seen.up, up)]
        wrong += [f"mine.{p}" for p in differing_fields(seen.new, new)]
        if wrong:
            return Cell(
                False,
                f"{seen} answers otherwise where it knows nothing else ({wrong[0]}); {ADVICE}",
            )
    return Cell(True, f"{len(visits)} visits repeated")


def _elsewhere(before: bytes, visits: Sequence[Seen]) -> list[Answer]:
    chosen: Any = context()
    ours, theirs = chosen.Pipe(duplex=False)
    process = chosen.Process(target=_repeat, args=(theirs, before, pickle.dumps(visits)))
    with hidden_main():
        process.start()
    theirs.close()
    try:
        answers: list[Answer] = pickle.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        answers = [f"the process ended with exit code {process.exitcode}"] * len(visits)
    process.join()
    ours.close()
    return answers


def _repeat(pipe: Connection, before: bytes, visits: bytes) -> None:
    """What the other process does."""
    torch.set_num_threads(1)
    algorithm, problem, split = pickle.loads(before)
    visitor = Visitor(algorithm, problem, split)
    answers = [_answer(visitor, seen) for seen in pickle.loads(visits)]
    pipe.send_bytes(pickle.dumps(answers))  # bytes: torch would share the tensors' memory instead


def _answer(visitor: Visitor, seen: Seen) -> Answer:
    try:
        owner, _ = visitor.owner(owner_of(seen.call.phase))
        kinds = signature(getattr(owner, seen.call.phase.rpartition(".")[2]))
        state = visitor.initial(visitor.state_path(seen.call.phase))
        reply = visitor.visit(
            seen.call,
            seen.client,
            unpack(kinds.down, seen.down),
            unpack(kinds.private, seen.private) if seen.private else None,
            unpack(None if state is None else type(state), seen.mine, state),
            seen.buffers,
            seen.frozen,
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return pack(reply.up), pack(reply.mine)
