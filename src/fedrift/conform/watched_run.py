"""A run in this process of which everything can be seen: server and client states, every visit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from fedrift.backends import in_process
from fedrift.backends.visit import Call, Reply, VisitInput, Visitor
from fedrift.conform.problem import Trial
from fedrift.conform.runs import make_task
from fedrift.conform.subject import Subject
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.composition import arrivals_of, personal_path, resolve
from fedrift.core.evaluation import Done
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.isolation import at_server
from fedrift.core.messages import Packed, pack
from fedrift.core.phases import owner_of
from fedrift.core.site import Site
from fedrift.engine.callbacks import OnRound, RoundReport
from fedrift.engine.history import Finished, History, Progress
from fedrift.engine.ledger import Entry
from fedrift.engine.loop import Engine, Settings
from fedrift.storage.client_state import Store


def backwards(clients: Iterable[int]) -> list[int]:
    """The other way round."""
    return sorted(clients, reverse=True)


def clone_tensors(packed: Packed) -> Packed:
    return {p: v.clone() if isinstance(v, Tensor) else v for p, v in packed.items()}


def differing_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Paths of the leaves that are not the same bit for bit."""
    return [path for path in {**a, **b} if not _same(a.get(path, a), b.get(path, b))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        return alike and a.numpy().tobytes() == b.numpy().tobytes()
    return type(a) is type(b) and repr(a) == repr(b)


@dataclass(frozen=True)
class Seen:
    """One visit, in copies: what came in, what went out."""

    call: Call
    client: int
    down: Packed
    private: Packed
    mine: Packed
    buffers: tuple[Tensor, ...]
    frozen: Mapping[str, Tensor]
    up: Packed
    new: Packed

    def __str__(self) -> str:
        return f"'{self.call.phase}' at client {self.client} in round {self.call.round + 1}"


class Watching:
    """A backend that visits in the order it is told to and notes every visit."""

    workers = 0

    def __init__(self, visitor: Visitor, store: Store, order: in_process.Order) -> None:
        self.visitor, self._store, self._order = visitor, store, order
        self.visits: list[Seen] = []
        self.written: list[str] = []
        """What was written to though it belongs to others."""

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        return in_process.deliver(
            exchange, clients, self.visitor, self._store, order=self._order, watch=self._look
        )

    def _look(self, visit: in_process.Visit, exchange: Exchange, caller: VisitInput) -> Reply:
        call, client, private, mine = Call.of(exchange), *caller
        given = {"down": exchange.down, "private": private, "mine": mine}
        before = {name: clone_tensors(pack(value)) for name, value in given.items()}
        reply = visit(exchange, caller)
        for name, value in given.items():
            for leaf in differing_fields(before[name], pack(value)):
                self.written.append(f"'{call.phase}' wrote to {name}.{leaf}")
        seen = Seen(
            call=call,
            client=client,
            **before,
            buffers=tuple(b.clone() for b in exchange.buffers),
            frozen=dict(exchange.frozen),
            up=clone_tensors(pack(reply.up)),
            new=clone_tensors(pack(reply.mine)),
        )
        self.visits.append(seen)
        return reply

    def evaluate(self, shown: Any) -> Done:
        return Done([])

    def close(self) -> None:
        return None


class Inside:
    """One run of a trial. `run` may be called once."""

    def __init__(
        self,
        what: Subject | str,
        trial: Trial,
        order: in_process.Order = sorted,
        site: Callable[..., Any] = Site,
    ) -> None:
        task = make_task(what, trial)
        self.trial, self.task = trial, task
        self.algorithm, self.problem, self.split = task.algorithm, task.problem, task.split
        self.algorithm.check(self.problem)
        self.before = cloudpickle.dumps((self.algorithm, self.problem, self.split))
        """Copies made before the first round."""
        self.store = Store(self.algorithm, self.problem)
        visitor = Visitor(self.algorithm, self.problem, self.split, task.augment, site)
        self.backend = Watching(visitor, self.store, order)
        self.reports: list[RoundReport] = []
        self.entries: list[Entry] = []
        """The ledger so far."""

    @property
    def is_drained(self) -> bool:
        """Nobody is left to be sent out: a schedule of clients has come to its end."""
        return self.trial.participants is not None

    def client(self, client: int, path: str = "") -> Any:
        """The state a client keeps now."""
        return self.store.read(path, client)

    def evaluated(self, client: int, report: RoundReport) -> EvaluatedModel:
        """The model that a client would be evaluated with after a round."""
        path = personal_path(self.algorithm, self.problem)
        shown = self.algorithm.shown(report.state, self.problem, report.buffers)[""]
        if path is None:
            return shown
        call = Call(path, report.round - 1, self.trial.seed)
        return self.backend.visitor.personal(call, client, shown, self.client(client, path))

    def rows(self) -> dict[tuple[str, int], Packed]:
        """Copies of the states of all clients."""
        clients = range(len(self.split))
        return {
            (path, c): clone_tensors(pack(self.store.read(path, c)))
            for path in self.store.tables
            for c in clients
        }

    def run(self, after: Callable[[RoundReport], None] | None = None) -> Finished:
        """All rounds; `after` is called when a round is committed."""
        with at_server(self.trial.seed, "start"):
            start = self.algorithm.server(self.problem)
        old = [(start, clone_tensors(pack(start)))]

        def note(report: RoundReport) -> None:
            state, before = old.pop()
            if state is not report.state:  # the same object: a void round
                for leaf in differing_fields(before, pack(state)):
                    self.backend.written.append(f"'round' wrote to its old state's {leaf}")
            old.append((report.state, clone_tensors(pack(report.state))))
            self.reports.append(report)
            if after is not None:
                after(report)

        progress = Progress(start, tuple(self.problem.rest[n] for n in self.problem.moving))
        self.entries = progress.ledger.entries
        engine = Engine(
            self.algorithm,
            self.problem,
            self.backend,
            self.store,
            Settings(
                rounds=self.trial.rounds,
                participation=self.task.participation,
                seed=self.trial.seed,
                eval_every=self.trial.rounds,
                sizes=self.split.sizes,
                clock=self.task.clock,
            ),
            History(
                self.algorithm, self.store, progress, lambda chunks: {}, callbacks=[OnRound(note)]
            ),
        )
        try:
            return engine.run()
        finally:
            self.store.close()


# What an invariant sees right after a round.

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Moment:
    """What there is to see when a round has been committed."""

    inside: Inside
    report: RoundReport
    old: Any
    """The server's state before the round."""

    @property
    def new(self) -> Any:
        return self.report.state

    @property
    def t(self) -> int:
        """The round, counted from 0."""
        return self.report.round - 1

    @property
    def algorithm(self) -> Any:
        return self.inside.algorithm

    @property
    def is_void(self) -> bool:
        is_asynchronous = arrivals_of(self.algorithm) is not None
        return not (self.arrived() if is_asynchronous else self.visits())

    def arrived(self) -> list[tuple[Seen, int]]:
        """Of an asynchronous algorithm: the visits whose replies arrived in this round, in their
        order, and how many rounds ago each was sent its model."""
        before, found = Counter[int](), list[tuple[Seen, int]]()
        for entry in self.inside.entries:
            for trip in entry.trips:
                own = [v for v in self.inside.backend.visits if v.client == trip.client]
                seen = own[before[trip.client]]
                before[trip.client] += 1
                if entry.round == self.report.round:
                    found.append((seen, self.t - seen.call.round))
        return found

    def visits(self, phase: str | None = None) -> list[Seen]:
        """The visits of this round, in client-id order; `phase`: those to one method."""
        visits = [
            seen
            for seen in self.inside.backend.visits
            if seen.call.round == self.t and seen.up and phase in (None, seen.call.phase)
        ]
        return sorted(visits, key=lambda seen: seen.client)

    def mean(self, leaf: str, phase: str | None = None) -> Any:
        """Σ p_i x_i of a leaf of the replies, in double precision."""
        chosen = self.visits(phase)
        total: Any = 0.0
        for share, seen in zip(self.shares(chosen), chosen, strict=True):
            value = seen.up[leaf]
            total = total + share * (value.double() if isinstance(value, Tensor) else value)
        return total

    def shares(self, visits: Sequence[Seen]) -> list[float]:
        """p_i of the clients of visits to one method."""
        phase, sizes = visits[0].call.phase, self.inside.split.sizes
        owner, _ = resolve(self.algorithm, self.inside.problem, owner_of(phase))
        is_by_size = owner.weighting() == "samples"
        weights = [float(sizes[seen.client]) if is_by_size else 1.0 for seen in visits]
        return [weight / sum(weights) for weight in weights]

    def over_all(self, leaf: str) -> Tensor:
        """The plain mean of a leaf of all clients' states, those without data included."""
        number = len(self.inside.split)
        values = [getattr(self.inside.client(i), leaf).double() for i in range(number)]
        return torch.stack(values).mean(0)

    def differ(self, a: Tensor, b: Tensor, what: str, size: float = 1.0) -> Iterator[str]:
        """One sentence if two vectors are not equal up to the rounding of the run's type; `size`:
        of the numbers that they were made of, where these are larger."""
        distance = largest(a.double() - b.double())
        if not distance <= self.rounding(b, size):
            yield f"{what} is off by {distance:.1e} after round {self.report.round}"

    def rounding(self, x: Tensor, size: float = 1.0) -> float:
        """By how much numbers of the size of these may be off."""
        return TOLERANCE[self.inside.problem.w0.dtype] * max(1.0, size, largest(x))


def largest(x: Tensor) -> float:
    """Size of the largest number; zero where there is none, as when clients keep all of a model."""
    return float(x.abs().max()) if x.numel() else 0.0


Invariant = Callable[[Moment], Iterator[str]]
