"""A federation in one process, for tests: the post hands letters to nodes, and may misbehave."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedrift.config.spec import Spec
from fedrift.engine.prepare import Prepared, prepare
from fedrift.engine.result import Result
from fedrift.federation.config import Charter
from fedrift.federation.node import Node
from fedrift.federation.protocol import ABOUT, Letter
from fedrift.federation.server import serve
from fedrift.federation.task import node_of


class Normed(nn.Sequential):
    """A model with running statistics."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))


Meddle = Callable[[str, Letter, Letter], "Letter | str | None"]
"""Kind, letter, honest reply → what arrives instead; None: nothing."""


@dataclass
class Desk:
    """One node as the post knows it."""

    make: Callable[[], Node]
    meddle: Meddle | None = None

    def answer(self, kind: str, letter: Letter) -> Letter | str | None:
        node = self.make()  # a new process for every letter, as in a deployed federation
        honest = node.about() if kind == ABOUT else node.answer(letter)
        return honest if self.meddle is None else self.meddle(kind, letter, honest)


@dataclass
class Office:
    """A post whose nodes are objects."""

    desks: dict[int, Desk] = field(default_factory=dict[int, Desk])
    before: Callable[[Office, str, Mapping[int, Letter]], None] | None = None
    sent: int = 0
    _ids: Any = field(default_factory=lambda: itertools.count(1000))
    _replies: dict[str, Letter | str] = field(default_factory=dict[str, Letter | str])

    def join(self, make: Callable[[], Node], meddle: Meddle | None = None) -> int:
        number = next(self._ids)
        self.desks[number] = Desk(make, meddle)
        return number

    def nodes(self) -> set[int]:
        return set(self.desks)

    def send(self, kind: str, letters: Mapping[int, Letter]) -> dict[str, int]:
        if self.before is not None:
            self.before(self, kind, letters)
        tickets: dict[str, int] = {}
        for node, letter in letters.items():
            ticket = f"ticket {next(self._ids)}"
            tickets[ticket] = node
            self.sent += sum(len(p.data) for part in letter.parts.values() for p in part.values())
            if node not in self.desks:
                continue
            reply = self.desks[node].answer(kind, letter)
            if reply is not None:
                self._replies[ticket] = reply
        return tickets

    def collect(self, tickets: set[str]) -> dict[str, Letter | str]:
        return {t: self._replies.pop(t) for t in tickets & set(self._replies)}


@dataclass
class Federation:
    """A spec with its data divided among nodes that each hold one part."""

    spec: Spec
    folder: Path
    ready: Prepared = field(init=False)
    charter: Charter = field(init=False)
    office: Office = field(default_factory=Office)
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.ready = prepare(self.spec)
        self.charter = Charter.of(self.spec, self.ready)

    def maker(self, client: int) -> Callable[[], Node]:
        part = self.ready.partition.parts[client]
        x, y = self.ready.x[part], self.ready.data.y[part]
        return lambda: node_of(self.charter, client, x, y, self.folder / f"site {client}")

    def everybody(self) -> Federation:
        for client in range(self.charter.clients):
            self.office.join(self.maker(client))
        return self

    def run(self, **options: Any) -> Result:
        data = self.ready.data
        return serve(
            self.charter,
            self.office,
            test=(data.x_test, data.y_test),
            note=self.notes.append,
            **options,
        )
