"""Mistakes that the fuzzer must find: each breaks the promise of the same bits in one place.

`plant` puts one into this process and, by a variable of the environment, into those that are
forked from a server which has imported this module: workers have it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fedrift.backends import processes, visit
from fedrift.backends.backend import Fold
from fedrift.core import evaluation, isolation
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.isolation import Memory, TorchSettings
from fedrift.core.phases import owner_of
from fedrift.engine import check_objects, recorder

VARIABLE = "FEDRIFT_BITS_MUTANT"


def nothing(*_: Any, **__: Any) -> None:
    pass


def memory() -> None:
    """What a module remembers is not put back between clients, and nobody probes for it."""
    Memory.put_back = nothing  # type: ignore[method-assign]
    check_objects.check_isolated = nothing


def arrival() -> None:
    """Replies are folded in the order in which they come."""

    def deliver(self: Any, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold, left = Fold(exchange), len(clients)
        table = self._store.tables.get(owner_of(exchange.phase))
        self._pool.submit(self._visits(exchange, clients, table))
        while left:
            peer, job, content = self._answers.get()
            if isinstance(content, BaseException):
                raise content
            left -= len(self._fold(fold, exchange, table, peer, job, content))
        return fold.outcome()

    processes.Processes.deliver = deliver


def evaluated() -> None:
    """Evaluation draws from wherever the generators stand."""
    evaluation.seed_alike = nothing


def visited() -> None:
    """So do visits."""
    visit.seed_all = nothing


def switches() -> None:
    """Workers do not take over the settings of torch."""
    TorchSettings.apply = nothing  # type: ignore[method-assign]


def lent() -> None:
    """The caller's generators are not given back."""

    @contextmanager
    def kept() -> Generator[None]:
        yield

    isolation.borrowed_generators = kept  # type: ignore[assignment]


def checkpoint() -> None:
    """A run that goes on has lost its running statistics."""
    usual = recorder.find

    def find(*words: Any) -> Any:
        point, notes = usual(*words)
        if point is None:
            return point, notes
        empty = tuple(torch.zeros_like(b) for b in point.buffers)
        return replace(point, buffers=empty), notes

    recorder.find = find


MUTANTS: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (memory, arrival, evaluated, visited, switches, lent, checkpoint)
}


def plant(name: str) -> None:
    os.environ[VARIABLE] = name
    MUTANTS[name]()


if VARIABLE in os.environ:
    MUTANTS[os.environ[VARIABLE]]()
