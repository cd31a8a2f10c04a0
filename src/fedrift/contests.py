"""Grids on named data: every cell becomes a run, and tuning chooses values before they start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedrift import backends, task
from fedrift.comparison import Comparison, Item, Outcome, Runner, Watch
from fedrift.data.samples import DataSet
from fedrift.experiment import Spec
from fedrift.grid import Cell, Entrant, Grid
from fedrift.prepare import load, prepare
from fedrift.search import first_setting, options_of, searches
from fedrift.session import Task
from fedrift.track import Track
from fedrift.tuned import Tuned
from fedrift.validation import hold_out


class Loader:
    """Data sets and their tensors, loaded once for all runs of a grid."""

    def __init__(self, validate: bool = False) -> None:
        self._data: dict[tuple[str, str | None, str | None], DataSet] = {}
        self._tensors = task.Tensors()
        self._validate = validate

    def task(self, spec: Spec) -> Task:
        key = (spec.data, spec.data_dir, spec.loss)
        if key not in self._data:
            data = load(spec)
            self._data[key] = hold_out(data) if self._validate else data
        return task.of_spec(spec, prepare(spec, self._data[key]), self._tensors)


def run_grid(
    cells: Sequence[Cell],
    folder: Path | None,
    workers: int | str,
    watch: Watch | None,
    track: Sequence[Track] = (),
    backend: str = "auto",
) -> Comparison:
    """Every cell that is not in the folder yet; what is there is read."""
    loader = Loader()
    items = [_item(cell, loader, folder) for cell in cells]
    return Comparison(_run(items, workers, watch, track, backend), folder)


def _run(
    items: Sequence[Item],
    workers: int | str,
    watch: Watch | None,
    track: Sequence[Track] = (),
    backend: str = "auto",
) -> list[Outcome]:
    number = backends.cores() if workers == "auto" else int(workers)
    return Runner(number, watch, track, backend).run(items)


def _item(cell: Cell, loader: Loader, folder: Path | None) -> Item:
    place = None if folder is None else folder / "runs" / cell.slug
    make = partial(loader.task, cell.spec)
    rounds = cell.spec.rounds
    entrant = cell.entrant
    return Item(entrant.name, cell.axes, cell.spec.seed, make, place, rounds, entrant.label)


def tuned(
    grid: Grid,
    tune: Sequence[str],
    folder: Path | None,
    watch: Watch | None,
    budget: int | None = None,
    begins: Callable[[Sequence[Cell]], None] | None = None,
) -> Grid:
    """The grid with the values that did best on held-out training data, algorithm by algorithm.

    Successive halving with common random numbers: all candidates of an algorithm start with a
    part of the rounds, and the better third of them goes on to more. The test data are never
    looked at. A rung of all algorithms is one comparison, so that no core waits for another.
    """
    plans = searches(grid, tune, budget)
    first, loader = first_setting(grid), Loader(validate=True)
    alive = [list(plan.candidates) for plan in plans]
    spent = [0, 0, 0]  # runs, rounds, gradient evaluations
    for rung in range(max((len(plan.rungs) for plan in plans), default=0)):
        going = [i for i, plan in enumerate(plans) if rung < len(plan.rungs)]
        asked = [(i, entrant) for i in going for entrant in alive[i]]
        cells = [_trial(first, entrant, plans[i].rungs[rung].rounds) for i, entrant in asked]
        if begins is not None:
            begins(cells)
        place = None if folder is None else folder / "tuning"
        items = [_item(cell, loader, place) for cell in cells]
        outcomes = _run(items, first.workers, watch, backend=first.backend)
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
    """A run of so many rounds, evaluated once, at its end."""
    base = replace(spec, rounds=rounds, eval_every=rounds)
    return Grid((candidate,), base, {}, (spec.seed,)).cells()[0]


def _score(outcome: Outcome) -> float:
    result = outcome.result
    if result is None or result.status == "diverged" or not result.metrics:
        return float("-inf")
    last: dict[str, Any] = result.metrics[-1]
    return float(last.get("accuracy", -last["loss"]))
