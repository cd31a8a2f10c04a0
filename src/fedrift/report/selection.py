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
from fedrift.report.provenance import chosen
from fedrift.report.statistics.measured import Measured, Recorded, measured
from fedrift.storage import run_folder

MOST_NAMED = 5  # folders that are listed in one sentence


@dataclass(frozen=True)
class Labelled:
    """A run with the name the comparison gives its algorithm, and the options tuning chose."""

    record: Recorded
    label: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Selection:
    """The runs that could be read, and a sentence (without a full stop) for all that could not."""

    runs: tuple[Measured, ...]
    problems: tuple[str, ...]
    comparisons: tuple[Path, ...] = ()
    tunings: tuple[Tuned, ...] = ()


@dataclass
class _Found:
    runs: list[Measured]
    problems: list[str]
    comparisons: list[Path]
    tunings: list[Tuned]
    seen: set[Path]


def select(sources: Iterable[Recorded | Labelled | str | Path]) -> Selection:
    """Reads everything; a folder that cannot be read is told of and left out."""
    found = _Found([], [], [], [], set())
    named: list[str] = []
    for place, source in enumerate(sources, start=1):
        if isinstance(source, str | Path):
            named.append(str(source))
            _folder(Path(source), found)
        elif isinstance(source, Labelled):
            _record(source, found, _name(source.record, place))
        else:
            _record(Labelled(source), found, _name(source, place))
    if not found.runs:
        where = " or ".join(f"'{name}'" for name in named[:MOST_NAMED]) or "nothing"
        why = f" ({found.problems[0]})" if found.problems else ""
        raise InputError(f"there is no run to report on in {where}{why}")
    return Selection(
        tuple(found.runs), tuple(found.problems), tuple(found.comparisons), tuple(found.tunings)
    )


def _name(record: Recorded, place: int) -> str:
    return str(record.folder) if record.folder is not None else f"run {place}"


def _folder(path: Path, found: _Found) -> None:
    try:
        if not path.exists():
            raise InputError(f"'{path}' does not exist; name run folders or comparison folders")
        if path.is_file():
            found.problems.append(f"'{path}' is a file, not a run folder")
        elif (path / run_folder.SPEC).is_file():
            _run(path, found)
        elif (path / COMPARISON).is_file():
            _comparison(path, found)
        else:
            _several(path, found)
    except OSError as error:
        found.problems.append(f"'{path}' cannot be read: {error.strerror}")


def _several(path: Path, found: _Found) -> None:
    """A folder of run folders; what else is in it is told of."""
    foreign: list[str] = []
    inside = _folders(path)
    for folder in inside:
        if (folder / run_folder.SPEC).is_file():
            _run(folder, found)
        elif (folder / COMPARISON).is_file():
            _comparison(folder, found)
        else:
            foreign.append(folder.name)
    if len(foreign) == len(inside):
        found.problems.append(
            f"'{path}' holds no run folder: neither {run_folder.SPEC} nor {COMPARISON}"
        )
    elif foreign:
        found.problems.append(f"in '{path}' {_listed(foreign)} no run folder")


def _listed(names: list[str]) -> str:
    if len(names) > MOST_NAMED:
        return f"{plural(len(names), 'folder')} are"
    return ", ".join(f"'{name}'" for name in names) + (" is" if len(names) == 1 else " are")


def _folders(path: Path) -> list[Path]:
    own = (p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    return sorted(p for p in own if p.name != run_folder.ANALYSIS)


def _comparison(path: Path, found: _Found) -> None:
    """The runs of the grid that `compare.toml` describes, in its order."""
    found.comparisons.append(path)
    inside = (
        {folder.name: folder for folder in _folders(path / RUNS)} if (path / RUNS).is_dir() else {}
    )
    try:
        described = grid.from_toml(path / COMPARISON)
        cells: dict[str, grid.Cell | None] = {cell.slug: cell for cell in described.cells()}
        found.tunings.extend([] if described.tuned is None else [described.tuned])
    except InputError as error:
        found.problems.append(
            f"'{path / COMPARISON}' cannot be read, so all its runs are shown: {error}"
        )
        cells = dict.fromkeys(inside)
    missing = [slug for slug in cells if slug not in inside]
    if missing:
        found.problems.append(f"'{path}' lacks {len(missing)} of {plural(len(cells), 'run')}")
    other = [name for name in inside if name not in cells]
    if other:
        found.problems.append(
            f"'{path / RUNS}' also holds {plural(len(other), 'run')} that {COMPARISON} does not "
            "name; they are left out"
        )
    for slug, cell in cells.items():
        if slug in inside:
            _run(inside[slug], found, cell)


def _run(path: Path, found: _Found, cell: grid.Cell | None = None) -> None:
    place = path.resolve()
    if place in found.seen:
        return
    found.seen.add(place)
    try:
        record = run_folder.load(path)
    except InputError as error:
        found.problems.append(f"'{path}' is left out: {error}")
        return
    label, tuned = ("", {}) if cell is None else (cell.entrant.label, chosen(cell))
    _record(Labelled(record, label, tuned), found, str(path))


def _record(one: Labelled, found: _Found, name: str) -> None:
    try:
        run = measured(one.record, name, one.label)
        found.runs.append(replace(run, tuned=one.tuned) if one.tuned else run)
    except InputError as error:
        found.problems.append(f"{error}; it is left out")
