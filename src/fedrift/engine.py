"""The loop of a run: cohorts, rounds, evaluation, divergence, checkpoints, reports."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fedrift.algorithm import Algorithm, Cohort
from fedrift.backends.visit import Backend, Done, Evaluator, Pending
from fedrift.checkpoint import Checkpoint
from fedrift.errors import is_overflow
from fedrift.exchange import Exchange, NoReply, Outcome, Shown
from fedrift.faults import Trouble
from fedrift.flat import Vec, is_finite
from fedrift.ledger import Cost, Entry
from fedrift.messages import Size, nbytes, pack
from fedrift.problem import Problem
from fedrift.profiling import OFF, Meter
from fedrift.rounds import (
    Analyst,
    Finished,
    Metrics,
    Observer,
    Plan,
    Progress,
    Recorder,
    RoundReport,
    Settings,
    Status,
    fingerprint,
)
from fedrift.store import States
from fedrift.unbroken import unbroken

__all__ = ["Engine", "Finished", "Observer", "Plan", "Progress", "RoundReport", "fingerprint"]


@dataclass
class Waiting:
    """A finished round whose evaluation is still under way."""

    report: RoundReport
    entries: list[Entry]
    pending: dict[str, Pending]
    buffers: tuple[Tensor, ...]
    before: tuple[Any, tuple[Tensor, ...]]
    """State and buffers to end with if the evaluation is not finite."""


class Engine:
    """One run. `run()` may be called once."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        problem: Problem,
        backend: Backend,
        store: States,
        settings: Settings,
        progress: Progress,
        *,
        recorder: Recorder | None = None,
        observer: Observer | None = None,
        on_round: Callable[[RoundReport], bool | None] | None = None,
        analyst: Analyst | None = None,
        meter: Meter = OFF,
    ) -> None:
        self.algorithm, self.problem, self.backend, self.store = algorithm, problem, backend, store
        self.settings, self.progress = settings, progress
        self.recorder, self.observer, self.on_round = recorder, observer, on_round
        self.analyst, self._meter = analyst, meter
        self._entries: list[Entry] = []
        self._waiting: deque[Waiting] = deque()
        # Chunks of an evaluation fill the workers while the server folds and asks again.
        self._most_waiting = 1 if backend.workers else 0
        self._total = progress.ledger.total
        self._stop = False
        self._clock = time.perf_counter() - progress.seconds

    def run(self) -> Finished:
        """All rounds that are left."""
        self._meter.restart()
        while self.progress.round < self.settings.last:
            t = self.progress.round
            new, buffers, cohort, lost = self._round(t)
            weights = self.algorithm.model(new)
            is_lost = lost or not is_finite(weights)
            bad = self._settle(0 if is_lost else self._most_waiting)
            if bad is not None:
                return self._diverged(bad)
            if is_lost:
                self.store.discard()
                self._wait(self._report(t, weights, new, cohort), {}, buffers)
                self._settle()
                return self._finished("diverged", t + 1)
            self._accept(t, weights, new, buffers, cohort)
            saves = self.recorder is not None and self.recorder.is_due()
            is_last = t + 1 == self.settings.last
            is_seen = is_last or self.on_round is not None or self._looks(t)
            if is_seen or saves or not self._most_waiting:
                bad = self._settle()
                if bad is not None:
                    return self._diverged(bad)
                if saves:
                    self.save()
                if self._stop:
                    return self._finished("stopped", None)
        is_done = self.settings.last == self.settings.rounds
        return self._finished("done" if is_done else "stopped", None)

    def _accept(
        self, t: int, weights: Vec, new: Any, buffers: tuple[Tensor, ...], cohort: tuple[int, ...]
    ) -> None:
        """The round counts from here on; its evaluation may still be interrupted."""
        due = (t + 1) % self.settings.eval_every == 0 or t + 1 == self.settings.rounds
        report = self._report(t, weights, new, cohort)
        with unbroken():
            waiting = self._wait(report, {"": Done([])} if due else {}, buffers)
            self.store.commit()
            self.progress.state, self.progress.buffers = new, buffers
            self.progress.round = t + 1
        if due:
            waiting.pending = self._evaluate(new, buffers)
        self._meter.finished_round(t + 1, self.backend.workers)

    def _diverged(self, bad: Waiting) -> Finished:
        """The evaluation of a round was not finite: whatever came after it does not count."""
        self.store.discard()
        self._waiting.clear()
        self.progress.round = bad.report.round
        return self._finished("diverged", bad.report.round, *bad.before)

    def _looks(self, t: int) -> bool:
        return self.analyst is not None and self.analyst.is_due(t + 1)

    def _shown(self, state: Any, buffers: tuple[Tensor, ...]) -> dict[str, Shown]:
        """What is evaluated: the model, and what the algorithm wants to see beside it."""
        a = self.algorithm
        main = Shown(
            a.model(state),
            buffers,
            a.allowed(state),
            a.temperature(state),
            a.frozen(state, self.problem),
        )
        return {"": main} | {name: replace(main, w=w) for name, w in a.also(state).items()}

    def _evaluate(self, state: Any, buffers: tuple[Tensor, ...]) -> dict[str, Pending]:
        shown = self._shown(state, buffers)
        return {name: self.backend.evaluate(model) for name, model in shown.items()}

    def interrupted(self, alone: Evaluator | None) -> None:
        """Keep what is finished after an exception, without the workers, who may be in disorder."""
        self.store.discard()
        for waiting in self._waiting:
            if waiting.pending and alone is not None:
                shown = self._shown(waiting.report.state, waiting.buffers)
                for name, model in shown.items():
                    waiting.pending[name] = Done(alone.chunks(model))
        late: list[RoundReport] = []
        self._settle(tell=late.append)
        self.save()
        for report in late:  # only now: who is told may raise again
            self._tell(report)

    def _round(self, t: int) -> tuple[Any, tuple[Tensor, ...], tuple[int, ...], bool]:
        """New state and buffers; unchanged if nobody could answer. Last: everything was lost."""
        progress, settings = self.progress, self.settings
        drawn, once = self._draw(t)
        able = [c for c in drawn if self._works(c, t)]
        if once:
            progress.counted.update(c for c in drawn if not self.settings.sizes[c])
        how = settings.aggregation
        if not able and how is not None and how.is_private:
            able, how = self._ghost(), how.ghost()
        if not able:
            return progress.state, progress.buffers, (), False
        problem, samples = self.problem, int(settings.sizes.sum())
        if samples != problem.samples:  # somebody has joined late
            problem = replace(problem, samples=samples)
        cohort = Cohort(
            self.algorithm,
            problem,
            able,
            round=t,
            seed=settings.seed,
            buffers=progress.buffers,
            deliver=self._deliver,
            aggregation=how,
        )
        try:
            new = self.algorithm.round(progress.state, cohort)
        except NoReply as nobody:
            self.store.discard()
            return progress.state, progress.buffers, tuple(able), self._is_lost(nobody, t)
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            return progress.state, progress.buffers, tuple(able), True
        if once:
            progress.counted.update(cohort.clients)
        return new, cohort.buffers, tuple(able), False

    def _is_lost(self, nobody: NoReply, t: int) -> bool:
        """Nothing finite came, and not because those who replied are corrupted on purpose."""
        faults, found = self.settings.faults, nobody.nonfinite
        trouble = faults.at(self.settings.seed, t, found) if faults is not None else Trouble()
        return not trouble.corrupted.issuperset(found)

    def _draw(self, t: int) -> tuple[tuple[int, ...], bool]:
        """The cohort, and whether it was drawn from those not counted yet."""
        progress, who = self.progress, self.settings.participation
        here = self.settings.present()
        if self.algorithm.sampling(progress.state) == "once":
            left = np.setdiff1d(who.everybody(), list(progress.counted))
            if len(left):
                able = left if here is None else np.intersect1d(left, here)
                return who.draw(t, self.settings.seed, able), True
            progress.state = self.algorithm.exhausted(progress.state, self.problem)
            if self.algorithm.sampling(progress.state) == "once":
                return (), True
        return who.among(t, self.settings.seed, here), False

    def _works(self, client: int, t: int) -> bool:
        n = int(self.settings.sizes[client])
        local = self.algorithm.local_now(self.progress.state)
        if n == 0 or local is None:
            return n > 0
        return local.steps_for(n, self.settings.seed, t, client) > 0

    def _ghost(self) -> list[int]:
        """A client whose reply shows what one looks like, for a round in which nobody came."""
        return [next(c for c in range(len(self.settings.sizes)) if self._works(c, 0))]

    def _deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        if self.analyst is not None and self._looks(exchange.round):
            exchange = replace(exchange, watch=partial(self.analyst.replied, exchange))
        dropped: tuple[int, ...] = ()
        if self.settings.faults is not None:
            trouble = self.settings.faults.at(exchange.seed, exchange.round, clients)
            exchange = replace(exchange, trouble=trouble)
            dropped = tuple(c for c in clients if c in trouble.dropped)
        there: Sequence[int] = [c for c in clients if c not in dropped]
        how = self.settings.aggregation
        if not there and how is not None and how.is_private:
            there, exchange = self._ghost(), replace(exchange, aggregation=how.ghost())
        outcome = self.backend.deliver(exchange, there)
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
                down={**down, **outcome.down_bytes},
                up=outcome.up_bytes,
                gradients=outcome.work.gradients,
                forwards=outcome.work.forwards,
                steps=outcome.work.steps,
                dropped=dropped,
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
            seconds=time.perf_counter() - self._clock,
        )

    def _wait(
        self, report: RoundReport, pending: dict[str, Pending], buffers: tuple[Tensor, ...]
    ) -> Waiting:
        before = self.progress.state, self.progress.buffers
        waiting = Waiting(report, self._entries, pending, buffers, before)
        self._waiting.append(waiting)
        self._entries = []
        return waiting

    def _settle(
        self, leave: int = 0, tell: Callable[[RoundReport], None] | None = None
    ) -> Waiting | None:
        """Finish the rounds that wait for their evaluation, in order, but for the last `leave`.

        Stops at the first whose loss is not finite, and returns it.
        """
        while len(self._waiting) > leave:
            waiting = self._waiting[0]
            metrics = self._metrics(waiting.report.state, waiting.pending)
            report = replace(waiting.report, metrics=metrics)
            with unbroken():
                self._waiting.popleft()  # only now: an interruption must not lose the round
                self._record(report, waiting.entries)
            if self.analyst is not None and self.analyst.is_due(report.round):
                self.analyst.finished_round(report)
            (tell or self._tell)(report)
            if not math.isfinite(metrics.get("loss", 0.0)):
                return waiting
        return None

    def _tell(self, report: RoundReport) -> None:
        if self.observer is not None:
            self.observer.finished_round(report)
        if self.on_round is not None:
            copied = replace(report, weights=report.weights.clone())
            self._stop = bool(self.on_round(copied)) or self._stop

    def _record(self, report: RoundReport, entries: Sequence[Entry]) -> None:
        metrics = report.metrics
        self.progress.seconds = report.seconds
        self.progress.ledger.entries.extend(entries)
        self._total = self._total + report.cost
        row: Metrics = {}
        if metrics:
            row = {"round": report.round, **metrics, "cohort": list(report.cohort)}
            row |= {
                "bytes_down": self._total.bytes_down,
                "bytes_up": self._total.bytes_up,
                "gradients": self._total.gradients,
                "seconds": report.seconds,
            }
            self.progress.rows.append(row)
        if self.recorder is not None:
            for entry in entries:
                self.recorder.ledger(entry.row())
            if row:
                self.recorder.rounds(row)

    def _metrics(self, state: Any, pending: dict[str, Pending]) -> Metrics:
        metrics: Metrics = {}
        for name, evaluation in pending.items():
            measured = self.settings.combine(evaluation.chunks())
            wanted = ("accuracy", "loss") if name else tuple(measured)
            prefix = f"{name}_" if name else ""
            metrics |= {f"{prefix}{k}": measured[k] for k in wanted if k in measured}
        return metrics | dict(self.algorithm.log(state)) if metrics else {}

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        if self.recorder is None:
            return
        with self._meter.span("checkpoint"):
            self.recorder.checkpoint(self._point)
            self.store.saved()

    def _point(self) -> Checkpoint:
        progress = self.progress
        self.store.sync()
        return Checkpoint(
            round=progress.round,
            server=progress.state,
            buffers=progress.buffers,
            rows={path: table.index for path, table in self.store.tables.items()},
            counted=tuple(sorted(progress.counted)),
            told=tuple(sorted(progress.told)),
            seconds=progress.seconds,
            sums={path: table.sums for path, table in self.store.tables.items()},
        )

    def _finished(
        self,
        status: Status,
        diverged_at: int | None,
        state: Any = None,
        buffers: tuple[Tensor, ...] | None = None,
    ) -> Finished:
        state = self.progress.state if state is None else state
        buffers = self.progress.buffers if buffers is None else buffers
        rest = dict(zip(self.problem.moving, buffers, strict=True))
        rest |= self.algorithm.frozen(state, self.problem)
        return Finished(status, diverged_at, self.progress, self.algorithm.model(state), rest)


def _times(size: Size, n: int) -> Size:
    return Size(size.tensors * n, size.numbers * n)
