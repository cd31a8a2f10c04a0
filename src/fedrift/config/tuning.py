"""What tuning will try: candidates per algorithm and rounds per rung, checked beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedrift.config import algorithms
from fedrift.config.grid import Entrant, Grid
from fedrift.config.spec import AXES, FIELDS, Spec
from fedrift.errors import InputError
from fedrift.grammar import Named, parse

KEEP = 3  # successive halving: one of so many candidates survives a rung
FIRST_RUNG = 5  # rounds at the least, unless a budget says otherwise


@dataclass(frozen=True)
class Rung:
    """So many candidates train for so many rounds; the best `kept` go on."""

    candidates: int
    rounds: int
    kept: int


@dataclass(frozen=True)
class Search:
    """One algorithm's candidates; the only one if nothing of it is tuned."""

    candidates: tuple[Entrant, ...]
    rungs: tuple[Rung, ...]


def options_of(tune: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`lr=0.01,0.1` → lr and its values."""
    values_by_option: dict[str, tuple[str, ...]] = {}
    for text in tune:
        key, sign, values = text.partition("=")
        listed = tuple(dict.fromkeys(v for v in values.split(",") if v))
        if not sign or not key or len(listed) < 2:
            raise InputError(
                f"tune '{text}' must name an option and at least two values: lr=0.01,0.1"
            )
        if key in values_by_option:
            raise InputError(f"tune '{key}' is given twice; give all values at once")
        values_by_option[key.replace("-", "_")] = listed
    return values_by_option


def searches(grid: Grid, tune: Sequence[str], budget: int | None = None) -> list[Search]:
    """One search per algorithm of the grid; refuses in one sentence what could not be run."""
    options = options_of(tune)
    for key in options:
        if key in grid.axes:
            raise InputError(f"{key} varies in the grid and is tuned; keep one")
    candidates_by_entrant = [_candidates(entrant, options) for entrant in grid.entrants]
    for key in options:
        if not any(key in candidates[0].tuned for candidates in candidates_by_entrant):
            raise InputError(
                f"tune '{key}' is an option of no algorithm here and of no run, or its value is "
                "given already; remove one of the two"
            )
    first = first_setting(grid)
    for (
        candidates
    ) in candidates_by_entrant:  # every candidate is checked before the first of them runs
        Grid(candidates, first, {}, (first.seed,)).cells()
    return [Search(c, rungs(len(c), first.rounds, budget)) for c in candidates_by_entrant]


def first_setting(grid: Grid) -> Spec:
    """Where tuning takes place: the first value of every axis, the first seed."""
    first = {key: values[0] for key, values in grid.axes.items()}
    return Spec.of({**grid.base.to_dict(), **first, "seed": grid.seeds[0]})


def rungs(candidates: int, full: int, budget: int | None = None) -> tuple[Rung, ...]:
    """Successive halving: fewer and fewer candidates train longer and longer, at most `full`.

    A budget, in rounds of all candidates together, is shared out evenly to the rungs.
    """
    numbers = [candidates]
    while numbers[-1] // KEEP > 1:
        numbers.append(numbers[-1] // KEEP)
    if candidates < 2:
        return ()
    ladder: list[Rung] = []
    for step, number in enumerate(numbers):
        if budget is None:
            first = max(FIRST_RUNG, full // KEEP ** (len(numbers) - 1))
            rounds = min(full, first * KEEP**step)
        else:
            rounds = min(full, budget // len(numbers) // number)
        if rounds < 1:
            raise InputError(
                f"tune_budget is {budget}, which gives {candidates} candidates less than a round "
                f"each; use at least {candidates * len(numbers)}"
            )
        is_last = step == len(numbers) - 1 or rounds == full
        ladder.append(Rung(number, rounds, 1 if is_last else numbers[step + 1]))
        if is_last:  # longer than the whole run would be the same run again
            break
    return tuple(ladder)


def _candidates(entrant: Entrant, options: Mapping[str, Sequence[str]]) -> tuple[Entrant, ...]:
    """Every combination of the values that concern this algorithm and were not given for it."""
    named = parse(entrant.algorithm, "algorithm")
    algorithms.check(named)
    own = {key: owner for key in options if (owner := _owner(named, key)) is not None}
    fields = [k for k in options if k not in own and k in AXES and k != "rounds"]
    free = [k for k in own if k not in own[k].options]
    free += [k for k in fields if k not in entrant.settings]
    candidates: list[Entrant] = []
    for values in itertools.product(*(options[key] for key in free)):
        algorithm, settings = named, dict[str, Any](entrant.settings)
        for key, value in zip(free, values, strict=True):
            if key in own:
                algorithm = _with(algorithm, key, value)
            else:
                settings[key] = FIELDS[key].read(FIELDS[key].parse(value, key), key)
        text = str(algorithm) if algorithm != named else entrant.algorithm
        candidates.append(Entrant(text, settings, entrant.label, tuple(free)))
    return tuple(candidates)


def _has(named: Named, key: str) -> bool:
    """Options of the reader's own are known only when it is imported: what no run has is one."""
    if algorithms.is_own(named):
        return key not in FIELDS
    return any(option.name == key for option in algorithms.entry(named.name).options)


def _owner(named: Named, key: str) -> Named | None:
    """The algorithm that has the option: this one, or one that it wraps."""
    if _has(named, key):
        return named
    return None if named.inner is None else _owner(named.inner, key)


def _with(named: Named, key: str, value: str) -> Named:
    if _has(named, key):
        return replace(named, options={**named.options, key: value})
    assert named.inner is not None  # someone inside has it
    return replace(named, inner=_with(named.inner, key, value))
