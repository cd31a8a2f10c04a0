"""Algorithms of a reader: one as it should be, the others each wrong in one way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fedrift.core import (
    Algorithm,
    Cohort,
    Gather,
    Local,
    Mean,
    Problem,
    Site,
    Sum,
    Vec,
    message,
    state,
)

LEFT_BEHIND: dict[str, Any] = {}


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]


@state
class Server:
    w: Vec
    total: Vec  # sum of all steps


@state
class Client:
    last: Vec  # the client's last update


class Plain(Algorithm[Server, Client]):
    """What the algorithms here share; the wrong ones change one method."""

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, total=torch.zeros_like(p.w0))

    def client(self, p: Problem) -> Client:
        return Client(last=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))  # type: ignore[attr-defined]
        return Server(w=s.w + up.delta, total=s.total + up.delta)


@dataclass(frozen=True)
class Fine(Plain):
    """FedAvg that remembers its last update."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


def fine(local: Local = Local()) -> Fine:
    """The same as a function."""
    return Fine(local=local)


@dataclass
class Thawed(Plain):
    """No frozen dataclass."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


class Bare(Plain):
    """No dataclass at all."""

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(Local(), down.w).delta
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Listed(Plain):
    """A field that can change."""

    local: Local = Local()
    seen: list[int] = field(default_factory=list[int])

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Unhinted(Plain):
    """A client method without annotations."""

    local: Local = Local()

    def train(self, site, down, mine):  # type: ignore[no-untyped-def]
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


@message
class UpDict:
    delta: Mean[Vec]
    notes: Gather[dict[str, int]]


@dataclass(frozen=True)
class Unpackable(Plain):
    """A message with a dictionary in it."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[UpDict, Client]:
        delta = site.train(self.local, down.w).delta
        return UpDict(delta=delta, notes={"n": site.n}), Client(last=delta)


@message
class UpUnsaid:
    delta: Vec


@dataclass(frozen=True)
class Unreduced(Plain):
    """A reply that does not say how it is reduced."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        cohort.ask(self.train, Down(w=s.w))
        return s

    def train(self, site: Site, down: Down, mine: Client) -> tuple[UpUnsaid, Client]:
        delta = site.train(self.local, down.w).delta
        return UpUnsaid(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Silent(Plain):
    """Asks nobody."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        return s

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        raise AssertionError("never asked")


@dataclass(frozen=True)
class Scribbler(Plain):
    """Writes to the message it was sent, where no count of writes tells."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w)
        down.w.data.copy_(run.w)
        return Up(delta=run.delta), Client(last=run.delta)


@dataclass(frozen=True)
class Eraser(Plain):
    """Writes to its old state, where no count of writes tells."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w)
        mine.last.data.copy_(run.delta)
        return Up(delta=run.delta), mine


@dataclass(frozen=True)
class Overwriter(Plain):
    """The server adds to its old state in place."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + up.delta, total=s.total.add_(up.delta))

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Gossip(Plain):
    """A client finds what the client before it left in the module."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        before = LEFT_BEHIND.get("gossip", torch.zeros_like(delta))
        LEFT_BEHIND["gossip"] = delta
        return Up(delta=delta + 0.1 * before), Client(last=delta)


@dataclass(frozen=True)
class ThroughModule(Plain):
    """The server hands clients a vector through the module instead of the message."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        LEFT_BEHIND["total"] = s.total
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + up.delta, total=s.total + up.delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        total = LEFT_BEHIND.get("total", torch.zeros_like(down.w))
        delta = site.train(self.local, down.w).delta + 0.1 * total
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class ThroughSelf(Plain):
    """The same through an attribute, past the frozen dataclass."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        object.__setattr__(self, "total", s.total)
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + up.delta, total=s.total + up.delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        total = vars(self)["total"]
        delta = site.train(self.local, down.w).delta + 0.1 * total
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Forgetful(Plain):
    """The server keeps its momentum in the module: it is not there after a restart."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        before = LEFT_BEHIND.get("momentum") if cohort.round else None
        step = up.delta if before is None else 0.5 * before + up.delta
        LEFT_BEHIND["momentum"] = step
        return Server(w=s.w + step, total=s.total + step)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


@message
class UpOdd:
    delta: Mean[Vec]
    shift: Sum[float]


@dataclass(frozen=True)
class Rounder(Plain):
    """Sends a number of a type that does not survive the wire."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + up.delta, total=s.total + up.delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[UpOdd, Client]:
        delta = site.train(self.local, down.w).delta
        return UpOdd(delta=delta, shift=complex(1.0)), Client(last=delta)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Diverging(Plain):
    """Runs away."""

    local: Local = Local()

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w - 1e6 * up.delta, total=s.total + up.delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        return Up(delta=delta), Client(last=delta)


@dataclass(frozen=True)
class Digger(Plain):
    """Writes to parameters that stand still."""

    local: Local = Local()

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        delta = site.train(self.local, down.w).delta
        site.problem.rest["hidden.weight"].add_(0.01)
        return Up(delta=delta), Client(last=delta)
