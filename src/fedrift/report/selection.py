"""From what the user names to runs: run folders, comparison folders, folders of either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrift.config import grid
from fedrift.config.grid import COMPARISON, RUNS, Tuned
from fedrift.errors import InputError
from fedrift.report.numbers import plural
from fedrift.report.provenance import tuned_values
from fedrift.report.statistics.measured import Measured, Recorded, measure_run
from fedrift.storage import run_folder, run_record

MOST_NAMED = 5  # folders that are listed in one sentence


@dataclass(frozen=True)
class Labelled:
    """A run with the name the comparison gives its algorithm, and the options tuning chose."""

    record: Recorded
    label: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    own: frozenset[str] = frozenset()
    """Options that some algorithm of the comparison has for itself."""


@dataclass(frozen=True)
class Selection:
    """The runs that could be read, and a sentence (without a full stop) for all that could not."""

    runs: tuple[Measured, ...]
    problems: tuple[str, ...]
    comparisons: tuple[Path, ...] = ()
    tunings: tuple[Tuned, ...] = ()


@dataclass
class _Reading:
    runs: list[Measured]
    problems: list[str]
    comparisons: list[Path]
    tunings: list[Tuned]
    seen: set[Path]


def select(sources: Iterable[Recorded | Labelled | str | Path]) -> Selection:
    """Reads everything; a folder that cannot be read is told of and left out."""
    reading = _Reading([], [], [], [], set())
    named: list[str] = []
    for place, source in enumerate(sources, start=1):
        if isinstance(source, str | Path):
            named.append(str(source))
            _folder(Path(source), reading)
        elif isinstance(source, Labelled):
            _record(source, reading, _name(source.record, place))
        else:
            _record(Labelled(source), reading, _name(source, place))
    if not reading.runs:
        where = " or ".join(f"'{name}'" for name in named[:MOST_NAMED]) or "nothing"
        why = f" ({reading.problems[0]})" if reading.problems else ""
        raise InputError(f"there is no run to report on in {where}{why}")
    return Selection(
        tuple(reading.runs),
        tuple(reading.problems),
        tuple(reading.comparisons),
        tuple(reading.tunings),
    )


def _name(record: Recorded, place: int) -> str:
    return str(record.folder) if record.folder is not None else f"run {place}"


def _folder(path: Path, reading: _Reading) -> None:
    try:
        if not path.exists():
            raise InputError(f"'{path}' does not exist; name run folders or comparison folders")
        if path.is_file():
            reading.problems.append(f"'{path}' is a file, not a run folder")
        elif (path / run_folder.SPEC).is_file():
            _run(path, reading)
        elif (path / COMPARISON).is_file():
            _comparison(path, reading)
        else:
            _several(path, reading)
    except OSError as error:
        reading.problems.append(f"'{path}' cannot be read: {error.strerror}")


def _several(path: Path, reading: _Reading) -> None:
    """A folder of run folders; what else is in it is told of."""
    foreign: list[str] = []
    inside = _inside(path)
    for folder in inside:
        if (folder / run_folder.SPEC).is_file():
            _run(folder, reading)
        elif (folder / COMPARISON).is_file():
            _comparison(folder, reading)
        else:
            foreign.append(folder.name)
    if len(foreign) == len(inside):
        reading.problems.append(
            f"'{path}' holds no run folder: neither {run_folder.SPEC} nor {COMPARISON}"
        )
    elif foreign:
        reading.problems.append(f"in '{path}' {_listed(foreign)} no run folder")


def _listed(names: list[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{plural(len(names), 'folder')} are"
    return ", ".join(f"'{name}'" for name in names) + (" is" if len(names) == 1 else " are")


def _folders(path: Path) -> list[Path]:
    own = (p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(p for p in own if p.name != run_folder.ANALYSIS)


def _inside(path: Path) -> list[Path]:
    """The folders in a folder, and those in its `runs`, where `fedrift.compare` puts them."""
    own = _folders(path)
    if path / RUNS not in own:
        return own
    return [p for p in own if p.name != RUNS] + _folders(path / RUNS)


def runs_in(path: Path) -> list[Path]:
    """The run folders in a folder or in its `runs`."""
    return [folder for folder in _inside(path) if (folder / run_folder.SPEC).is_file()]


@dataclass(frozen=True)
class Compared:
    """The run folders of a comparison in the order of its grid, with what the grid says of them."""

    runs: tuple[tuple[Path, grid.Cell | None], ...]
    problems: tuple[str, ...]
    tuned: Tuned | None


def compared(path: Path) -> Compared:
    """The runs of the grid that `compare.toml` describes; all that are there if it is damaged."""
    inside = (
        {folder.name: folder for folder in _folders(path / RUNS)} if (path / RUNS).is_dir() else {}
    )
    problems: list[str] = []
    tuned: Tuned | None = None
    try:
        described = grid.from_toml(path / COMPARISON)
        cells: dict[str, grid.Cell | None] = {cell.slug: cell for cell in described.cells()}
        tuned = described.tuned
    except InputError as error:
        problems.append(f"'{path / COMPARISON}' cannot be read, so all its runs are shown: {error}")
        cells = dict.fromkeys(inside)
    missing = [slug for slug in cells if slug not in inside]
    if missing:
        problems.append(f"'{path}' lacks {len(missing)} of {plural(len(cells), 'run')}")
    other = [name for name in inside if name not in cells]
    if other:
        problems.append(
            f"'{path / RUNS}' also holds {plural(len(other), 'run')} that {COMPARISON} does not "
            "name; they are left out"
        )
    runs = tuple((inside[slug], cell) for slug, cell in cells.items() if slug in inside)
    return Compared(runs, tuple(problems), tuned)


def _comparison(path: Path, reading: _Reading) -> None:
    described = compared(path)
    reading.comparisons.append(path)
    reading.problems.extend(described.problems)
    reading.tunings.extend([] if described.tuned is None else [described.tuned])
    for folder, cell in described.runs:
        _run(folder, reading, cell)


def _run(path: Path, reading: _Reading, cell: grid.Cell | None = None) -> None:
    place = path.resolve()
    if place in reading.seen:
        return
    reading.seen.add(place)
    try:
        record = run_record.load(path)
    except InputError as error:
        reading.problems.append(f"'{path}' is left out: {error}")
        return
    labelled = Labelled(record)
    if cell is not None:
        labelled = Labelled(record, cell.entrant.label, tuned_values(cell), cell.own)
    _record(labelled, reading, str(path))


def _record(one: Labelled, reading: _Reading, name: str) -> None:
    try:
        run = measure_run(one.record, name, one.label, one.own)
        reading.runs.append(replace(run, tuned=one.tuned) if one.tuned else run)
    except InputError as error:
        reading.problems.append(f"{error}; it is left out")
