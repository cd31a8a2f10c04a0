"""Visits one after another in this process: the one loop that visits clients and folds replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

from fedrift.backends.backend import Fold, RunParts
from fedrift.backends.profiling import OFF, VISIT, Meter, account
from fedrift.backends.visit import Call, Reply, VisitInput, Visitor
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Done, Evaluator
from fedrift.core.exchange import Exchange, Outcome

Order = Callable[[Iterable[int]], Sequence[int]]
"""In which order clients are visited."""

Visit = Callable[[Exchange, VisitInput], Reply]

Watch = Callable[[Visit, Exchange, VisitInput], Reply]
"""Is called instead of each visit, which it makes; sees what goes in and what comes out."""


class ClientStates(Protocol):
    """Where what clients keep is read and written."""

    def read(self, path: str, client: int) -> Any: ...
    def keep(self, path: str, client: int, state: Any) -> None: ...
    def drop(self, path: str, client: int) -> None: ...


def deliver(
    exchange: Exchange,
    clients: Sequence[int],
    visitor: Visitor,
    states: ClientStates,
    *,
    order: Order = sorted,
    watch: Watch | None = None,
    meter: Meter = OFF,
) -> Outcome:
    """Visit the clients, one by one if they are watched, and fold in client-id order."""
    call, fold, path = Call.of(exchange), Fold(exchange), visitor.state_path(exchange.phase)
    groups = visitor.groups(exchange.phase, clients) if watch is None else [[c] for c in clients]
    first = {group[0]: group for group in groups}
    waiting, came = deque(sorted(clients)), dict[int, Reply]()

    def visit(exchange: Exchange, *given: VisitInput) -> list[Reply]:
        return visitor.visits(call, given, exchange.down, exchange.buffers, exchange.frozen)

    def one(exchange: Exchange, given: VisitInput) -> Reply:
        return visit(exchange, given)[0]

    for begin in order(first):
        group = first[begin]
        with meter.span(VISIT):
            began = perf_counter()
            given = [VisitInput(c, exchange.private.get(c), states.read(path, c)) for c in group]
            replies = visit(exchange, *given) if watch is None else [watch(one, exchange, given[0])]
            each = (perf_counter() - began) / len(group)
        with meter.span("fold"):
            for client, reply in zip(group, replies, strict=True):
                account(reply.work, each)
                came[client] = reply
            while waiting and waiting[0] in came:
                client = waiting.popleft()
                reply = came.pop(client)
                counts = fold.add(client, int(visitor.clients.sizes[client]), reply)
                if exchange.is_evaluation:
                    continue
                if counts:
                    states.keep(path, client, reply.mine)
                else:
                    states.drop(path, client)
    meter.add(fold.work.spent)
    return fold.outcome()


class InProcess:
    """The loop as a backend."""

    workers = 0

    def __init__(
        self,
        visitor: Visitor,
        states: ClientStates,
        evaluator: Evaluator | None,
        *,
        order: Order = sorted,
        watch: Watch | None = None,
        meter: Meter = OFF,
    ) -> None:
        self._visitor, self._states, self._evaluator = visitor, states, evaluator
        self._order, self._watch, self._meter = order, watch, meter

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        return deliver(
            exchange,
            clients,
            self._visitor,
            self._states,
            order=self._order,
            watch=self._watch,
            meter=self._meter,
        )

    def evaluate(self, shown: EvaluatedModel) -> Done:
        with self._meter.span("evaluate"):
            return Done([] if self._evaluator is None else self._evaluator.chunks(shown))

    def close(self) -> None:
        return None


def make(run: RunParts) -> InProcess:
    """The backend of a run."""
    return InProcess(run.visitor, run.store, run.evaluator, meter=run.meter)
