"""History of a run: finished rounds wait for evaluation, are written down, reported and saved."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

from torch import Tensor

from fedrift.backends.profiling import OFF, Meter
from fedrift.core.algorithm import Algorithm
from fedrift.core.arrivals import ClockState
from fedrift.core.evaluation import Chunk, Done, Pending, client_columns, judged_at_clients
from fedrift.core.exchange import Exchange, Watch
from fedrift.core.flat import Vec
from fedrift.core.isolation import at_server
from fedrift.core.messages import pack
from fedrift.core.training_report import Reports
from fedrift.engine.callbacks import Callback, RoundReport, writing
from fedrift.engine.check_objects import check_column
from fedrift.engine.interrupts import REMINDER
from fedrift.engine.ledger import Cost, Entry, Ledger
from fedrift.engine.result import Status
from fedrift.errors import InputError
from fedrift.storage.checkpoint import Checkpoint
from fedrift.storage.client_state import States

Metrics = dict[str, Any]
Handler = Callable[[int, FrameType | None], Any]


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
    diverged_at: int | None = None
    """The round that was not finite; state and buffers are those before it, and nothing follows."""
    clock: ClockState = field(default_factory=ClockState)
    """Where the simulated clock stands after the last round, if there is one."""
    client_rows: list[Metrics] = field(default_factory=list)
    """What clients found on test data of their own: a line per round in which they were asked."""
    training_rows: list[Metrics] = field(default_factory=list)
    """What training reported at the clients: a line per round."""


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    status: Status
    diverged_at: int | None
    progress: Progress
    weights: Vec
    rest: Mapping[str, Tensor]
    """Buffers and frozen parameters that the run has moved."""


class Recorder(Protocol):
    """Keeps what must outlive the process. It is no callback: a checkpoint holds more than they
    are told, and whatever they are told is recorded before."""

    def rounds(self, row: Mapping[str, Any]) -> None: ...
    def ledger(self, row: Mapping[str, Any]) -> None: ...
    def clients(self, row: Mapping[str, Any]) -> None: ...
    def training(self, row: Mapping[str, Any]) -> None: ...
    def is_due(self) -> bool: ...
    def checkpoint(self, make: Callable[[], Checkpoint]) -> None: ...


def is_finite(row: Mapping[str, Any]) -> bool:
    """Whether a run goes on after what was measured in a round."""
    return all(math.isfinite(row.get(name, 0.0)) for name in ("loss", "global_loss"))


# Steps that belong together: Ctrl-C waits until they are done.


class Gate:
    """A handler of signals that keeps them while it is shut, and else hands them on: one switch for
    all, so that a signal that comes while handlers are given back finds none that has no use."""

    def __init__(self, behind: Mapping[int, Handler]) -> None:
        self.behind, self.is_shut = behind, True
        self.kept: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_shut:
            self.kept.append((number, frame))
        else:
            self.behind[number](number, frame)

    def deliver(self) -> None:
        """Hand on what was kept; the last stands for all."""
        for number, frame in self.kept[-1:]:
            self.behind[number](number, frame)


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Hold back SIGINT, SIGTERM and the reminder of one that has waited for an import: what is half
    recorded could not be continued exactly.

    Only the main thread is ever interrupted; elsewhere, and where no function of Python hears a
    signal, nothing is changed.
    """
    usual = {number: _handler_of(number) for number in (signal.SIGINT, signal.SIGTERM, REMINDER)}
    heard = {number: handler for number, handler in usual.items() if callable(handler)}
    if threading.current_thread() is not threading.main_thread() or not heard:
        yield
        return
    gate = Gate(heard)
    with ExitStack() as last:
        last.callback(gate.deliver)
        try:
            for number, handler in heard.items():
                last.callback(signal.signal, number, handler)
                signal.signal(number, gate)
            yield
        finally:
            gate.is_shut = False


def _handler_of(number: int) -> Any:
    """Where giving back was cut short an open gate is left, which stands for what is behind it."""
    handler = signal.getsignal(number)
    return handler.behind[number] if isinstance(handler, Gate) and not handler.is_shut else handler


