"""Grids on named data: every cell becomes a run, and tuning chooses values before they start."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedrift import backends, task
from fedrift.comparison import Comparison, Item, Outcome, Runner, Watch
from fedrift.data.samples import DataSet
from fedrift.errors import InputError
from fedrift.experiment import FIELDS, Spec
from fedrift.grammar import parse
from fedrift.grid import Cell, Entrant, Grid
from fedrift.prepare import load, prepare
from fedrift.session import Task
from fedrift.validation import hold_out

KEEP = 3  # successive halving: one of so many candidates survives a rung
FIRST_RUNG = 5  # rounds at the least


class Loader:
    """Data sets and their tensors, loaded once for all runs of a grid."""

    def __init__(self, validate: bool = False) -> None:
        self._data: dict[tuple[str, str | None], DataSet] = {}
        self._tensors = task.Tensors()
        self._validate = validate

    def task(self, spec: Spec) -> Task:
        key = (spec.data, spec.data_dir)
        if key not in self._data:
            data = load(spec)
            self._data[key] = hold_out(data) if self._validate else data
        return task.of_spec(spec, prepare(spec, self._data[key]), self._tensors)


def run_grid(
    cells: Sequence[Cell],
    folder: Path | None,
    workers: int | str,
    watch: Watch | None,
    backend: str = "auto",
) -> Comparison:
    """Every cell that is not in the folder yet; what is there is read."""
    loader = Loader()
    items = [_item(cell, loader, folder) for cell in cells]
    number = backends.cores() if workers == "auto" else int(workers)
    return Comparison(Runner(number, watch, backend).run(items), folder)


def _item(cell: Cell, loader: Loader, folder: Path | None) -> Item:
    place = None if folder is None else folder / "runs" / cell.slug
    make = partial(loader.task, cell.spec)
    rounds = cell.spec.rounds
    return Item(cell.entrant.name, cell.axes, cell.spec.seed, make, place, rounds)


@dataclass(frozen=True)
class Tried:
    """One candidate of one algorithm in one rung."""

    entrant: Entrant
    score: float
    gradients: int


def tuned(grid: Grid, tune: Sequence[str], folder: Path | None, watch: Watch | None) -> Grid:
    """The grid with the values that did best on held-out training data, algorithm by algorithm.

    Successive halving with common random numbers: all candidates of an algorithm start with a
    third of a third … of the rounds, and the better third of them goes on to three times as many.
    The test data are never looked at.
    """
    options = dict(_option(text) for text in tune)
    cells = grid.cells()
    first = replace(cells[0].spec, **{k: v for k, v in cells[0].axes.items()})
    chosen: list[Entrant] = []
    for entrant in grid.entrants:
        candidates = _candidates(entrant, options)
        rounds = max(FIRST_RUNG, first.rounds // KEEP ** _rungs(len(candidates)))
        while len(candidates) > 1:
            ranked = _rung(candidates, first, min(rounds, first.rounds), folder, watch)
            kept = max(1, len(candidates) // KEEP)
            candidates = [t.entrant for t in ranked[:kept]]
            rounds *= KEEP
        chosen.append(candidates[0])
    return replace(grid, entrants=tuple(chosen))


def _rungs(candidates: int) -> int:
    rungs = 0
    while candidates > 1:
        candidates //= KEEP
        rungs += 1
    return max(0, rungs - 1)


def _option(text: str) -> tuple[str, list[str]]:
    key, sign, values = text.partition("=")
    listed = [v for v in values.split(",") if v]
    if not sign or not key or len(listed) < 2:
        raise InputError(f"tune '{text}' must name an option and at least two values: lr=0.01,0.1")
    return key, listed


def _candidates(entrant: Entrant, options: Mapping[str, Sequence[str]]) -> list[Entrant]:
    """Every combination of the values that concern this algorithm."""
    from fedrift import catalogue

    named = parse(entrant.algorithm, "algorithm")
    own = {o.name for o in catalogue.entry(named.name).options}
    concerned = {k: v for k, v in options.items() if k in own or k in FIELDS}
    for key in options:
        if key not in concerned and not _anyone_has(key):
            raise InputError(f"tune '{key}' is an option of no algorithm and of no run")
    found: list[Entrant] = []
    for values in itertools.product(*concerned.values()):
        picked = dict(zip(concerned, values, strict=True))
        text = {**named.options, **{k: v for k, v in picked.items() if k in own}}
        fields = {
            k: FIELDS[k].read(FIELDS[k].parse(v, k), k) for k, v in picked.items() if k not in own
        }
        algorithm = str(replace(named, options=text))
        found.append(Entrant(algorithm, {**entrant.settings, **fields}, entrant.label))
    return found


def _anyone_has(key: str) -> bool:
    from fedrift import catalogue

    return any(o.name == key for e in catalogue.algorithms().values() for o in e.options)


def _rung(
    candidates: Sequence[Entrant],
    spec: Spec,
    rounds: int,
    folder: Path | None,
    watch: Watch | None,
) -> list[Tried]:
    """Candidates by their validation accuracy after so many rounds, best first."""
    base = replace(spec, rounds=rounds, eval_every=rounds)
    cells = Grid(tuple(candidates), base, {}, (spec.seed,)).cells()
    place = None if folder is None else folder / "tuning"
    loader = Loader(validate=True)
    items = [_item(cell, loader, place) for cell in cells]
    number = backends.cores() if spec.workers == "auto" else int(spec.workers)
    outcomes = Runner(number, watch, spec.backend).run(items)
    tried = [
        Tried(candidate, _score(outcome), outcome.result.ledger.gradients if outcome.result else 0)
        for candidate, outcome in zip(candidates, outcomes, strict=True)
    ]
    return sorted(tried, key=lambda t: -t.score)


def _score(outcome: Outcome) -> float:
    result = outcome.result
    if result is None or result.status == "diverged" or not result.metrics:
        return float("-inf")
    last: dict[str, Any] = result.metrics[-1]
    return float(last.get("accuracy", -last["loss"]))
