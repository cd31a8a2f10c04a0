"""Where the time of a run goes: a meter for the main process, a site that times its visits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from torch import Tensor

from fedrift.core.flat import Batch, FlatModel
from fedrift.core.local import Run
from fedrift.core.site import Request, Site, Trained, Work

IN_WORKERS = ("gradient", "optimizer", "batch", "client", "transport", "evaluate")
IN_MAIN = ("send", "fold", "checkpoint")
REST = "idle"


class Meter:
    """Seconds by kind of work, and what they were in every round. `OFF` measures nothing."""

    def __init__(self, is_on: bool = True) -> None:
        self.is_on = is_on
        self.rounds: list[dict[str, float]] = []
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._since = perf_counter()

    @contextmanager
    def span(self, kind: str) -> Generator[None]:
        """Times what happens inside."""
        if not self.is_on:
            yield
            return
        start = perf_counter()
        try:
            yield
        finally:
            self._spent[kind] += perf_counter() - start

    def add(self, spent: Mapping[str, float]) -> None:
        """What somebody else has measured."""
        if self.is_on:
            for kind, seconds in spent.items():
                self._spent[kind] += seconds

    def restart(self) -> None:
        """Forget what it took to get ready."""
        self._spent.clear()
        self._since = perf_counter()

    def finished_round(self, number: int, workers: int) -> None:
        """Close the books of a round. What workers did not use of its time, they were idle."""
        if not self.is_on:
            return
        now = perf_counter()
        row = {"round": float(number), "wall": now - self._since}
        row |= {kind: self._spent[kind] for kind in (*IN_WORKERS, *IN_MAIN)}
        self.rounds.append(row)
        self._rest(row, workers)
        self._spent.clear()
        self._since = now

    def ended(self, workers: int) -> None:
        """What came after the last round, such as its evaluation, belongs to it."""
        if self.is_on and self.rounds:
            row = self.rounds[-1]
            row["wall"] += perf_counter() - self._since
            for kind, seconds in self._spent.items():
                row[kind] += seconds
            self._rest(row, workers)

    @staticmethod
    def _rest(row: dict[str, float], workers: int) -> None:
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
