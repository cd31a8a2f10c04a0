"""Visits at nodes elsewhere: envelopes out, replies checked, folded in client-id order.

Client states stay at their nodes: the server knows only which version counts.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedrift.backends.backend import Fold
from fedrift.backends.codec import Codec, Refused, piece, tensors
from fedrift.backends.visit import Reply, Visitor
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.composition import state_path
from fedrift.core.evaluation import Done, Evaluator
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import all_finite, pack
from fedrift.core.phases import owner_of
from fedrift.core.problem import Problem
from fedrift.core.site import Work
from fedrift.federation.membership import PAUSE, Membership, Transport
from fedrift.federation.protocol import (
    REPORT,
    VISIT,
    Envelope,
    Value,
    buffer_forms,
    digest,
    read_header,
    report_from,
)
from fedrift.storage.client_state import Tables

LOOK = 3.0  # seconds between looks at who is still there while waiting
REPLY = {"client", "write", "speaks", "finite", "gradients", "forwards", "steps"}
"""All that a reply's header says."""
Note = Callable[[str], None]


class Versions:
    """Which version of its state each client holds: decided here, kept in files at the nodes."""

    def __init__(self, population: int) -> None:
        self.index = np.full(population, -1, dtype=np.int64)
        self.sums = np.zeros(population, dtype=np.int64)
        """Nodes look after their files themselves."""
        self.kept = self.before = self.index.copy()
        """Those of the last two checkpoints, which a killed server goes back to."""
        self._pending: dict[int, int] = {}

    def slot(self, client: int) -> int:
        return self._pending.get(client, int(self.index[client]))

    def keep(self, client: int, version: int) -> None:
        self._pending[client] = version

    def drop(self, client: int) -> None:
        self._pending.pop(client, None)

    def commit(self) -> None:
        for client, version in self._pending.items():
            self.index[client] = version
        self._pending.clear()

    def discard(self) -> None:
        self._pending.clear()

    def saved(self) -> None:
        self.kept, self.before = self.index.copy(), self.kept

    def restore(self, index: np.ndarray) -> None:
        self.index[:] = index
        self.kept = self.before = self.index.copy()
        self.discard()


