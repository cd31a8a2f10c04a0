"""A comparison as a grid of runs: algorithms × any option × seeds, from flags or a TOML file."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from fedrift.config.spec import AXES, FIELDS, Spec, read_toml
from fedrift.errors import InputError
from fedrift.grammar import parse

COMPARISON, RUNS = "compare.toml", "runs"  # what the folder of a comparison holds
TUNING = "tuning"  # and, before them, that of one whose options are chosen

COUNTS = ("seed", "runs", "rounds", "gradients")
"""What tuning cost, in the file of a comparison."""
MOST_RUNS = 10_000


def slug(text: str) -> str:
    """A text as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:80]


@dataclass(frozen=True)
class Entrant:
    """One algorithm of a comparison, with settings of its own (tuned values, for example)."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    label: str = ""
    tuned: tuple[str, ...] = ()
    """The options whose values tuning chose."""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        own = ", ".join(f"{k} {v}" for k, v in self.settings.items())
        return f"{self.algorithm} ({own})" if own else self.algorithm


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    entrant: Entrant
    axes: Mapping[str, Any]
    """The options that vary in the grid, with their values here."""
    spec: Spec
    own: frozenset[str] = frozenset()
    """Options that an entrant of the grid, this or another, has for itself."""

    @property
    def slug(self) -> str:
        """A folder name that is readable, and unique for everything that decides the result."""
        deciding = replace(self.spec, out=None, workers="auto", backend="auto", data_dir=None)
        digest = hashlib.sha256(deciding.to_toml().encode()).hexdigest()[:8]
        named = parse(self.spec.algorithm, "algorithm")
        words = [named.code or named.name]
        words += [f"{k}{v}" for k, v in self.axes.items()] + [f"s{self.spec.seed}"]
        return f"{slug('-'.join(map(str, words)))}-{digest}"


@dataclass(frozen=True)
class Tuned:
    """Values by option, the setting and seed they were tried in, and the cost of all runs."""

    options: Mapping[str, tuple[str, ...]]
    seed: int
    runs: int
    rounds: int
    gradients: int
    at: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values of the grid's axes; empty if it has none."""

    def table(self) -> dict[str, Any]:
        """Plain values for TOML."""
        counts = {key: getattr(self, key) for key in COUNTS}
        at = {"at": dict(self.at)} if self.at else {}
        return {**counts, "options": {k: list(v) for k, v in self.options.items()}, **at}

    @staticmethod
    def of(value: object) -> Tuned:
        """From the table of a file that nobody vouches for."""
        if not isinstance(value, dict):
            raise InputError(f"tuning must be a table, not {value!r}")
        given = cast("dict[str, Any]", value)
        strange = next((k for k in given if k not in (*COUNTS, "options", "at")), None)
        if strange is not None:
            raise InputError(f"tuning: '{strange}' is unknown; remove it")
        for key in COUNTS:
            if type(given.get(key)) is not int or given[key] < 0:
                raise InputError(
                    f"tuning.{key} must be a whole number of at least 0, not {given.get(key)!r}"
                )
        options, at = given.get("options"), given.get("at", {})
        if not isinstance(options, dict) or not isinstance(at, dict):
            raise InputError("tuning needs a table 'options', and 'at' must be a table if given")
        listed = cast("dict[str, Any]", options)
        for key, values in listed.items():
            if not isinstance(values, list):
                raise InputError(f"tuning.options.{key} must be a list, not {values!r}")
        values = {k: tuple(map(str, v)) for k, v in listed.items()}
        return Tuned(values, *(given[key] for key in COUNTS), at=cast("dict[str, Any]", at))


