"""Visits one after another in this process; with `wire`, through the codec and watched."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from torch import Tensor

from fedrift.backends.backend import Fold
from fedrift.backends.codec import through
from fedrift.backends.profiling import OFF, Meter, account
from fedrift.backends.visit import Call, Reply, VisitInput, Visitor
from fedrift.core.algorithm import EvaluatedModel, Exchange, Outcome, owner_of
from fedrift.core.evaluation import Done, Evaluator
from fedrift.core.messages import pack
from fedrift.storage.client_state import Store, Table


class InProcess:
    """A loop. `wire` encodes and decodes everything and checks that `down` was not written to."""

    workers = 0

    def __init__(
        self,
        visitor: Visitor,
        store: Store,
        evaluator: Evaluator | None,
        wire: bool = False,
        meter: Meter = OFF,
    ) -> None:
        self._visitor, self._store, self._evaluator = visitor, store, evaluator
        self._wire, self._meter = wire, meter

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        call = Call.of(exchange)
        fold = Fold(exchange)
        path = owner_of(exchange.phase)
        table = self._store.tables.get(path)
        for group in self._visitor.groups(exchange.phase, clients):
            began = perf_counter()
            replies = self._visits(call, exchange, group, path)
            each = (perf_counter() - began) / len(group)
            with self._meter.span("fold"):
                for client, reply in zip(group, replies, strict=True):
                    account(reply.work, each)
                    self._fold(fold, table, client, reply)
        self._meter.add(fold.work.spent)
        return fold.outcome()

    def _fold(self, fold: Fold, table: Table | None, client: int, reply: Reply) -> None:
        counts = fold.add(client, int(self._visitor.clients.sizes[client]), reply)
        if table is not None and counts:
            slot = table.reserve()
            table.rows.write(slot, reply.mine)
            table.keep(client, slot)
        elif table is not None:
            table.drop(client)

    def _visits(
        self, call: Call, exchange: Exchange, group: Sequence[int], path: str
    ) -> Sequence[Reply]:
        if self._wire:
            return [self._wired(call, exchange, client, path) for client in group]
        callers = [VisitInput(c, exchange.private.get(c), self._store.read(path, c)) for c in group]
        return self._visitor.visits(call, callers, exchange.down, exchange.buffers, exchange.frozen)

    def _wired(self, call: Call, exchange: Exchange, client: int, path: str) -> Reply:
        down, private = exchange.down, exchange.private.get(client)
        mine = self._store.read(path, client)
        kinds, owner = exchange.signature, self._visitor.owner(path)
        down = through(kinds.down, down, *owner)
        private = through(kinds.private, private, *owner)
        mine = through(kinds.state, mine, *owner)
        before = _digest(down, private, mine)
        reply = self._visitor.visit(
            call, client, down, private, mine, exchange.buffers, exchange.frozen
        )
        if _digest(down, private, mine) != before:
            raise AssertionError(f"'{exchange.phase}' wrote to its message or its old state")
        up = through(kinds.up, reply.up, *owner)
        new = through(kinds.state, reply.mine, *owner)
        return Reply(up, new, reply.buffers, reply.work, reply.is_finite)

    def evaluate(self, shown: EvaluatedModel) -> Done:
        with self._meter.span("evaluate"):
            return Done([] if self._evaluator is None else self._evaluator.chunks(shown))

    def close(self) -> None:
        return None


def _digest(*values: Any) -> bytes:
    digest = hashlib.sha256()
    for value in values:
        for path, leaf in pack(value).items():
            is_tensor = isinstance(leaf, Tensor)
            content = leaf.cpu().numpy().tobytes() if is_tensor else repr(leaf).encode()
            digest.update(path.encode() + content)
    return digest.digest()