class NodeStates(Tables[Versions]):
    """The server's side of client states that stay at their nodes."""

    def __init__(self, visitor: Visitor, paths: Sequence[str]) -> None:
        super().__init__()
        for path in paths:
            if state_path(visitor.root, path) == path and visitor.initial(path) is not None:
                self.tables[path] = Versions(visitor.problem.population)

    scratch = tempfile.gettempdir()

    def row_bytes(self) -> int:
        return 0  # nothing of it lies here

    def sync(self) -> None:
        return None

    def restore(self, rows: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> None:
        """Take up a checkpoint; ValueError says what does not fit."""
        if set(rows) != set(self.tables):
            raise ValueError("its client state is that of another algorithm")
        for path, table in self.tables.items():
            if rows[path].shape != table.index.shape:
                raise ValueError("its clients are not those of the run")
            table.restore(rows[path])

    def close(self) -> None:
        return None


class Remote:
    """A backend whose visits run at the nodes of a membership."""

    workers = 0

    def __init__(
        self,
        visitor: Visitor,
        states: NodeStates,
        evaluator: Evaluator | None,
        transport: Transport,
        membership: Membership,
        *,
        experiment: str,
        deadline: float,
        note: Note,
    ) -> None:
        self._visitor, self._states, self._evaluator = visitor, states, evaluator
        self._transport, self.membership, self._experiment = transport, membership, experiment
        self.deadline, self.note = deadline, note
        self._frozen_sent: dict[int, str] = {}
        self._late: dict[str, tuple[int, int]] = {}

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold = Fold(exchange)
        table = self.table(exchange)
        version, envelopes = self.envelopes(exchange, clients)
        replies = self._ask(envelopes, exchange.round)
        for client in sorted(clients):
            counts = False
            if client in replies:
                try:
                    reply = self._open(exchange, client, version, replies[client])
                    counts = fold.add(client, int(self.membership.sizes[client]), reply)
                except Refused as why:
                    self.forget(client)
                    self.note(f"round {exchange.round + 1}: client {client} refused: {why}")
            if exchange.is_evaluation:
                continue
            if table is not None and counts:
                table.keep(client, version)
            elif table is not None:
                table.drop(client)
        for client in fold.nonfinite:
            self.note(f"round {exchange.round + 1}: client {client} sent what is not finite")
        outcome = fold.outcome()
        numbers = sum(v is not None for _, _, said in outcome.training for v in said)
        return replace(outcome, reported_bytes=8 * numbers)

    def forget(self, client: int) -> None:
        """What it has been told once may not have arrived: it is told again."""
        self._frozen_sent.pop(client, None)

    def table(self, exchange: Exchange) -> Versions | None:
        """The versions of the states that an exchange reads and makes."""
        return self._states.tables.get(self._visitor.state_path(exchange.phase))

    def at(self, path: str) -> tuple[Algorithm[Any, Any], Problem]:
        """The algorithm at a path and its view of the task."""
        return self._visitor.owner(path)

    def owner(self, exchange: Exchange) -> tuple[Algorithm[Any, Any], Problem]:
        return self.at(owner_of(exchange.phase))

    def envelopes(
        self, exchange: Exchange, clients: Sequence[int]
    ) -> tuple[int, dict[int, Envelope]]:
        """The version that the visits will make, and what each client is sent."""
        version, table = secrets.randbits(62), self.table(exchange)
        kinds, owner = exchange.signature, self.owner(exchange)
        sent = self._visitor.sent(exchange.phase)
        frozen = {name: piece(value) for name, value in exchange.frozen.items()}
        hashed = digest(frozen)
        common = {
            "down": Codec(kinds.down, *sent).encode(exchange.down, exchange.payload),
            "buffers": {str(i): piece(b) for i, b in enumerate(exchange.buffers)},
        }
        envelopes: dict[int, Envelope] = {}
        is_private = exchange.aggregation is not None and exchange.aggregation.is_private
        for client in clients:
            header: dict[str, Value] = {
                "experiment": self._experiment,
                "client": client,
                "phase": exchange.phase,
                "round": exchange.round,
                "seed": exchange.seed,
                "temperature": float(exchange.temperature),
                "reports": int(not is_private),
                "frozen": hashed,
                "read": -1 if table is None else table.slot(client),
                "write": version,
                "start": -1 if table is None else int(table.index[client]),
                "saved": -1 if table is None else int(table.kept[client]),
                "before": -1 if table is None else int(table.before[client]),
            }
            own = dict(common)
            if client in exchange.private and kinds.private is not None:
                own["private"] = Codec(kinds.private, *owner).encode(exchange.private[client])
            if hashed and self._frozen_sent.get(client) != hashed:
                own["frozen"] = frozen
                self._frozen_sent[client] = hashed
            envelopes[client] = Envelope(header, own)
        return version, envelopes

    def _ask(self, envelopes: Mapping[int, Envelope], round: int) -> dict[int, Envelope]:
        """Send, and wait until all have answered, left, or the deadline has passed."""
        at = {self.membership.nodes[c]: c for c in envelopes if c in self.membership.nodes}
        waiting = self._transport.send(VISIT, {node: envelopes[c] for node, c in at.items()})
        end, look = time.monotonic() + self.deadline, time.monotonic() + LOOK
        replies: dict[int, Envelope] = {}
        while waiting and time.monotonic() < end:
            for ticket, answer in self._transport.collect({*waiting, *self._late}).items():
                if ticket in self._late:
                    client, when = self._late.pop(ticket)
                    self.note(f"round {when + 1}: client {client} answered too late; ignored")
                    continue
                client = at[waiting.pop(ticket)]
                if isinstance(answer, Envelope):
                    replies[client] = answer
                else:
                    self.forget(client)
                    self.note(f"round {round + 1}: client {client} failed: {answer}")
            if waiting and time.monotonic() >= look:
                look = time.monotonic() + LOOK
                here = self._transport.nodes()
                for ticket, node in list(waiting.items()):
                    if node not in here:
                        del waiting[ticket]
                        self.forget(at[node])
                        self.note(f"round {round + 1}: client {at[node]} has left")
            if waiting:
                time.sleep(PAUSE)
        for ticket, node in waiting.items():
            self._late[ticket] = at[node], round
            self.forget(at[node])
            self.note(f"round {round + 1}: client {at[node]} missed the deadline")
        return replies

    def _open(self, exchange: Exchange, client: int, version: int, envelope: Envelope) -> Reply:
        """The reply in an envelope that nobody vouches for."""
        if "refused" in envelope.header:
            raise Refused(f"by the node: {read_header(envelope, 'refused', str)}")
        if strange := set(envelope.header) - REPLY - REPORT.keys():
            raise Refused(f"header '{min(strange)[:40]}' is not declared")
        if (
            read_header(envelope, "client", int) != client
            or read_header(envelope, "write", int) != version
        ):
            raise Refused("the reply belongs to another visit")
        names = ("gradients", "forwards", "steps", "speaks", "finite")
        gradients, forwards, steps, speaks, finite = (
            max(0, read_header(envelope, n, int)) for n in names
        )
        node, problem = self._visitor.owner(owner_of(exchange.phase))
        buffers = tensors(envelope.part("buffers"), buffer_forms(problem))
        if buffers and len(buffers) != len(problem.moving):
            raise Refused("some of the buffers are missing")
        up: Any = None
        if speaks:
            kind = exchange.signature.up
            up = Codec(kind, node, problem, side="up").decode(envelope.part("up"))
        is_finite = bool(finite) and all_finite(pack(up)) and all_finite(buffers)
        moved = tuple(buffers[str(i)] for i in range(len(buffers)))
        training, work = report_from(envelope), Work(gradients, forwards, steps)
        return Reply(up, None, moved, work, is_finite, training=lambda: training)

    def evaluate(self, shown: EvaluatedModel) -> Done:
        return Done([] if self._evaluator is None else self._evaluator.chunks(shown))

    def close(self) -> None:
        return None
