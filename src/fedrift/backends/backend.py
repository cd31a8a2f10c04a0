"""What an engine asks of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedrift.backends.visit import Reply
from fedrift.core.algorithm import EvaluatedModel, Exchange, Outcome
from fedrift.core.evaluation import Pending
from fedrift.core.messages import Size, nbytes, pack
from fedrift.core.site import Work


class Backend(Protocol):
    """Runs exchanges and evaluations; folds by the same rule wherever the visits run."""

    workers: int

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...
    def evaluate(self, shown: EvaluatedModel) -> Pending: ...
    def close(self) -> None: ...


# Replies of one exchange, folded in client-id order wherever the visits ran.


@dataclass
class Fold:
    """Replies of one exchange, folded in client-id order."""

    exchange: Exchange
    replied: list[int] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    bytes: dict[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reducer = self.exchange.reducer()
        self._buffers: list[Tensor] = []
        self._buffer_weight = 0.0

    def add(
        self, client: int, n: int, reply: Reply, size: Mapping[str, Size] | None = None
    ) -> bool:
        """Take in one reply, whose size may be known; True if its new client state counts."""
        self.work.add(reply.work)
        if reply.up is not None:
            for name, own in (nbytes(pack(reply.up)) if size is None else size).items():
                self.bytes[name] = self.bytes.get(name, Size()) + own
        if not reply.is_finite:
            self.nonfinite.append(client)
            return False
        aggregation = self.exchange.aggregation
        if reply.up is not None:
            weight = float(n) if self.exchange.weights == "samples" else 1.0
            self._reducer.fold(reply.up, weight)
            self._fold_buffers(reply.buffers, weight)
            self.replied.append(client)
            if self.exchange.watch is not None:
                self.exchange.watch(client, weight, reply.up)
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
        )
