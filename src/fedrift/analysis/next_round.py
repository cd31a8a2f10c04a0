"""The coming round, made by the real algorithm from a saved state, seen and then forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrift.backends import in_process
from fedrift.backends.visit import Reply, VisitInput, Visitor
from fedrift.core.composition import address
from fedrift.core.exchange import Cohort, Exchange, NoReply, Outcome
from fedrift.core.flat import Vec
from fedrift.core.phases import owner_of
from fedrift.core.problem import Problem
from fedrift.engine.plan import Task
from fedrift.storage.client_state import Store

# How a long measurement tells how long it may take, and how far it is.


class Watch(Protocol):
    """Is told before a long piece of work how long it may take, and after every step of it."""

    def begin(self, what: str, steps: int, seconds: float) -> None:
        """`seconds` of 0 means that nobody knows: the first steps will show."""
        ...

    def step(self) -> None: ...


class Unwatched:
    """Nobody looks."""

    def begin(self, what: str, steps: int, seconds: float) -> None:
        return None

    def step(self) -> None:
        return None


@dataclass(frozen=True)
class Visited:
    """What a client did with the model it was sent."""

    client: int
    samples: int
    start: Vec
    """The global model it began with."""
    w: Vec
    """Its own model after its local steps."""
    buffers: tuple[Tensor, ...]
    steps: int

    @property
    def delta(self) -> Vec:
        return self.w - self.start


def rehearse(
    task: Task,
    state: Any,
    buffers: tuple[Tensor, ...],
    store: Store | None,
    round: int,
    clients: Sequence[int],
    watch: Watch | None = None,
    *,
    cohort: Sequence[int] = (),
) -> dict[int, Visited]:
    """Local models of those of the clients that trained in the round; empty if none did.

    An algorithm that asks twice tells its clients in between what all of the `cohort` have said,
    so that all of them are rehearsed then.
    """
    visited, exchanges = _rehearsed(task, state, buffers, store, round, clients, watch)
    whole = sorted({*clients, *cohort})
    if exchanges > 1 and len(whole) > len(clients):
        visited, _ = _rehearsed(task, state, buffers, store, round, whole, watch)
    return {client: seen for client, seen in visited.items() if client in clients}


def _rehearsed(
    task: Task,
    state: Any,
    buffers: tuple[Tensor, ...],
    store: Store | None,
    round: int,
    clients: Sequence[int],
    watch: Watch | None,
) -> tuple[dict[int, Visited], int]:
    """Their local models, and how often they were asked."""
    from fedrift.core.isolation import one_thread

    stage = _Stage(task, store, task.algorithm.model(state), watch or Unwatched())
    cohort = Cohort(
        partial(address, task.algorithm),
        task.problem,
        [c for c in clients if task.split.sizes[c]],
        round=round,
        seed=task.seed,
        buffers=buffers,
        deliver=stage.deliver,
    )
    with one_thread():
        try:
            task.algorithm.round(state, cohort)
        except NoReply:
            return {}, 0
    return stage.visited, stage.exchanges


class _Unwritten:
    """Client states over those of a store, which stays as it is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[tuple[str, int], Any] = {}

    def read(self, path: str, client: int) -> Any:
        held = self._kept.get((path, client))
        return self._store.read(path, client) if held is None else held

    def keep(self, path: str, client: int, state: Any) -> None:
        self._kept[path, client] = state

    def drop(self, path: str, client: int) -> None:
        self._kept.pop((path, client), None)


class _Stage:
    """Delivers exchanges in this process and looks at every visit."""

    def __init__(self, task: Task, store: Store | None, model: Vec, watch: Watch) -> None:
        self.task, self._model, self._watch = task, model, watch
        self.visited: dict[int, Visited] = {}
        self.exchanges = 0
        alone = replace(task.problem, stack="off")  # so that the bound vector tells where it ended
        self._visitor = Visitor(task.algorithm, alone, task.split, task.augment)
        self._states = _Unwritten(store or Store(task.algorithm, task.problem))
        self._start: Vec | None = None

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        self.exchanges += 1
        return in_process.deliver(exchange, clients, self._visitor, self._states, watch=self._look)

    def _look(self, visit: in_process.Visit, exchange: Exchange, given: VisitInput) -> Reply:
        reply = visit(exchange, given)
        if reply.work.steps:
            if reply.is_finite:
                problem = self._visitor.owner(owner_of(exchange.phase))[1]
                seen = self._seen(problem, given.client, reply.buffers, reply.work.steps)
                before = self.visited.get(given.client, seen)
                self.visited[given.client] = replace(seen, start=before.start)
            self._watch.step()
        return reply

    def _seen(
        self, problem: Problem, client: int, buffers: tuple[Tensor, ...], steps: int
    ) -> Visited:
        # training binds the model's vector: it stands where the last local step has left it
        step, whole = problem.step, self.task.problem
        start, w = step.start, step.w.clone()
        if problem.layout != whole.layout:
            placed = whole.layout.placed
            start, w = (placed(self._model, problem.layout, v) for v in (start, w))
        # most algorithms send the same model to all: it is kept once
        if self._start is None or not torch.equal(self._start, start):
            self._start = start.clone()
        n = int(self.task.split.sizes[client])
        return Visited(client, n, self._start, w, buffers, steps)
