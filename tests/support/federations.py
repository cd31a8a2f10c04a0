"""A federation in one process, for tests: the post hands envelopes to nodes, and may misbehave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedrift.config.spec import Spec
from fedrift.engine.prepare import Prepared, prepare
from fedrift.engine.result import Result
from fedrift.federation.config import FederationConfig
from fedrift.federation.node import Node
from fedrift.federation.protocol import ABOUT, VISIT, Envelope
from fedrift.federation.server import serve
from fedrift.federation.task import make_node

__all__ = ["ABOUT", "VISIT", "Envelope", "FederationConfig"]


def messages(ledger: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines of a federation's ledger without what training reported, which a simulation need not
    send."""
    rows = [dict(row) for row in ledger]
    return [{key: value for key, value in row.items() if key != "reported"} for row in rows]


class Normed(nn.Sequential):
    """A model with running statistics."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


Meddle = Callable[[str, Envelope, Envelope], "Envelope | str | None"]
"""Kind, envelope, honest reply → what arrives instead; None: nothing."""


@dataclass
class Desk:
    """One node as the post knows it."""

    make: Callable[[], Node]
    meddle: Meddle | None = None

    def answer(self, kind: str, envelope: Envelope) -> Envelope | str | None:
        node = self.make()  # a new process for every envelope, as in a deployed federation
        honest = node.about() if kind == ABOUT else node.answer(envelope)
        return honest if self.meddle is None else self.meddle(kind, envelope, honest)


@dataclass
class Office:
    """A post whose nodes are objects."""

    desks: dict[int, Desk] = field(default_factory=dict[int, Desk])
    before: Callable[[Office, str, Mapping[int, Envelope]], None] | None = None
    sent: int = 0
    _ids: Any = field(default_factory=lambda: itertools.count(1000))
    _replies: dict[str, Envelope | str] = field(default_factory=dict[str, Envelope | str])

    def join(self, make: Callable[[], Node], meddle: Meddle | None = None) -> int:
        number = next(self._ids)
        self.desks[number] = Desk(make, meddle)
        return number

    def nodes(self) -> set[int]:
        return set(self.desks)

    def send(self, kind: str, envelopes: Mapping[int, Envelope]) -> dict[str, int]:
        if self.before is not None:
            self.before(self, kind, envelopes)
        tickets: dict[str, int] = {}
        for node, envelope in envelopes.items():
            ticket = f"ticket {next(self._ids)}"
            tickets[ticket] = node
            self.sent += sum(len(p.data) for part in envelope.parts.values() for p in part.values())
            if node not in self.desks:
                continue
            reply = self.desks[node].answer(kind, envelope)
            if reply is not None:
                self._replies[ticket] = reply
        return tickets

    def collect(self, tickets: set[str]) -> dict[str, Envelope | str]:
        return {t: self._replies.pop(t) for t in tickets & set(self._replies)}


@dataclass
class Federation:
    """A spec with its data divided among nodes that each hold one part."""

    spec: Spec
    folder: Path
    ready: Prepared = field(init=False)
    config: FederationConfig = field(init=False)
    office: Office = field(default_factory=Office)
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.ready = prepare(self.spec)
        self.config = FederationConfig.of(self.spec, self.ready)

    def maker(self, client: int) -> Callable[[], Node]:
        part = self.ready.partition.parts[client]
        x, y = self.ready.x[part], self.ready.data.y[part]
        return lambda: make_node(self.config, client, x, y, self.folder / f"site {client}")

    def everybody(self) -> Federation:
        for client in range(self.config.clients):
            self.office.join(self.maker(client))
        return self

    def run(self, **options: Any) -> Result:
        data = self.ready.data
        return serve(
            self.config,
            self.office,
            test=(data.x_test, data.y_test),
            note=self.notes.append,
            **options,
        )
