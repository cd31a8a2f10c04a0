"""Runs a grid on one pool of workers: cores are busy to the end, results do not depend on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedrift import backends, placing, session
from fedrift.backends.pool import Pool
from fedrift.engine import Plan, RoundReport
from fedrift.errors import RunError
from fedrift.grid import slug
from fedrift.planning import is_ray
from fedrift.result import Result
from fedrift.session import Task
from fedrift.track import Track, following

AHEAD = 1  # runs beyond the number of workers that are under way, to fill what others leave idle


@dataclass(frozen=True)
class Item:
    """One run to be made: how it is called, and how its task is built when its turn comes."""

    label: str
    axes: Mapping[str, Any]
    seed: int
    make: Callable[[], Task]
    folder: Path | None = None
    rounds: int = 0
    shown: str = ""
    """What reports call the algorithm; empty: what its spec says."""


@dataclass(frozen=True)
class Outcome:
    """One run that was made, or why it failed."""

    item: Item
    result: Result | None
    error: str = ""


class Watch(Protocol):
    """Is told of the runs, from several threads."""

    def started(self, item: Item, plan: Plan) -> None: ...
    def finished_round(self, item: Item, report: RoundReport) -> None: ...
    def finished(self, outcome: Outcome) -> None: ...


@dataclass
class _Observer:
    item: Item
    watch: Watch | None

    def started(self, plan: Plan) -> None:
        if self.watch is not None:
            self.watch.started(self.item, plan)

    def finished_round(self, report: RoundReport) -> None:
        if self.watch is not None:
            self.watch.finished_round(self.item, report)


@dataclass
class Runner:
    """Makes the runs of a comparison."""

    workers: int
    watch: Watch | None = None
    track: Sequence[Track] = ()
    backend: str = "auto"
    _building: threading.Lock = field(default_factory=threading.Lock)

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """All of them, in the order given; one that fails does not stop the others."""
        with placing.one_thread():
            if is_ray(self.backend):
                with placing.on_ray(self.backend, self.workers):
                    return [self._one(item, None) for item in items]
            if self.workers == 0:
                return [self._one(item, None) for item in items]
            pool = Pool(min(self.workers, backends.MOST_WORKERS))
            try:
                return self._together(items, pool)
            finally:
                pool.close()

    def _together(self, items: Sequence[Item], pool: Pool) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with ThreadPoolExecutor(self.workers + AHEAD, "fedrift run") as threads:
            waiting: dict[Future[Outcome], int] = {
                threads.submit(self._one, item, pool): i for i, item in enumerate(items)
            }
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        outcomes[waiting.pop(future)] = future.result()
            except BaseException as reason:
                for future in waiting:
                    future.cancel()
                pool.stop(reason)  # the runs under way save what they have
                raise
        return [outcomes[i] for i in range(len(items))]

    def _one(self, item: Item, pool: Pool | None) -> Outcome:
        try:
            with self._building:  # building draws initial weights from torch's one generator
                task = item.make()
            execute = partial(
                session.execute,
                task,
                workers=self.workers if is_ray(self.backend) else 0,
                backend=self.backend,
                out=item.folder,
                pool=pool,
            )
            result = following(
                self.track,
                _name(item),
                task.spec.said(),
                item.folder,
                _Observer(item, self.watch),
                lambda seen: execute(observer=seen),
            )
            outcome = Outcome(item, result)
        except RunError as error:
            outcome = Outcome(item, None, str(error).splitlines()[0])
        if self.watch is not None:
            self.watch.finished(outcome)
        return outcome


def _name(item: Item) -> str:
    """What trackers call a run."""
    if item.folder is not None:
        return item.folder.name
    axes = "".join(f"-{key}{value}" for key, value in item.axes.items())
    return slug(f"{item.label}{axes}-s{item.seed}")


class Comparison:
    """The outcomes of a grid; tables and reports are made from it."""

    def __init__(self, outcomes: Sequence[Outcome], folder: Path | None = None) -> None:
        self.outcomes, self.folder = list(outcomes), folder

    def __repr__(self) -> str:
        """A line for each algorithm: its runs and the mean of their last accuracy or loss."""
        lines = [f"<Comparison of {len(self.outcomes)} runs>"]
        for label in dict.fromkeys(o.item.label for o in self.outcomes):
            runs, made = self.of(label), [o for o in self.outcomes if o.item.label == label]
            measure = "accuracy" if any(r.accuracy for r in runs) else "loss"
            ends = [found[-1] for r in runs if (found := getattr(r, measure))]
            words = [f"{len(runs)} of {len(made)} made" if len(runs) < len(made) else ""]
            words += [f"{measure} {sum(ends) / len(ends):.4g} on average"] if ends else []
            lines.append(f"  {label}: {', '.join(filter(None, words)) or 'not evaluated'}")
        return "\n".join(lines)

    @property
    def results(self) -> list[Result]:
        """The runs that were made."""
        return [o.result for o in self.outcomes if o.result is not None]

    def of(self, label: str) -> list[Result]:
        """The runs of one algorithm."""
        return [o.result for o in self.outcomes if o.item.label == label and o.result is not None]

    def report(self, path: str | Path, **options: Any) -> Path:
        """A self-contained page about the comparison; options as of `fedrift report`."""
        from fedrift import report

        made = [(o.item.shown, o.result) for o in self.outcomes if o.result is not None]
        report.write([report.Labelled(r.record(), label) for label, r in made], path, **options)
        return Path(path)

    def frame(self) -> Any:
        """One row per run and evaluated round (pandas if installed, else a list of dicts)."""
        rows = [
            {"algorithm": o.item.label, **o.item.axes, "seed": o.item.seed, **row}
            for o in self.outcomes
            if o.result is not None
            for row in o.result.metrics
        ]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)