@dataclass
class PendingRound:
    """A finished round whose evaluation is still under way."""

    report: RoundReport
    entries: list[Entry]
    pending: dict[str, Pending]
    before: tuple[Any, tuple[Tensor, ...]]
    """State and buffers to end with if the evaluation is not finite."""
    is_lost: bool = False
    """Its weights are not finite: there is nothing to evaluate."""
    clients: Metrics = field(default_factory=dict)
    """What clients found on test data of their own."""
    training: Metrics = field(default_factory=dict)
    """What training reported at each of them."""


def _versions(state: Any) -> list[int]:
    """How often torch has seen each tensor of a state written to."""
    return [leaf._version for leaf in pack(state).values() if isinstance(leaf, Tensor)]


def _says_stop(callback: Callback, said: Any) -> bool:
    try:
        return bool(said)
    except (RuntimeError, ValueError):  # a tensor or an array of several numbers
        raise InputError(
            f"{type(callback).__name__}.on_round gave a {type(said).__name__}, which is neither "
            "true nor false; True stops the run"
        ) from None


class History:
    """What of a run is told and kept. Nothing in here changes the course of the run."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        store: States,
        progress: Progress,
        combine: Callable[[Sequence[Chunk]], Metrics],
        *,
        recorder: Recorder | None = None,
        callbacks: Sequence[Callback] = (),
        meter: Meter = OFF,
        at_clients: bool = False,
    ) -> None:
        """`at_clients`: the run is judged by what clients find on test data of their own."""
        self._at_clients = at_clients
        self._algorithm, self._store, self._combine = algorithm, store, combine
        self.progress, self.recorder, self._meter = progress, recorder, meter
        self._told = writing(callbacks, "on_round")
        self._shown = writing(callbacks, "on_reply")
        self.entries: list[Entry] = []
        self.training = Reports()
        """Of the round under way."""
        self.waiting: deque[PendingRound] = deque()
        self.is_stopped = False
        """A callback has asked to stop."""
        self._total = progress.ledger.total
        self._clock = time.perf_counter() - progress.seconds

    def looks(self, t: int) -> bool:
        """Somebody wants to see this round before the next one begins."""
        return any(one.looks_at(t + 1) for one in self._told)

    def watch(self, exchange: Exchange) -> Watch | None:
        """Whoever sees the replies of an exchange; None if nobody looks."""
        due = [one for one in self._shown if one.looks_at(exchange.round + 1)]
        return partial(_show, due, exchange) if due else None

    @property
    def must_save(self) -> bool:
        return self.recorder is not None and self.recorder.is_due()

    def report(
        self,
        t: int,
        weights: Vec,
        state: Any,
        cohort: tuple[int, ...],
        buffers: tuple[Tensor, ...],
        clock: float | None = None,
    ) -> RoundReport:
        return RoundReport(
            round=t + 1,
            weights=weights,
            state=state,
            metrics={},
            cost=sum((e.cost for e in self.entries), Cost()),
            cohort=cohort,
            nonfinite=tuple(c for e in self.entries for c in e.nonfinite),
            seconds=time.perf_counter() - self._clock,
            buffers=buffers,
            training=self.training.columns(),
            time=clock,
        )

    def wait(
        self,
        report: RoundReport,
        pending: dict[str, Pending],
        clients: Metrics | None = None,
        is_lost: bool = False,
    ) -> PendingRound:
        """A round is over; its evaluation may not be."""
        before = self.progress.state, self.progress.buffers
        waiting = PendingRound(
            report,
            self.entries,
            pending,
            before,
            is_lost,
            clients or {},
            self.training.row(report.round),
        )
        self.waiting.append(waiting)
        self.entries, self.training = [], Reports()
        return waiting

    def settle(self, leave: int = 0, tell: Callable[[RoundReport], None] | None = None) -> bool:
        """Finish the rounds that wait for their evaluation, in order, but for the last `leave`.

        The first that is not finite ends the run: True, and whatever came after does not count.
        """
        while len(self.waiting) > leave:
            with self._meter.span("record"):
                self._settle_next(tell or self._tell)
            if self.progress.diverged_at is not None:
                return True
        return False

    def _settle_next(self, tell: Callable[[RoundReport], None]) -> None:
        waiting = self.waiting[0]
        metrics = self._metrics(waiting.report, waiting.pending, waiting.clients)
        report = replace(waiting.report, metrics=metrics)
        with defer_interrupts():
            self.waiting.popleft()  # only now: an interruption must not lose the round
            self._record(report, waiting)
            if waiting.is_lost or not is_finite(metrics):
                self._diverged(waiting)
        tell(report)

    def _diverged(self, bad: PendingRound) -> None:
        """Part of what is recorded: a run that is interrupted now must end as it would have."""
        self.waiting.clear()
        self.progress.state, self.progress.buffers = bad.before
        self.progress.round = self.progress.diverged_at = bad.report.round

    def close_early(self, evaluated: Callable[[PendingRound], dict[str, Sequence[Chunk]]]) -> None:
        """After an exception: evaluate what waits by other means, write it down and save."""
        for waiting in self.waiting:
            if waiting.pending:
                again = evaluated(waiting)
                waiting.pending |= {name: Done(chunks) for name, chunks in again.items()}
        late: list[RoundReport] = []
        self.settle(tell=late.append)
        self.save()
        for report in late:  # only now: who is told may raise again
            self._tell(report)

    def _tell(self, report: RoundReport) -> None:
        for one in self._told:
            seen = report
            if one.looks_at(report.round):  # it may do with its weights what it likes
                seen = replace(report, weights=report.weights.clone())
            versions = _versions(report.state)
            self.is_stopped = _says_stop(one, one.on_round(seen)) or self.is_stopped
            if _versions(report.state) != versions:
                raise InputError(
                    f"{type(one).__name__}.on_round has changed the server's state, and the run "
                    "with it: work on a copy, such as report.state.w.clone()"
                )

    def _record(self, report: RoundReport, waiting: PendingRound) -> None:
        metrics, entries, clients = report.metrics, waiting.entries, waiting.clients
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
            }
            if report.time is not None:
                row["time"] = report.time
            row["seconds"] = report.seconds
            self.progress.rows.append(row)
        if clients:
            self.progress.client_rows.append(clients)
        if waiting.training:
            self.progress.training_rows.append(waiting.training)
        if self.recorder is not None:
            if clients:
                self.recorder.clients(clients)
            if waiting.training:
                self.recorder.training(waiting.training)
            for entry in entries:
                self.recorder.ledger(entry.row())
            if row:
                self.recorder.rounds(row)

    def _metrics(
        self, report: RoundReport, pending: dict[str, Pending], clients: Metrics
    ) -> Metrics:
        metrics: Metrics = {}
        for name, evaluation in pending.items():
            measured = self._combine(evaluation.chunks())
            wanted = ("accuracy", "loss") if name else tuple(measured)
            prefix = f"{name}_" if name else ""
            metrics |= {f"{prefix}{k}": measured[k] for k in wanted if k in measured}
        if clients:
            columns = client_columns(clients)
            at_clients = self._at_clients
            metrics = (
                judged_at_clients(metrics, clients, columns) if at_clients else metrics | columns
            )
        if not metrics:
            return {}
        with at_server(0, "log", report.round):
            logs = dict(self._algorithm.log(report.state))
        for name in logs:
            check_column(name, "log() of the algorithm")
            if name in metrics:
                raise InputError(f"log() of the algorithm: '{name}' is also a metric's name")
        return metrics | logs | dict(report.training)

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        if self.recorder is None:
            return
        with self._meter.span("checkpoint"):
            self.recorder.checkpoint(self._point)
            self._store.saved()

    def _point(self) -> Checkpoint:
        progress = self.progress
        self._store.sync()
        return Checkpoint(
            round=progress.round,
            server=progress.state,
            buffers=progress.buffers,
            rows={path: table.index for path, table in self._store.tables.items()},
            counted=tuple(sorted(progress.counted)),
            told=tuple(sorted(progress.told)),
            seconds=progress.seconds,
            sums={path: table.sums for path, table in self._store.tables.items()},
            diverged_at=progress.diverged_at,
            clock=progress.clock,
        )


def _show(due: Sequence[Callback], exchange: Exchange, client: int, weight: float, up: Any) -> None:
    for one in due:
        one.on_reply(exchange, client, weight, up)
