"""The loop of a run: cohorts, rounds, evaluation, divergence, checkpoints, reports."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from fedrift.algorithm import Algorithm, Cohort, Exchange, NoReply, Outcome, local_of
from fedrift.backends.visit import Backend, Chunk, Done, Evaluator, Pending
from fedrift.checkpoint import Checkpoint
from fedrift.flat import Vec, is_finite
from fedrift.ledger import Cost, Entry, Ledger
from fedrift.messages import Size, nbytes, pack
from fedrift.participation import Participation
from fedrift.problem import Problem
from fedrift.store import Store

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


class Recorder(Protocol):
    """Keeps what must outlive the process."""

    def rounds(self, row: Mapping[str, Any]) -> None: ...
    def ledger(self, row: Mapping[str, Any]) -> None: ...
    def is_due(self) -> bool: ...
    def checkpoint(self, point: Checkpoint) -> None: ...


@dataclass(frozen=True)
class Settings:
    """The engine's part of a run: how long, who, when to look."""

    rounds: int
    participation: Participation
    seed: int
    eval_every: int
    combine: Callable[[Sequence[Chunk]], Metrics]
    sizes: np.ndarray


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


class Engine:
    """One run. `run()` may be called once."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        problem: Problem,
        backend: Backend,
        store: Store,
        settings: Settings,
        progress: Progress,
        *,
        recorder: Recorder | None = None,
        observer: Observer | None = None,
        on_round: Callable[[RoundReport], bool | None] | None = None,
    ) -> None:
        self.algorithm, self.problem, self.backend, self.store = algorithm, problem, backend, store
        self.settings, self.progress = settings, progress
        self.recorder, self.observer, self.on_round = recorder, observer, on_round
        self._local = local_of(algorithm)
        self._entries: list[Entry] = []
        self._waiting: tuple[RoundReport, list[Entry], Pending | None] | None = None
        self._total = progress.ledger.total
        self._stop = False
        self._clock = time.perf_counter() - progress.seconds

    def run(self) -> Finished:
        """All rounds that are left."""
        good = self.progress.state
        while self.progress.round < self.settings.rounds:
            t = self.progress.round
            new, buffers, cohort, lost = self._round(t)
            if not self._settle():  # the evaluation of the round before was not finite
                self.store.discard()
                return self._finished("diverged", t, good)
            weights = self.algorithm.model(new)
            if lost or not is_finite(weights):
                self.store.discard()
                self._flush(t, weights, new, cohort, None)
                return self._finished("diverged", t + 1, self.progress.state)
            good = self.progress.state
            self.store.commit()
            self.progress.state, self.progress.buffers = new, buffers
            self.progress.round = t + 1
            due = (t + 1) % self.settings.eval_every == 0 or t + 1 == self.settings.rounds
            shown = self._shown(new)
            pending = self.backend.evaluate(weights, buffers, *shown) if due else None
            self._waiting = (self._report(t, weights, new, cohort), self._entries, pending)
            self._entries = []
            saves = self.recorder is not None and self.recorder.is_due()
            if self.on_round is not None or saves or t + 1 == self.settings.rounds:
                if not self._settle():
                    return self._finished("diverged", t + 1, good)
                if saves:
                    self.save()
                if self._stop:
                    return self._finished("stopped", None, self.progress.state)
        return self._finished("done", None, self.progress.state)

    def _shown(self, state: Any) -> tuple[Tensor | None, float]:
        return self.algorithm.allowed(state), self.algorithm.temperature(state)

    def interrupted(self, alone: Evaluator | None) -> None:
        """Keep what is finished after an exception, without the workers, who may be in disorder."""
        self.store.discard()
        if self._waiting is not None:
            report, entries, pending = self._waiting
            if pending is not None and alone is not None:
                shown = self._shown(report.state)
                pending = Done(alone.chunks(report.weights, self.progress.buffers, *shown))
            self._waiting = (report, entries, pending)
            self._settle()
        self.save()

    def _round(self, t: int) -> tuple[Any, tuple[Tensor, ...], tuple[int, ...], bool]:
        """New state and buffers; unchanged if nobody could answer. Last: everything was lost."""
        progress, settings = self.progress, self.settings
        drawn, once = self._draw(t)
        able = [c for c in drawn if self._works(c, t)]
        if once:
            progress.counted.update(c for c in drawn if c not in able)
        if not able:
            return progress.state, progress.buffers, (), False
        cohort = Cohort(
            self.algorithm,
            self.problem,
            able,
            round=t,
            seed=settings.seed,
            buffers=progress.buffers,
            deliver=self._deliver,
        )
        try:
            new = self.algorithm.round(progress.state, cohort)
        except NoReply as nobody:
            self.store.discard()
            return progress.state, progress.buffers, tuple(able), bool(nobody.nonfinite)
        if once:
            progress.counted.update(cohort.clients)
        return new, cohort.buffers, tuple(able), False

    def _draw(self, t: int) -> tuple[tuple[int, ...], bool]:
        """The cohort, and whether it was drawn from those not counted yet."""
        progress, who = self.progress, self.settings.participation
        if self.algorithm.sampling(progress.state) == "once":
            left = np.setdiff1d(np.arange(who.population), list(progress.counted))
            if len(left):
                return who.draw(t, self.settings.seed, left), True
            progress.state = self.algorithm.exhausted(progress.state, self.problem)
            if self.algorithm.sampling(progress.state) == "once":
                return (), True
        return who.draw(t, self.settings.seed), False

    def _works(self, client: int, t: int) -> bool:
        n = int(self.settings.sizes[client])
        if n == 0 or self._local is None:
            return n > 0
        return self._local.steps_for(n, self.settings.seed, t, client) > 0

    def _deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        outcome = self.backend.deliver(exchange, clients)
        down = {n: _times(s, len(clients)) for n, s in nbytes(pack(exchange.down)).items()}
        if exchange.buffers:
            size = sum(b.nbytes for b in exchange.buffers)
            down["buffers"] = Size(tensors=size * len(clients))
        new = [c for c in clients if c not in self.progress.told] if exchange.frozen else []
        if new:  # sent once to each client, which keeps it
            self.progress.told.update(new)
            size = sum(v.nbytes for v in exchange.frozen.values())
            down["frozen"] = Size(tensors=size * len(new))
        for message in exchange.private.values():
            for name, size in nbytes(pack(message)).items():
                down[f"private {name}"] = down.get(f"private {name}", Size()) + size
        self._entries.append(
            Entry(
                round=exchange.round + 1,
                phase=exchange.phase,
                asked=tuple(clients),
                replied=outcome.replied,
                nonfinite=outcome.nonfinite,
                down=down,
                up=outcome.up_bytes,
                gradients=outcome.work.gradients,
                forwards=outcome.work.forwards,
                steps=outcome.work.steps,
            )
        )
        return outcome

    def _report(self, t: int, weights: Vec, state: Any, cohort: tuple[int, ...]) -> RoundReport:
        return RoundReport(
            round=t + 1,
            weights=weights,
            state=state,
            metrics={},
            cost=sum((e.cost for e in self._entries), Cost()),
            cohort=cohort,
            nonfinite=tuple(c for e in self._entries for c in e.nonfinite),
            seconds=0.0,
        )

    def _flush(
        self, t: int, weights: Vec, state: Any, cohort: tuple[int, ...], pending: Pending | None
    ) -> None:
        self._waiting = (self._report(t, weights, state, cohort), self._entries, pending)
        self._entries = []
        self._settle()

    def _settle(self) -> bool:
        """Finish the round that waits for its evaluation; False if the loss is not finite."""
        if self._waiting is None:
            return True
        report, entries, pending = self._waiting
        metrics = self.settings.combine(pending.chunks()) if pending is not None else {}
        self._waiting = None  # only now: an interruption while waiting must not lose the round
        seconds = time.perf_counter() - self._clock
        report = replace(report, metrics=metrics, seconds=seconds)
        self.progress.seconds = seconds
        self.progress.ledger.entries.extend(entries)
        self._total = self._total + report.cost
        row: Metrics = {}
        if metrics:
            row = {"round": report.round, **metrics, "cohort": list(report.cohort)}
            row |= {
                "bytes_down": self._total.bytes_down,
                "bytes_up": self._total.bytes_up,
                "gradients": self._total.gradients,
                "seconds": seconds,
            }
            self.progress.rows.append(row)
        if self.recorder is not None:
            for entry in entries:
                self.recorder.ledger(entry.row())
            if row:
                self.recorder.rounds(row)
        if self.observer is not None:
            self.observer.finished_round(report)
        if self.on_round is not None:
            copied = replace(report, weights=report.weights.clone())
            self._stop = bool(self.on_round(copied)) or self._stop
        return math.isfinite(metrics.get("loss", 0.0))

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        if self.recorder is None:
            return
        progress = self.progress
        rows = {path: table.index for path, table in self.store.tables.items()}
        self.recorder.checkpoint(
            Checkpoint(
                round=progress.round,
                server=progress.state,
                buffers=progress.buffers,
                rows=rows,
                counted=tuple(sorted(progress.counted)),
                told=tuple(sorted(progress.told)),
                seconds=progress.seconds,
            )
        )
        self.store.saved()

    def _finished(self, status: Status, diverged_at: int | None, state: Any) -> Finished:
        return Finished(status, diverged_at, self.progress, self.algorithm.model(state))


def _times(size: Size, n: int) -> Size:
    return Size(size.tensors * n, size.numbers * n)


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
