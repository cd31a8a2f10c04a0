"""Runs a grid on one pool of workers: cores are busy to the end, results do not depend on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift import backends
from fedrift.backends.backend import opened
from fedrift.backends.pool import Pool
from fedrift.config.grid import RUNS, TUNING, Cell, Entrant, Grid, Tuned, slug
from fedrift.config.spec import Spec
from fedrift.config.tuning import first_setting, options_of, searches
from fedrift.core.isolation import one_thread, own_turn, shared_turn
from fedrift.data.samples import DataSet, hold_out
from fedrift.engine import task
from fedrift.engine.build import has_personal_models
from fedrift.engine.callbacks import Callback, callbacks_of, telling_errors
from fedrift.engine.check_objects import UNSEEN
from fedrift.engine.execute import check, execute
from fedrift.engine.objects import Tensors
from fedrift.engine.plan import Task
from fedrift.engine.prepare import is_computed, load, prepare
from fedrift.engine.result import Result
from fedrift.engine.trackers import Track
from fedrift.errors import InputError, sentence, unknown
from fedrift.storage.run_folder import is_own_column
from fedrift.storage.run_record import as_frame

if TYPE_CHECKING:
    from fedrift.report.selection import Labelled


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
    own: frozenset[str] = frozenset()
    """Options that some algorithm of the comparison has for itself."""


@dataclass(frozen=True)
class Outcome:
    """One run that was made, or why it failed."""

    item: Item
    result: Result | None
    error: str = ""
    cause: Exception | None = None
    """What it failed with, to be raised where all of them failed."""


CallbacksOf = Callable[[Item], Sequence[Callback]]
"""Makes those who watch one run of a comparison; they are told from several threads."""


@dataclass
class Runner:
    """Makes the runs of a comparison."""

    workers: int
    callbacks: CallbacksOf | None = None
    track: Sequence[Track] = ()
    backend: str = "auto"
    _building: threading.Lock = field(default_factory=threading.Lock)
    _tasks: dict[int, Task] = field(default_factory=dict[int, Task])
    """Of the runs that begin first, by their place among all."""

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """All of them, in the order given; one that fails does not stop the others. An interruption
        has those that were made as its `result`."""
        outcomes: dict[int, Outcome] = {}
        try:
            with own_turn(), one_thread(), opened(self.backend, self.workers) as pool:
                self._check(items)
                if pool is None:
                    for i, item in enumerate(items):
                        outcomes[i] = self._one(i, item, None)
                else:
                    self._together(items, pool, outcomes)
        except BaseException as error:
            vars(error)["result"] = Comparison([outcomes[i] for i in sorted(outcomes)])
            raise
        return [outcomes[i] for i in range(len(items))]

    def _together(self, items: Sequence[Item], pool: Pool, outcomes: dict[int, Outcome]) -> None:
        with ThreadPoolExecutor(self.workers + AHEAD, "fedrift run") as threads:
            waiting: dict[Future[Outcome], int] = {
                threads.submit(self._one, i, item, pool): i for i, item in enumerate(items)
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

    def _check(self, items: Sequence[Item]) -> None:
        """Refuses what any run is refused for before one begins; a seed stands for all seeds."""
        first: dict[tuple[str, str], int] = {}
        for i, item in enumerate(items):
            first.setdefault((item.label, repr(item.axes)), i)
        for i in first.values() if len(first) > 1 else ():
            try:
                with self._building:
                    made = items[i].make()
                check(made)
            except BaseException as error:
                with telling_errors(self._watching(items[i])):
                    raise error
            if i < self.workers + AHEAD:
                self._tasks[i] = made

    def _watching(self, item: Item) -> list[Callback]:
        return callbacks_of([] if self.callbacks is None else self.callbacks(item))

    def _one(self, i: int, item: Item, pool: Pool | None) -> Outcome:
        with shared_turn():
            return self._made(i, item, pool)

    def _made(self, i: int, item: Item, pool: Pool | None) -> Outcome:
        given = self._watching(item)
        with telling_errors(given), self._building:  # initial weights: torch's one generator
            task = self._tasks.pop(i, None) or item.make()
        try:
            settings = task.spec.to_dict()
            trackers = [one.follow(_name(item), settings, item.folder) for one in self.track]
            result = execute(
                task,
                workers=self.workers,
                backend=self.backend,
                out=item.folder,
                pool=pool,
                callbacks=[*trackers, *given],
            )
        except InputError:
            raise
        except Exception as error:  # of the author's own code, too: the others go on
            return Outcome(item, None, sentence(error), error)
        return Outcome(item, result)


def _name(item: Item) -> str:
    """What trackers call a run."""
    if item.folder is not None:
        return item.folder.name
    axes = "".join(f"-{key}{value}" for key, value in item.axes.items())
    return slug(f"{item.label}{axes}-s{item.seed}")


def _ends(runs: Sequence[Result]) -> list[str]:
    """Last accuracy or loss, then own metrics: `accuracy 0.8047 ± 0.0123 over 3 seeds`, `f1 …`."""
    from fedrift.report.statistics.estimates import estimate

    rows = [r.metrics[-1] for r in runs if r.metrics]
    own = [name for name in (rows[0] if rows else ()) if is_own_column(name)]
    words: list[str] = []
    for name in ["accuracy" if any(r.accuracy for r in runs) else "loss", *own]:
        of = estimate(float(row[name]) for row in rows if isinstance(row.get(name), int | float))
        if of.n:
            spread = f" ± {of.std:.4f} over {of.n} seeds" if of.n > 1 else ""
            words.append(f"{name} {of.mean:.4f}{spread}")
    return words


class Comparison:
    """The outcomes of a grid; tables and reports are made from it."""

    def __init__(self, outcomes: Sequence[Outcome], folder: Path | None = None) -> None:
        self.outcomes, self.folder = list(outcomes), folder

    def __repr__(self) -> str:
        """A line for each algorithm and setting: how its runs ended, mean and spread of seeds."""
        unseen = f": {UNSEEN}" if self.results and not any(r.metrics for r in self.results) else ""
        number = len(self.outcomes)
        lines = [f"<Comparison of {number} run{'' if number == 1 else 's'}{unseen}>"]
        cells: dict[str, list[Outcome]] = {}
        for o in self.outcomes:
            axes = "".join(f", {key} {value}" for key, value in o.item.axes.items())
            cells.setdefault(o.item.label + axes, []).append(o)
        for name, made in cells.items():
            runs = [o.result for o in made if o.result is not None]
            words = [f"{len(runs)} of {len(made)} made" if len(runs) < len(made) else ""]
            words += _ends(runs)
            words += [f"failed: {o.error}" for o in made if o.result is None][:1]
            lines.append(f"  {name}: {', '.join(filter(None, words)) or 'not evaluated'}")
        return "\n".join(lines)

    @property
    def results(self) -> list[Result]:
        """The runs that were made."""
        return [o.result for o in self.outcomes if o.result is not None]

    def of(self, label: str) -> list[Result]:
        """The runs of one algorithm, named as it was compared."""
        if all(o.item.label != label for o in self.outcomes):
            raise unknown(
                "algorithm of the comparison", label, {o.item.label for o in self.outcomes}
            )
        return [o.result for o in self.outcomes if o.item.label == label and o.result is not None]

    def report(self, path: str | Path, **options: Any) -> Path:
        """A self-contained page about the comparison; options as of `fedrift report`."""
        from fedrift.report import write

        write(self, path, **options)
        return Path(path)

    def for_report(self) -> list[Labelled]:
        """What a report of it is made from."""
        from fedrift.report.selection import Labelled

        made = [(o.item, o.result) for o in self.outcomes if o.result is not None]
        return [Labelled(r.record(), item.shown, own=item.own) for item, r in made]

    def frame(self) -> Any:
        """One row per run and evaluated round (pandas if installed, else a list of dicts)."""
        return as_frame(
            {"algorithm": o.item.label, **o.item.axes, "seed": o.item.seed, **row}
            for o in self.outcomes
            if o.result is not None
            for row in o.result.metrics
        )


# Grids on named data: every cell becomes a run, and tuning chooses values before they start.


class Loader:
    """Data sets and their tensors, loaded once for all runs of a grid."""

    def __init__(self, validate: bool = False) -> None:
        self._data: dict[tuple[str, str | None, str | None], DataSet] = {}
        self._tensors = Tensors()
        self._validate = validate

    def task(self, spec: Spec) -> Task:
        return task.task_from_spec(spec, prepare(spec, self._loaded(spec)), self._tensors)

    def compute(self, specs: Iterable[Spec]) -> None:
        """What takes minutes, before any run begins: here Ctrl-C ends it at once."""
        for spec in specs:
            if is_computed(spec):
                self._loaded(spec)

    def _loaded(self, spec: Spec) -> DataSet:
        key = (spec.data, spec.data_dir, spec.loss)
        if key not in self._data:
            data = load(spec)
            self._data[key] = hold_out(data) if self._validate else data
        return self._data[key]


def run_grid(
    cells: Sequence[Cell],
    folder: Path | None,
    workers: int | str,
    callbacks: CallbacksOf | None,
    track: Sequence[Track] = (),
    backend: str = "auto",
) -> Comparison:
    """Every cell that is not in the folder yet; what is there is read."""
    loader, cells = Loader(), _judged_alike(cells)
    loader.compute(cell.spec for cell in cells)
    items = [_item(cell, loader, folder) for cell in cells]
    return Comparison(_run(items, workers, callbacks, track, backend), folder)


def _run(
    items: Sequence[Item],
    workers: int | str,
    callbacks: CallbacksOf | None,
    track: Sequence[Track] = (),
    backend: str = "auto",
) -> list[Outcome]:
    number = backends.cores() if workers == "auto" else int(workers)
    return Runner(number, callbacks, track, backend).run(items)


def _judged_alike(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Where some have models of the clients' own, all are evaluated at clients."""
    if not any(has_personal_models(text) for text in {cell.spec.algorithm for cell in cells}):
        return cells
    return [
        replace(cell, spec=replace(cell.spec, eval_clients=f"every={cell.spec.eval_every}"))
        if cell.spec.client_test is not None and cell.spec.eval_clients is None
        else cell
        for cell in cells
    ]


