"""Nothing reaches a client but `down` and its own state: visits are repeated where nothing else is.

Every visit of a run is repeated in a process that never saw the server's rounds, on a copy of
the algorithm made before the first of them, the last visit first. A method that reads something
left behind on `self`, in a module or by another client either fails there or answers otherwise.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedrift.algorithm import owner_of
from fedrift.backends import context, hidden_main
from fedrift.backends.visit import Visitor
from fedrift.conform.bench import Bench
from fedrift.conform.inside import Seen, different
from fedrift.conform.report import Cell
from fedrift.conform.subject import Subject
from fedrift.exchange import signature
from fedrift.messages import Packed, pack, unpack

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
        wrong = [f"up.{p}" for p in different(seen.up, up)]
        wrong += [f"mine.{p}" for p in different(seen.new, new)]
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
        reply = visitor.visit(
            seen.call,
            seen.client,
            unpack(kinds.down, seen.down),
            unpack(kinds.private, seen.private) if seen.private else None,
            unpack(kinds.state, seen.mine),
            seen.buffers,
            seen.frozen,
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return pack(reply.up), pack(reply.mine)
