"""The loop of a run: cohorts, rounds, evaluation, divergence, checkpoints, reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import Tensor

from fedrift.backends.backend import Backend
from fedrift.backends.profiling import OFF, Meter
from fedrift.config.client_evaluation import ClientEvaluation
from fedrift.core import alignment
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.alignment import settled
from fedrift.core.codecs import packed_bytes, rules_of
from fedrift.core.composition import address, state_path
from fedrift.core.evaluation import (
    Chunk,
    ClientFigures,
    Done,
    Evaluator,
    Pending,
    evaluation_exchange,
)
from fedrift.core.exchange import Cohort, Exchange, NoReply, Outcome, Watch
from fedrift.core.faults import Faults, RoundFaults
from fedrift.core.flat import Vec, is_finite
from fedrift.core.isolation import at_server, away_from_server
from fedrift.core.phases import is_evaluation, owner_of
from fedrift.core.problem import Problem
from fedrift.core.sampling import Participation
from fedrift.engine.aggregation import Aggregation
from fedrift.engine.callbacks import RoundReport
from fedrift.engine.clock import Clock, ClockPlan, Sent, Taken
from fedrift.engine.history import Finished, History, PendingRound, defer_interrupts
from fedrift.engine.ledger import entry_of
from fedrift.engine.plan import vectors
from fedrift.engine.result import Status
from fedrift.errors import is_overflow
from fedrift.rng import generator
from fedrift.storage.client_state import States


def _both(one: Watch, other: Watch | None) -> Watch:
    """Two who look at the same replies."""
    if other is None:
        return one

    def look(client: int, weight: float, up: Any) -> None:
        other(client, weight, up)
        one(client, weight, up)

    return look


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
    eval_clients: ClientEvaluation | None = None
    test_sizes: np.ndarray | None = None
    """How many samples each client tests on."""
    at_clients: bool = False
    """The run is judged by what clients find, so it is evaluated when they are asked."""
    present: Callable[[], np.ndarray | None] = lambda: None
    """Clients that can be asked now; None: all of them, always."""
    clock: ClockPlan | None = None
    cost: Callable[[int, int], float] = lambda client, round: 0.0
    """Examples that a client would differentiate in a round."""

    @property
    def last(self) -> int:
        return self.rounds if self.until is None else min(self.until, self.rounds)

    def clients_are_due(self, t: int) -> bool:
        """Clients evaluate after this round, and after the last in any case."""
        plan = self.eval_clients
        return plan is not None and (plan.is_due(t + 1) or t + 1 == self.rounds)

    def is_due(self, t: int) -> bool:
        """The model is evaluated after this round; always when clients evaluate."""
        often = (t + 1) % self.eval_every == 0 or t + 1 == self.rounds
        return (often and not self.at_clients) or self.clients_are_due(t)

    @cached_property
    def tested(self) -> np.ndarray:
        """The clients that evaluate: those with test data, or the same few of them every time."""
        sizes = np.empty(0) if self.test_sizes is None else self.test_sizes
        able = np.flatnonzero(sizes)
        most = None if self.eval_clients is None else self.eval_clients.sample
        if most is None or most >= len(able):
            return able
        return np.sort(generator(self.seed, "evaluated clients").choice(able, most, replace=False))


class Engine:
    """One run. `run()` may be called once."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        problem: Problem,
        backend: Backend,
        store: States,
        settings: Settings,
        history: History,
        meter: Meter = OFF,
    ) -> None:
        self.algorithm, self.problem, self.backend, self.store = algorithm, problem, backend, store
        self.settings, self.history, self._meter = settings, history, meter
        self.progress = history.progress
        replied = (e.replied for e in self.progress.ledger.entries if not is_evaluation(e.phase))
        self._visited = {client for some in replied for client in some}
        self._clock: Clock | None = None
        if settings.clock is not None:
            self._clock = Clock(settings.clock, self.progress.clock)
        self._losses = np.full(len(settings.sizes), np.nan)
        """The loss that each client reported last, in every round that is over."""
        for row in self.progress.training_rows:
            self._hear(row)
        # Chunks of an evaluation fill the workers while the server folds and asks again.
        self._most_waiting = 1 if backend.workers else 0

    def run(self) -> Finished:
        """All rounds that are left."""
        history = self.history
        self._meter.restart()
        while self.progress.round < self.settings.last and self.progress.diverged_at is None:
            t = self.progress.round
            # The reader's function is asked only about a round that there will be.
            if self.settings.participation.kind == "function" and history.settle():
                break
            with at_server(self.settings.seed, round=t):
                new, buffers, cohort, lost = self._round(t)
                weights = self.algorithm.model(new)
            is_lost = lost or not is_finite(weights)
            if history.settle(0 if is_lost else self._most_waiting):
                break
            if is_lost:
                history.wait(self._report(t, weights, new, cohort, buffers), {}, is_lost=True)
                history.settle()
                break
            clients = self._ask_clients(t, new, buffers)
            self._accept(t, weights, new, buffers, cohort, clients)
            saves, is_last = history.must_save, t + 1 == self.settings.last
            must_tell = history.looks(t) or history.is_stopped
            if is_last or saves or must_tell or not self._most_waiting:
                if history.settle():
                    break
                if saves:
                    history.save()
                if history.is_stopped:
                    return self._finished("stopped")
        if self.progress.diverged_at is not None:
            self.store.discard()
            return self._finished("diverged")
        is_done = self.settings.last == self.settings.rounds
        return self._finished("done" if is_done else "stopped")

    def _accept(
        self,
        t: int,
        weights: Vec,
        new: Any,
        buffers: tuple[Tensor, ...],
        cohort: tuple[int, ...],
        clients: dict[str, Any],
    ) -> None:
        """The round counts from here on; its evaluation may still be interrupted."""
        due = self.settings.is_due(t)
        report = self._report(t, weights, new, cohort, buffers)
        with defer_interrupts():
            waiting = self.history.wait(report, {"": Done([])} if due else {}, clients)
            self._hear(waiting.training)
            self.store.commit()
            self.progress.state, self.progress.buffers = new, buffers
            self.progress.round = t + 1
            if self._clock is not None:
                self.progress.clock = self._clock.state()
        if due:
            waiting.pending = self._evaluate(new, buffers)
        self._meter.finished_round(t + 1, self.backend.workers)

    def _hear(self, row: dict[str, Any]) -> None:
        """Remember what training has reported, evaluated or not."""
        if row:
            self._losses[row["client"]] = row["loss"]

    def _report(
        self, t: int, weights: Vec, new: Any, cohort: tuple[int, ...], buffers: tuple[Tensor, ...]
    ) -> RoundReport:
        time = None if self._clock is None else self._clock.time
        return self.history.report(t, weights, new, cohort, buffers, time)

    def _ask_clients(self, t: int, state: Any, buffers: tuple[Tensor, ...]) -> dict[str, Any]:
        """A line of the table of clients, if they evaluate after this round.

        They are asked before the round counts, so that an interruption leaves both to do; what
        they keep of the round is seen all the same.
        """
        for entry in self.history.entries:
            self._visited.update(entry.replied)
        if not self.settings.clients_are_due(t):
            return {}
        here, asked = self.settings.present(), self.settings.tested
        clients = (asked if here is None else np.intersect1d(asked, here)).tolist()
        shown = self.algorithm.shown(state, self.problem, buffers)[""]
        exchange = evaluation_exchange(self.algorithm, self.problem, shown, t, self.settings.seed)
        figures = ClientFigures()
        outcome = self.backend.deliver(replace(exchange, watch=figures.add), clients)
        self.history.entries.append(entry_of(exchange, clients, outcome))
        return figures.row(t + 1, self._visited)

    def _shown(self, state: Any, buffers: tuple[Tensor, ...]) -> dict[str, EvaluatedModel]:
        """What the server evaluates: nothing where only the clients' models mean something."""
        if self.settings.at_clients and not self.algorithm.has_global_model():
            return {}
        return self.algorithm.shown(state, self.problem, buffers)

    def _evaluate(self, state: Any, buffers: tuple[Tensor, ...]) -> dict[str, Pending]:
        shown = self._shown(state, buffers)
        return {name: self.backend.evaluate(model) for name, model in shown.items()}

    def save(self) -> None:
        """Write a checkpoint of the last finished round."""
        self.history.save()

    def interrupted(self, alone: Evaluator | None) -> None:
        """Keep what is finished after an exception, without the workers, who may be in disorder."""
        self.store.discard()

        def evaluated(waiting: PendingRound) -> dict[str, Sequence[Chunk]]:
            if alone is None:
                return {}
            state, buffers = waiting.report.state, waiting.report.buffers
            shown = self._shown(state, buffers)
            return {name: alone.chunks(model) for name, model in shown.items()}

        self.history.close_early(evaluated)

    def so_far(self) -> Finished:
        """What there is of an interrupted run."""
        return self._finished("stopped" if self.progress.diverged_at is None else "diverged")

    def _round(self, t: int) -> tuple[Any, tuple[Tensor, ...], tuple[int, ...], bool]:
        """New state and buffers; unchanged if nobody could answer. Last: everything was lost."""
        progress, settings = self.progress, self.settings
        how, able, once = settings.aggregation, list[int](), False
        is_asynchronous = settings.clock is not None and settings.clock.arrivals is not None
        if not is_asynchronous:  # else they are drawn as places become free
            drawn, once = self._draw(t)
            able = [c for c in drawn if self._works(c, t)]
            if once:
                progress.counted.update(c for c in drawn if not self.settings.sizes[c])
            if not able and how is not None and how.is_private:
                able, how = self._ghost(), how.ghost()
            if not able:
                return progress.state, progress.buffers, (), False
        problem, samples = self.problem, int(settings.sizes.sum())
        if samples != problem.samples:  # somebody has joined late
            problem = replace(problem, samples=samples)
        cohort = Cohort(
            partial(address, self.algorithm),
            problem,
            able,
            round=t,
            seed=settings.seed,
            buffers=progress.buffers,
            deliver=self._deliver,
            aggregation=how,
        )
        if alignment.CHECKS:
            alignment.check_settled("the server's state", progress.state, progress.buffers)
        try:
            new = settled(self.algorithm.round(progress.state, cohort))
        except NoReply as nobody:
            self.store.discard()
            return progress.state, progress.buffers, tuple(able), self._is_lost(nobody, t)
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            return progress.state, progress.buffers, tuple(able), True
        if once:
            progress.counted.update(cohort.clients)
        who = sorted(cohort.clients) if is_asynchronous else able
        return new, cohort.buffers, tuple(who), False

    def _is_lost(self, nobody: NoReply, t: int) -> bool:
        """Nothing finite came, and not because those who replied are corrupted on purpose."""
        faults, found = self.settings.faults, nobody.nonfinite
        trouble = faults.at(self.settings.seed, t, found) if faults is not None else RoundFaults()
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
            progress.state = settled(self.algorithm.exhausted(progress.state, self.problem))
            if self.algorithm.sampling(progress.state) == "once":
                return (), True
        if self._clock is not None and who.kind in ("available", "function"):
            here = self._clock.present(np.flatnonzero(self.settings.sizes))
        return who.among(t, self.settings.seed, here, self._losses), False

    def _works(self, client: int, t: int) -> bool:
        n = int(self.settings.sizes[client])
        local = self.algorithm.local_now(self.progress.state)
        if n == 0 or local is None:
            return n > 0
        return local.steps_for(n, self.settings.seed, t, client) > 0

    def _ghost(self) -> list[int]:
        """A client whose reply shows what one looks like, for a round in which nobody came."""
        works = (c for c in range(len(self.settings.sizes)) if self._works(c, 0))
        return list(itertools.islice(works, 1))

    def _deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        with away_from_server(exchange.seed, exchange.round, len(self.history.entries) + 1):
            return self._exchange(exchange, clients)

    def _exchange(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        watch = self.history.watch(exchange)
        if watch is not None:
            exchange = replace(exchange, watch=_both(watch, exchange.watch))
        clock, who = self._clock, self.settings.participation
        if clock is None:
            sent = self._send(exchange, clients)
            taken = Taken(sent.outcome, (), tuple(clients), sent.dropped, sent.given, sent.base)
        elif clock.plan.arrivals is None:
            exchange = replace(exchange, holds=clock.plan.late.holds)
            sent = self._send(exchange, clients)
            taken = clock.settle(exchange, clients, sent, who.size - clock.plan.late.extra)
            for client in set(taken.dropped).difference(sent.dropped):
                self._forget(exchange, client)
        else:
            draw = partial(self._leaving, exchange.round)
            taken = clock.arrivals(exchange, who.size, who.population, draw, self._send)
        entry = entry_of(
            exchange,
            taken.asked,
            taken.outcome,
            taken.dropped,
            taken.given,
            taken.base,
            taken.trips,
        )
        self.history.entries.append(entry)
        how = self.settings.aggregation
        if how is None or not how.is_private:  # a budget covers all that leaves a client
            self.history.training.add(taken.outcome.training)
        return taken.outcome

    def _send(self, exchange: Exchange, clients: Sequence[int]) -> Sent:
        """Have clients visited, but for those that fail."""
        dropped: tuple[int, ...] = ()
        if self.settings.faults is not None:
            trouble = self.settings.faults.at(exchange.seed, exchange.round, clients)
            exchange = replace(exchange, trouble=trouble)
            dropped = tuple(c for c in clients if c in trouble.dropped)
        there: Sequence[int] = [c for c in clients if c not in dropped]
        if self._clock is not None and (part := self._part(self._clock, exchange, there)):
            before = exchange.trouble or RoundFaults()
            exchange = replace(exchange, trouble=replace(before, part=part))
        how = self.settings.aggregation
        if not there and how is not None and how.is_private:
            there, exchange = self._ghost(), replace(exchange, aggregation=how.ghost())
        outcome = self.backend.deliver(exchange, there)
        strangers = {c for c in clients if c not in self.progress.told}
        first = self.problem.sent_once
        if not exchange.frozen and not first:
            strangers = set[int]()
        self.progress.told.update(strangers)
        given = clients if self.algorithm.frozen_moves() else list(strangers)
        frozen = sum(v.nbytes for v in exchange.frozen.values())
        once = dict.fromkeys(strangers, first)
        if frozen:
            once |= {c: once.get(c, 0) + frozen for c in given}
        return Sent(outcome, dropped, len(given), first * len(strangers), once)

    def _part(self, clock: Clock, exchange: Exchange, clients: Sequence[int]) -> dict[int, float]:
        """Client → share of its steps that it has time for, as far as that is known before."""
        if clock.plan.late.kind != "partial" or not clients:
            return {}
        gradients = [self.settings.cost(c, exchange.round) for c in clients]
        kind, how, w0 = exchange.signature.up, exchange.compression, self.problem.w0
        up = vectors(kind) * w0.nbytes
        if how is not None and kind is not None:
            for packing in rules_of(how, "up", kind).values():
                up -= w0.nbytes - packed_bytes(packing, len(w0), w0.dtype)
        up += sum(b.nbytes for b in exchange.buffers)
        return clock.part(exchange, clients, gradients, up)

    def _forget(self, exchange: Exchange, client: int) -> None:
        """Its reply does not count, so neither does what it has kept of it."""
        table = self.store.tables.get(state_path(self.algorithm, owner_of(exchange.phase)))
        if table is not None:
            table.drop(client)

    def _leaving(self, round: int, number: int, able: np.ndarray, size: int) -> list[int]:
        """Who leaves for a free place, of an asynchronous algorithm."""
        who = replace(self.settings.participation, size=size)
        drawn = who.draw(number, self.settings.seed, able)
        return [c for c in drawn if c in able and self._works(c, round)]

    def _finished(self, status: Status) -> Finished:
        progress = self.progress
        rest = dict(zip(self.problem.moving, progress.buffers, strict=True))
        rest |= self.algorithm.frozen(progress.state, self.problem)
        weights = self.algorithm.model(progress.state)
        return Finished(status, progress.diverged_at, progress, weights, rest)