@dataclass(frozen=True)
class Grid:
    """What is compared: entrants × axes × seeds, everything else equal."""

    entrants: tuple[Entrant, ...]
    base: Spec
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    seeds: tuple[int, ...] = (0,)
    tuned: Tuned | None = None
    """How the entrants' values were found, and what that cost."""

    @property
    def size(self) -> int:
        """How many runs it has."""
        points = math.prod(len(values) for values in self.axes.values())
        return len(self.entrants) * points * len(self.seeds)

    def cells(self) -> list[Cell]:
        """Every run, checked; seeds vary slowest, so that whole comparisons finish early."""
        values = list(itertools.product(*self.axes.values()))
        number = self.size
        if not number:
            raise InputError("nothing to compare: name at least one algorithm")
        if number > MOST_RUNS:
            raise InputError(f"the grid has {number:,} runs; keep it below {MOST_RUNS:,}")
        self._check_once()
        own = frozenset(key for entrant in self.entrants for key in entrant.settings)
        cells: list[Cell] = []
        for seed, point, entrant in itertools.product(self.seeds, values, self.entrants):
            axes = dict(zip(self.axes, point, strict=True))
            clash = next((k for k in axes if k in entrant.settings), None)
            if clash:
                raise InputError(f"{clash} varies in the grid and is set for '{entrant.name}'")
            given = {**axes, **entrant.settings, "algorithm": entrant.algorithm, "seed": seed}
            spec = Spec.of({**self.base.to_dict(), **given})
            spec.validate()
            cells.append(Cell(entrant, axes, spec, own))
        return cells

    def _check_once(self) -> None:
        """The same run twice would be two runs in one folder."""
        known = [(str(parse(e.algorithm, "algorithm")), dict(e.settings)) for e in self.entrants]
        for i, entrant in enumerate(self.entrants):
            if known[i] in known[:i]:
                raise InputError(f"algorithm '{entrant.name}' is given twice; name it once")
        for key, values in (*self.axes.items(), ("seeds", self.seeds)):
            twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
            if twice is not None:
                raise InputError(f"{key} has the value {twice} twice; give it once")

    def to_toml(self) -> str:
        """The grid as a file that `--spec` reads."""
        import tomlkit

        document = tomlkit.document()
        document.add("algorithms", [_entrant_to_toml(e) for e in self.entrants])
        document.add("seeds", list(self.seeds))
        left_out = {"algorithm", "seed", *self.axes}
        for key, value in self.base.to_dict().items():
            if key not in left_out:
                document.add(key, list(value) if isinstance(value, tuple) else value)
        if self.axes:
            document.add("grid", {k: list(v) for k, v in self.axes.items()})
        if self.tuned is not None:
            document.add("tuning", self.tuned.table())
        return tomlkit.dumps(document)


def _entrant_to_toml(entrant: Entrant) -> Any:
    if not entrant.settings and not entrant.label and not entrant.tuned:
        return entrant.algorithm
    label = {"label": entrant.label} if entrant.label else {}
    tuned = {"tuned": list(entrant.tuned)} if entrant.tuned else {}
    return {"name": entrant.algorithm, **entrant.settings, **label, **tuned}


def from_toml(path: Path) -> Grid:
    """`algorithms`, `seeds`, the options of a run, and a table [grid] with lists of values."""
    return from_values(read_toml(path))


def from_values(values: Mapping[str, object]) -> Grid:
    """A grid from typed values; unknown keys, wrong types and bounds are refused."""
    given = dict(values)
    entrants = tuple(_entrant(e) for e in _items(given.pop("algorithms", None), "algorithms"))
    seeds = seeds_of(given.pop("seeds", 1))
    table, tuned = given.pop("grid", {}), given.pop("tuning", None)
    if not isinstance(table, dict):
        raise InputError(f"grid must be a table of lists, not {table!r}")
    axes: dict[str, Sequence[Any]] = {}
    for key, listed in table.items():
        if key not in AXES:
            raise InputError(f"grid: '{key}' is no option that can vary in a grid")
        axes[key] = [FIELDS[key].read(v, f"grid.{key}") for v in _items(listed, f"grid.{key}")]
        if key in given:
            raise InputError(f"{key} is given once for all and in the grid; keep one")
    tuning = None if tuned is None else Tuned.of(tuned)
    return Grid(entrants, Spec.of(given), axes, seeds, tuning)


def _items(value: object, key: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{key} must be a list with at least one entry, not {value!r}")
    return list(value)


def _entrant(value: object) -> Entrant:
    if isinstance(value, str):
        return Entrant(value)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise InputError(f"algorithms: {value!r} must be a name or a table with a name")
    tuned = value.get("tuned", [])
    if not isinstance(tuned, list) or not all(isinstance(key, str) for key in tuned):
        raise InputError(f"algorithms: tuned must be a list of options, not {tuned!r}")
    settings = {k: v for k, v in value.items() if k not in ("name", "label", "tuned")}
    for key in settings:
        if key not in AXES:
            raise InputError(f"algorithms: '{key}' is no option of a run that can be set here")
    return Entrant(value["name"], settings, str(value.get("label", "")), tuple(tuned))


def seeds_of(value: object) -> tuple[int, ...]:
    """A number of seeds (0, 1, …), or a list of them."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_RUNS:
        return tuple(range(value))
    if isinstance(value, list) and value and all(type(v) is int and v >= 0 for v in value):
        return tuple(value)
    raise InputError(
        f"seeds must be a number of seeds, at least 1, or a list such as [0, 1], not {value!r}"
    )
