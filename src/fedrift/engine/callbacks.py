"""What a run tells and keeps: plan, reports, progress, how it ended, fingerprint."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from fedrift.core.algorithm import Exchange
from fedrift.core.faults import Faults
from fedrift.core.flat import Vec
from fedrift.core.sampling import Participation
from fedrift.engine.aggregation import Aggregation
from fedrift.engine.ledger import Cost, Ledger
from fedrift.storage.checkpoint import Checkpoint

Status = Literal["done", "stopped", "diverged"]
Metrics = dict[str, Any]


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round (counted from 1). `metrics` is empty if it was not evaluated."""

    round: int
    weights: Vec
    state: Any
    metrics: Mapping[str, Any]
    cost: Cost
    cohort: tuple[int, ...]
    nonfinite: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What is about to run, said before the first round."""

    parameters: int
    clients: int
    samples: int
    cohort: float
    workers: int
    memory_bytes: int
    disk_bytes: int
    resumed_from: int = 0
    notes: tuple[str, ...] = ()


class Observer(Protocol):
    """Is told what goes on; cannot change it."""

    def started(self, plan: Plan) -> None: ...
    def finished_round(self, report: RoundReport) -> None: ...


class Analyst(Protocol):
    """Measures in some rounds; cannot change the run."""

    def is_due(self, round: int) -> bool: ...
    def replied(self, exchange: Exchange, client: int, weight: float, up: Any) -> None: ...
    def finished_round(self, report: RoundReport) -> None: ...
    def ended(self) -> None: ...


class Recorder(Protocol):
    """Keeps what must outlive the process."""

    def rounds(self, row: Mapping[str, Any]) -> None: ...
    def ledger(self, row: Mapping[str, Any]) -> None: ...
    def is_due(self) -> bool: ...
    def checkpoint(self, make: Callable[[], Checkpoint]) -> None: ...


@dataclass(frozen=True)
class Settings:
    """The engine's part of a run: how long, who, when to look."""

    rounds: int
    participation: Participation
    seed: int
    eval_every: int
    sizes: np.ndarray
    faults: Faults | None = None
    aggregation: Aggregation | None = None
    until: int | None = None
    """Stop after so many rounds, although the run as such is longer."""
    present: Callable[[], np.ndarray | None] = lambda: None
    """Clients that can be asked now; None: all of them, always."""

    @property
    def last(self) -> int:
        return self.rounds if self.until is None else min(self.until, self.rounds)


@dataclass
class Progress:
    """Where a run stands; what a checkpoint restores."""

    state: Any
    buffers: tuple[Tensor, ...]
    round: int = 0
    counted: set[int] = field(default_factory=set[int])
    told: set[int] = field(default_factory=set[int])
    seconds: float = 0.0
    rows: list[Metrics] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    status: Status
    diverged_at: int | None
    progress: Progress
    weights: Vec
    rest: Mapping[str, Tensor]
    """Buffers and frozen parameters that the run has moved."""


def fingerprint(weights: Vec, rows: Sequence[Mapping[str, Any]]) -> str:
    """Short hash of the final weights and of every logged number but timings."""
    digest = hashlib.sha256(weights.detach().cpu().contiguous().numpy().tobytes())
    for row in rows:
        for name in sorted(row):
            if name != "seconds":
                digest.update(name.encode() + _bytes(row[name]))
    return digest.hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        return b"".join(_bytes(v) for v in value)
    if isinstance(value, Mapping):
        return b"".join(str(k).encode() + _bytes(v) for k, v in sorted(value.items()))
    return struct.pack("<d", value) if isinstance(value, (int, float)) else str(value).encode()
