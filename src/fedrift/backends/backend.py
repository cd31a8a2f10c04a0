"""What an engine asks of a backend, how one is made, and how all of them fold replies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedrift.backends.pool import Pool
from fedrift.backends.profiling import OFF, Meter
from fedrift.backends.visit import Reply, Visitor
from fedrift.config.backends import IN_PROCESS, POOL, address_of, backend_kind
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.alignment import settled
from fedrift.core.codecs import sizes_of
from fedrift.core.evaluation import Evaluator, Pending
from fedrift.core.exchange import Exchange, Outcome, VisitCost
from fedrift.core.messages import Size, cloned
from fedrift.core.site import Work
from fedrift.core.training_report import Report
from fedrift.storage.client_state import Store

Cost = Callable[[int, int], float]
"""What a visit of a client takes in a round, to start the longest first."""


class Backend(Protocol):
    """Runs exchanges and evaluations; folds by the same rule wherever the visits run."""

    workers: int

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...
    def evaluate(self, shown: EvaluatedModel) -> Pending: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class RunParts:
    """All that a backend is made from."""

    visitor: Visitor
    store: Store
    evaluator: Evaluator | None
    cost: Cost
    workers: int = 0
    address: str = ""
    pool: Pool | None = None
    """Workers that several runs share."""
    meter: Meter = OFF


def _module(name: str, workers: int) -> ModuleType:
    """Who makes the backend: without workers, one that could have some is in this process."""
    kind = backend_kind(name)
    return import_module(IN_PROCESS if not workers and kind.workers != "none" else kind.module)


def made(name: str, run: RunParts) -> Backend:
    """The backend of that name for one run."""
    module = import_module(POOL) if run.pool is not None else _module(name, run.workers)
    return module.make(run)


@contextmanager
def opened(name: str, workers: int) -> Generator[Pool | None]:
    """What several runs share while they go on: a pool, a cluster, or nothing."""
    module = _module(name, workers)
    if "opened" not in vars(module):
        yield None
        return
    shared: AbstractContextManager[Pool | None] = module.opened(address_of(name), workers)
    with shared as pool:
        yield pool


class Held(NamedTuple):
    """A reply that waits until it is known whether it counts."""

    client: int
    n: int
    reply: Reply
    size: Mapping[str, Size]


@dataclass
class Fold:
    """Replies of one exchange, folded in client-id order."""

    exchange: Exchange
    replied: list[int] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    bytes: dict[str, Size] = field(default_factory=dict)
    training: list[tuple[int, float, Report]] = field(default_factory=list)
    visits: list[VisitCost] = field(default_factory=list[VisitCost])
    held: list[Held] = field(default_factory=list[Held])

    def __post_init__(self) -> None:
        self._reducer = self.exchange.reducer()
        self._buffers: list[Tensor] = []
        self._buffer_weight = 0.0

    def add(
        self,
        client: int,
        n: int,
        reply: Reply,
        size: Mapping[str, Size] | None = None,
        staleness: int | None = None,
    ) -> bool:
        """Take in one reply, whose size may be known; True if its new client state counts."""
        if reply.up is None:
            size = {}
        elif size is None or self.exchange.compression is not None:
            size = sizes_of(self.exchange.compression, "up", reply.up)
        sent = sum(own.total for own in size.values()) + sum(b.nbytes for b in reply.buffers)
        self.visits.append(VisitCost(client, reply.work, sent))
        if self.exchange.holds:
            buffers = tuple(b.clone() for b in reply.buffers)
            up, said = cloned(reply.up), reply.training()
            kept = Reply(up, None, buffers, reply.work, reply.is_finite, training=lambda: said)
            self.held.append(Held(client, n, kept, size))
            return reply.is_finite
        self.work.add(reply.work)
        for name, own in size.items():
            self.bytes[name] = self.bytes.get(name, Size()) + own
        if not reply.is_finite:
            self.nonfinite.append(client)
            return False
        aggregation = self.exchange.aggregation
        if reply.up is not None:
            up = settled(reply.up)
            weight = float(n) if self.exchange.weights == "samples" else 1.0
            if staleness is not None:
                weight *= self.exchange.discount(staleness)
            self._reducer.fold(up, weight)
            self._fold_buffers(reply.buffers, weight)
            self.replied.append(client)
            self.training.append((client, weight, reply.training))
            if self.exchange.watch is not None:
                self.exchange.watch(client, weight, up)
        return aggregation is None or not aggregation.is_ghost

    def _fold_buffers(self, buffers: Sequence[Tensor], weight: float) -> None:
        # running statistics: weighted mean; counters: the largest
        if not buffers:
            return
        size = sum(b.nbytes for b in buffers)
        self.bytes["buffers"] = self.bytes.get("buffers", Size()) + Size(tensors=size)
        self._buffer_weight += weight
        if not self._buffers:
            self._buffers = [
                b.double() * weight if b.is_floating_point() else b.clone() for b in buffers
            ]
            return
        for total, b in zip(self._buffers, buffers, strict=True):
            if b.is_floating_point():
                total.add_(b, alpha=weight)
            else:
                torch.maximum(total, b, out=total)

    def outcome(self) -> Outcome:
        before = buffers = self.exchange.buffers
        if self._buffers:
            buffers = tuple(
                (t / self._buffer_weight).to(b.dtype) if b.is_floating_point() else t
                for t, b in zip(self._buffers, before, strict=True)
            )
        return Outcome(
            up=self._reducer.result() if self.replied else None,
            replied=tuple(self.replied),
            nonfinite=tuple(self.nonfinite),
            weight=self._reducer.weight,
            buffers=buffers,
            work=self.work,
            up_bytes=self.bytes,
            training=tuple(
                (client, weight, said)
                for client, weight, report in self.training
                if (said := report()) is not None
            ),
            visits=self.visits,
            held=self.held,
        )
