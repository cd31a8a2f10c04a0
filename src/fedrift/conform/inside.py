"""A run in this process of which everything can be seen: server and client states, every visit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from torch import Tensor

from fedrift.algorithm import owner_of
from fedrift.backends.evaluation import Done
from fedrift.backends.fold import Fold
from fedrift.backends.visit import Call, Reply, Visitor
from fedrift.books import Books
from fedrift.conform.problem import Trial
from fedrift.conform.runs import settled
from fedrift.conform.subject import Subject
from fedrift.engine import Engine, Finished, Progress, RoundReport, Settings
from fedrift.exchange import Exchange, Outcome
from fedrift.messages import Packed, pack
from fedrift.site import Site
from fedrift.store import Store

Order = Callable[[Iterable[int]], Sequence[int]]


def backwards(clients: Iterable[int]) -> list[int]:
    """The other way round."""
    return sorted(clients, reverse=True)


def copied(packed: Packed) -> Packed:
    return {p: v.clone() if isinstance(v, Tensor) else v for p, v in packed.items()}


def different(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Paths of the leaves that are not the same bit for bit."""
    return [path for path in {**a, **b} if not _same(a.get(path, a), b.get(path, b))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return alike and a.numpy().tobytes() == b.numpy().tobytes()
    return type(a) is type(b) and repr(a) == repr(b)


@dataclass(frozen=True)
class Seen:
    """One visit, in copies: what came in, what went out."""

    call: Call
    client: int
    down: Packed
    private: Packed
    mine: Packed
    buffers: tuple[Tensor, ...]
    frozen: Mapping[str, Tensor]
    up: Packed
    new: Packed

    def __str__(self) -> str:
        return f"'{self.call.phase}' at client {self.client} in round {self.call.round + 1}"


class Watching:
    """A backend that visits in the order it is told to and folds as every backend does."""

    workers = 0

    def __init__(self, visitor: Visitor, store: Store, order: Order) -> None:
        self._visitor, self._store, self._order = visitor, store, order
        self.visits: list[Seen] = []
        self.written: list[str] = []
        """What was written to though it belongs to others."""

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        path = owner_of(exchange.phase)
        table, sizes = self._store.tables.get(path), self._visitor.clients.sizes
        replies = {c: self._visit(exchange, c, path) for c in self._order(clients)}
        fold = Fold(exchange)
        for client, reply in sorted(replies.items()):
            if fold.add(client, int(sizes[client]), reply) and table is not None:
                slot = table.reserve()
                table.rows.write(slot, reply.mine)
                table.keep(client, slot)
        return fold.outcome()

    def _visit(self, exchange: Exchange, client: int, path: str) -> Reply:
        call = Call(exchange.phase, exchange.round, exchange.seed, exchange.temperature)
        private, mine = exchange.private.get(client), self._store.read(path, client)
        given = {"down": exchange.down, "private": private, "mine": mine}
        before = {name: copied(pack(value)) for name, value in given.items()}
        reply = self._visitor.visit(
            call, client, exchange.down, private, mine, exchange.buffers, exchange.frozen
        )
        for name, value in given.items():
            for leaf in different(before[name], pack(value)):
                self.written.append(f"'{call.phase}' wrote to {name}.{leaf}")
        seen = Seen(
            call=call,
            client=client,
            **before,
            buffers=tuple(b.clone() for b in exchange.buffers),
            frozen=dict(exchange.frozen),
            up=copied(pack(reply.up)),
            new=copied(pack(reply.mine)),
        )
        self.visits.append(seen)
        return reply

    def evaluate(self, shown: Any) -> Done:
        return Done([])

    def close(self) -> None:
        return None


class Inside:
    """One run of a trial. `run` may be called once."""

    def __init__(
        self,
        what: Subject | str,
        trial: Trial,
        order: Order = sorted,
        site: Callable[..., Any] = Site,
    ) -> None:
        task = settled(what, trial)
        self.trial, self.task = trial, task
        self.algorithm, self.problem, self.split = task.algorithm, task.problem, task.split
        self.algorithm.check(self.problem)
        self.before = cloudpickle.dumps((self.algorithm, self.problem, self.split))
        """Copies made before the first round."""
        self.store = Store(self.algorithm, self.problem)
        visitor = Visitor(self.algorithm, self.problem, self.split, task.augment, site)
        self.backend = Watching(visitor, self.store, order)
        self.reports: list[RoundReport] = []

    def client(self, client: int, path: str = "") -> Any:
        """The state a client keeps now."""
        return self.store.read(path, client)

    def rows(self) -> dict[tuple[str, int], Packed]:
        """Copies of the states of all clients."""
        clients = range(len(self.split))
        return {
            (path, c): copied(pack(self.store.read(path, c)))
            for path in self.store.tables
            for c in clients
        }

    def run(self, after: Callable[[RoundReport], None] | None = None) -> Finished:
        """All rounds; `after` is called when a round is committed."""
        start = self.algorithm.server(self.problem)
        old = [(start, copied(pack(start)))]

        def note(report: RoundReport) -> None:
            state, before = old.pop()
            if state is not report.state:  # the same object: a void round
                for leaf in different(before, pack(state)):
                    self.backend.written.append(f"'round' wrote to its old state's {leaf}")
            old.append((report.state, copied(pack(report.state))))
            self.reports.append(report)
            if after is not None:
                after(report)

        progress = Progress(start, tuple(self.problem.rest[n] for n in self.problem.moving))
        engine = Engine(
            self.algorithm,
            self.problem,
            self.backend,
            self.store,
            Settings(
                rounds=self.trial.rounds,
                participation=self.task.participation,
                seed=self.trial.seed,
                eval_every=self.trial.rounds,
                sizes=self.split.sizes,
            ),
            Books(self.algorithm, self.store, progress, lambda chunks: {}, on_round=note),
        )
        try:
            return engine.run()
        finally:
            self.store.close()
