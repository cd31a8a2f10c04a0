"""Where the time of a run goes: a meter for the main process, a site that times its visits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from torch import Tensor

from fedrift.core.flat import Batch
from fedrift.core.flat_model import FlatModel
from fedrift.core.local import Run
from fedrift.core.site import Request, Site, Trained, Work

IN_WORKERS = ("gradient", "optimizer", "batch", "client", "transport", "evaluate")
IN_MAIN = ("send", "wait", "fold", "server", "record", "checkpoint")
VISIT = "visit"  # in this process: divided among what sites have noted
REST = "idle"


class Meter:
    """Seconds by kind of work, and what they were in every round. `OFF` measures nothing.

    The main process is always at one kind of work: what begins inside another interrupts it, and
    what is no span is the server's. So its kinds make up the time of a round.
    """

    def __init__(self, is_on: bool = True) -> None:
        self.is_on = is_on
        self.rounds: list[dict[str, float]] = []
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._main: defaultdict[str, float] = defaultdict(float)
        self._kind, self._since = "server", perf_counter()

    @contextmanager
    def span(self, kind: str) -> Generator[None]:
        """What happens inside is of this kind, but for what interrupts it."""
        if not self.is_on:
            yield
            return
        outer = self._turn(kind)
        try:
            yield
        finally:
            self._turn(outer)

    def _turn(self, kind: str) -> str:
        """From now on it is another kind; the one before."""
        now, before = perf_counter(), self._kind
        self._main[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    def add(self, spent: Mapping[str, float]) -> None:
        """What somebody else has measured."""
        if self.is_on:
            for kind, seconds in spent.items():
                self._spent[kind] += seconds

    def restart(self) -> None:
        """Forget what it took to get ready."""
        self._turn(self._kind)
        self._spent.clear()
        self._main.clear()

    def finished_round(self, number: int, workers: int) -> None:
        """Close the books of a round. What workers did not use of its time, they were idle."""
        if self.is_on:
            row = {"round": float(number), "wall": 0.0}
            self.rounds.append(row | dict.fromkeys((*IN_WORKERS, *IN_MAIN, REST), 0.0))
            self.ended(workers)

    def ended(self, workers: int) -> None:
        """What came after the last round, such as its evaluation, belongs to it."""
        if not self.is_on or not self.rounds:
            return
        self._turn(self._kind)
        row, visits = self.rounds[-1], self._main.pop(VISIT, 0.0)
        row["wall"] += sum(self._main.values()) + visits
        if visits:  # what nobody has noted of them is the clients' own code
            own = self._spent["client"] + visits - sum(self._spent.values())
            self._spent["client"] = max(0.0, own)
        for spent in (self._spent, self._main):
            for kind, seconds in spent.items():
                row[kind] += seconds
            spent.clear()
        used = sum(row[kind] for kind in (IN_WORKERS if workers else (*IN_WORKERS, *IN_MAIN)))
        row[REST] = max(0.0, row["wall"] * max(1, workers) - used)


OFF = Meter(is_on=False)


class TimedSite(Site):
    """A site that notes in its work how long gradients, batches and the rest of training took."""

    def __init__(self, problem: Any, data: Any, **rest: Any) -> None:
        super().__init__(problem, data, **rest)
        self._spent, self._apart = self.work.spent, 0.0
        model = problem.model
        # on the object, in front of the method: whoever asks for a gradient is timed
        model.gradients = self._timed(FlatModel.gradients.__get__(model))

    def _timed(self, gradients: Callable[[Batch], Sequence[Tensor]]) -> Any:
        def timed(batch: Batch) -> Sequence[Tensor]:
            start = perf_counter()
            try:
                return gradients(batch)
            finally:
                self._note("gradient", perf_counter() - start)

        return timed

    def _note(self, kind: str, seconds: float) -> None:
        self._spent[kind] = self._spent.get(kind, 0.0) + seconds

    def _known(self) -> float:
        return self._spent.get("gradient", 0.0) + self._spent.get("batch", 0.0)

    def train(self, *given: Any, **named: Any) -> Run:
        start, known = perf_counter(), self._known()
        self._apart = 0.0
        run = super().train(*given, **named)
        own = perf_counter() - start - (self._known() - known) - self._apart
        self._note("optimizer", own)
        return run

    def _stacked(self, request: Request) -> Trained | None:
        start = perf_counter()
        trained = super()._stacked(request)
        spent = {} if trained is None else trained.spent
        for kind, seconds in spent.items():
            self._note(kind, seconds)
        # waiting for the others is nobody's work, and its share of theirs is noted already
        known = spent.get("gradient", 0.0) + spent.get("batch", 0.0)
        self._apart = perf_counter() - start - known
        return trained

    def _batches(self, batch_size: int | None, steps: int, purpose: str) -> Iterator[Batch]:
        source = super()._batches(batch_size, steps, purpose)
        while True:
            start = perf_counter()
            batch = next(source, None)
            self._note("batch", perf_counter() - start)
            if batch is None:
                return
            yield batch


def account(work: Work, visit: float, around: float = 0.0) -> None:
    """Complete the times of a visit: what is left of it is the client method's own code."""
    if work.spent:
        work.spent["client"] = max(0.0, visit - sum(work.spent.values()))
        work.spent["transport"] = around