def _item(cell: Cell, loader: Loader, folder: Path | None) -> Item:
    place = None if folder is None else folder / RUNS / cell.slug
    make = partial(loader.task, cell.spec)
    entrant, seed, rounds = cell.entrant, cell.spec.seed, cell.spec.rounds
    return Item(entrant.name, cell.axes, seed, make, place, rounds, entrant.label, cell.own)


def tuned(
    grid: Grid,
    tune: Sequence[str],
    folder: Path | None,
    callbacks: CallbacksOf | None,
    budget: int | None = None,
    begins: Callable[[Sequence[Cell], str], None] | None = None,
) -> Grid:
    """The grid with the values that did best on held-out training data, algorithm by algorithm.

    Successive halving with common random numbers: all candidates of an algorithm start with a
    part of the rounds, and the better third of them goes on to more. The test data are never
    looked at. A rung of all algorithms is one comparison, so that no core waits for another.
    """
    plans = searches(grid, tune, budget)
    first, loader = first_setting(grid), Loader(validate=True)
    loader.compute([first])
    alive = [list(plan.candidates) for plan in plans]
    spent = [0, 0, 0]  # runs, rounds, gradient evaluations
    steps = max((len(plan.rungs) for plan in plans), default=0)
    for rung in range(steps):
        going = [i for i, plan in enumerate(plans) if rung < len(plan.rungs)]
        asked = [(i, entrant) for i in going for entrant in alive[i]]
        cells = [_trial(first, entrant, plans[i].rungs[rung].rounds) for i, entrant in asked]
        if begins is not None:
            begins(cells, f"tuning, {rung + 1} of {steps}" if steps > 1 else "tuning")
        place = None if folder is None else folder / TUNING
        items = [_item(cell, loader, place) for cell in cells]
        outcomes = _run(items, first.workers, callbacks, backend=first.backend)
        spent[0] += len(cells)
        spent[1] += sum(cell.spec.rounds for cell in cells)
        spent[2] += sum(o.result.ledger.total.gradients for o in outcomes if o.result is not None)
        for i in going:
            scored = [
                (_score(outcome), entrant)
                for outcome, (owner, entrant) in zip(outcomes, asked, strict=True)
                if owner == i
            ]
            ranked = sorted(scored, key=lambda pair: -pair[0])  # of equals the first named
            alive[i] = [entrant for _, entrant in ranked[: plans[i].rungs[rung].kept]]
    at = {key: values[0] for key, values in grid.axes.items()}
    record = Tuned(options_of(tune), first.seed, *spent, at=at)
    return replace(grid, entrants=tuple(one[0] for one in alive), tuned=record)


def _trial(spec: Spec, candidate: Entrant, rounds: int) -> Cell:
    """A run of so many rounds, evaluated once, at its end, and called by what it tries: a label is
    that of all candidates of an algorithm."""
    base = replace(spec, rounds=rounds, eval_every=rounds)
    return Grid((replace(candidate, label=""),), base, {}, (spec.seed,)).cells()[0]


def _score(outcome: Outcome) -> float:
    result = outcome.result
    if result is None or result.status == "diverged" or not result.metrics:
        return float("-inf")
    last: dict[str, Any] = result.metrics[-1]
    return float(last.get("accuracy", -last["loss"]))
