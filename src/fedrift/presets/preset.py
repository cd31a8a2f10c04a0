"""One experiment of the literature: what was published, what to run, what should come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrift.config import grid
from fedrift.config.analyses import WHAT
from fedrift.config.spec import read_toml
from fedrift.config.tuning import searches
from fedrift.errors import InputError, unknown
from fedrift.presets import studies
from fedrift.presets.findings import Cell, Findings
from fedrift.presets.relations import SIZES, Place, Reader, Relation, relation

TABLES = ("accuracy", "best", "rounds", "loss", "clients", "domains", "costs", "target", "same")
"""Of a comparison; `compared.TABLES` makes them."""
ALWAYS = ("laptop", "full")
"""The sizes that every preset has."""
FIGURES = (
    "rounds", "loss", "loss-bytes", "loss-gradients", "bytes", "time", "settings", "clients",
    "partition",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A comparison, in the form `fedrift compare --spec` reads, or a study with its settings."""

    name: str
    compare: Mapping[str, Any] | None = None
    study: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: tuple[str, ...] = ("accuracy",)
    figures: tuple[str, ...] = ("rounds",)
    analyse: tuple[str, ...] = ()
    """What is measured inside the models of the first seed, as `fedrift analyse --what`."""
    last: int | None = None
    """How many of the last evaluated rounds the figures are the mean of."""
    target: float | None = None
    seconds: float | None = None
    """Of the simulated clock: nothing after it is looked at, so that all have had equal time."""
    baseline: str | None = None
    tune: tuple[str, ...] = ()
    """As `fedrift compare --tune`: chosen for each method on held-out training data, by equal
    budgets, in the first setting and seed; methods need labels, which stay."""

    @property
    def grid(self) -> grid.Grid:
        assert self.compare is not None
        return grid.from_values(self.compare)


@dataclass(frozen=True)
class Size:
    """One version of a preset: laptop (minutes), evening (an hour or more), full (as published).

    `minutes` is an estimate for two cores of a laptop.
    """

    name: str
    minutes: float
    note: str
    """What was cut, or where it should run."""
    parts: tuple[Part, ...]
    remarks: tuple[str, ...] = ()
    """What agrees with the publication, what does not and why: stands on the page of results."""


@dataclass(frozen=True)
class Published:
    """A figure of the publication, and the cell of our tables to be put beside it."""

    what: str
    setting: str
    figure: str
    place: Place | None
    only: str = ""
    """The one size whose figure can stand beside it; the other is of another task."""
    table: str = ""
    """The published table it is a cell of; empty: it stands alone."""

    def ours(self, findings: Mapping[str, Findings], size: str) -> Cell:
        """The cell that stands beside it; None where there is none."""
        if self.place is None or self.only not in ("", size):
            return None
        return self.place.cell(findings)


@dataclass(frozen=True)
class Preset:
    """What a file beside this one says."""

    name: str
    title: str
    question: str
    source: str
    caveat: str
    published: tuple[Published, ...]
    sizes: Mapping[str, Size]
    relations: tuple[Relation, ...]

    def size(self, name: str) -> Size:
        """The version of that name; refuses one that the preset does not have."""
        if name not in self.sizes:
            raise unknown(f"size of preset '{self.name}'", name, self.sizes)
        return self.sizes[name]

    def asked(self, size: str) -> list[Relation]:
        """The relations that this size has a part for."""
        parts = {part.name for part in self.sizes[size].parts}
        here = [one for one in self.relations if one.left.part in parts]
        return [one for one in here if one.only in ("", size)]


def published_lines(preset: Preset) -> list[str]:
    """What was published, a line for each figure or row of a table."""
    lines = [f"{p.what}, {p.setting}: {p.figure}" for p in preset.published if not p.table]
    rows: dict[tuple[str, str], list[str]] = {}
    for one in preset.published:
        if one.table:
            rows.setdefault((one.table, one.what), []).append(f"{one.setting} {one.figure}")
    return lines + [f"{table}: {what}: {'; '.join(cells)}" for (table, what), cells in rows.items()]


def read(path: Path) -> Preset:
    """A preset from its file; everything is checked, no comparison is started."""
    where = f"preset '{path.stem}'"
    reader = Reader(read_toml(path), where)
    raw = {name: value for name in SIZES if (value := reader.raw(name)) is not None}
    for name in ALWAYS:
        if name not in raw:
            raise InputError(f"{where} lacks the key '{name}'")
    sizes = {name: _size(name, raw[name], f"{where}: {name}", raw["laptop"]) for name in raw}
    parts = dict.fromkeys(part.name for size in sizes.values() for part in size.parts)
    preset = Preset(
        name=path.stem,
        title=reader.text("title"),
        question=reader.text("question"),
        source=reader.text("source"),
        caveat=reader.text("caveat", ""),
        published=(
            *(
                _published(one, f"{where}: published[{i}]", parts)
                for i, one in enumerate(reader.tables("published"))
            ),
            *(
                cell
                for i, one in enumerate(reader.tables("published_tables"))
                for cell in _published_table(one, f"{where}: published_tables[{i}]", parts)
            ),
        ),
        sizes=sizes,
        relations=tuple(
            relation(one, f"{where}: relations[{i}]", parts)
            for i, one in enumerate(reader.tables("relations"))
        ),
    )
    reader.end()
    said = [one.says for one in preset.relations]
    for one in preset.relations:
        if one.why and one.why not in said:
            raise unknown(f"why of {where}: '{one.says}'", one.why, said)
    return preset


def _published(value: object, where: str, parts: Mapping[str, None]) -> Published:
    reader = Reader(value, where)
    what, setting, figure = reader.text("what"), reader.text("setting"), reader.text("figure")
    part, place, only = reader.text("part", ""), None, reader.text("only", "")
    if only and only not in SIZES:
        raise unknown(f"only of {where}", only, SIZES)
    if part:
        if part not in parts:
            raise unknown(f"part of {where}", part, parts)
        place = Place(part, reader.text("row"), reader.text("column"), reader.text("table", ""))
    reader.end()
    return Published(what, setting, figure, place, only)


def _published_table(value: object, where: str, parts: Mapping[str, None]) -> list[Published]:
    """Methods × settings: every figure of the publication, each with the cell of ours."""
    reader = Reader(value, where)
    setting, part, only = reader.text("setting"), reader.text("part"), reader.text("only", "")
    columns = [Reader(one, f"{where}: columns") for one in reader.tables("columns")]
    heads = [(one.text("says"), one.text("column")) for one in columns]
    rows = [Reader(one, f"{where}: rows") for one in reader.tables("rows")]
    reader.end()
    if part not in parts:
        raise unknown(f"part of {where}", part, parts)
    found: list[Published] = []
    for row in rows:
        what, name, figures = row.text("what"), row.text("row"), row.texts("figures")
        if len(figures) != len(heads):
            raise InputError(f"{where}: '{what}' has {len(figures)} figures for {len(heads)} heads")
        for (says, column), figure in zip(heads, figures, strict=True):
            place = Place(part, name, column)
            found.append(Published(what, says, figure, place, only, setting))
    return found


def _size(name: str, value: object, where: str, laptop: object) -> Size:
    reader = Reader(value, where)
    minutes, note, remarks = reader.number("minutes"), reader.text("note"), reader.texts("remarks")
    listed = reader.tables("parts")
    reader.end()
    parts = tuple(
        _part(_filled(one, laptop), f"{where}: parts[{i}]") for i, one in enumerate(listed)
    )
    names = [part.name for part in parts]
    if not parts or len(set(names)) < len(names):
        raise InputError(f"{where}: parts must be a list of parts, each with a name of its own")
    return Size(name, minutes, note, parts, remarks)


def _filled(part: Any, laptop: Any) -> object:
    """With `like_laptop = true` a part says only what differs from the laptop's of its name."""
    if not isinstance(part, dict) or not part.get("like_laptop"):
        return part
    base = next((p for p in laptop["parts"] if p["name"] == part.get("name")), {})
    own = {key: value for key, value in part.items() if key != "like_laptop"}
    whole = {**base, **own}
    for key in ("compare", "settings"):
        if key in base and key in own:
            whole[key] = {**base[key], **own[key]}
    return whole


def _part(value: object, where: str) -> Part:
    reader = Reader(value, where)
    name, study = reader.text("name"), reader.text("study", "")
    compare, settings = reader.table("compare"), reader.table("settings")
    tables, figures = reader.texts("tables"), reader.texts("figures")
    analyse, baseline = reader.texts("analyse"), reader.text("baseline", "")
    last, target = reader.number("last", 0), reader.number("target", 0)
    seconds = reader.number("seconds", 0)
    tune = reader.texts("tune")
    reader.end()
    if (compare is None) == (not study):
        raise InputError(f"{where}: give either compare or study")
    for given, known, kind in (
        (tables, TABLES, "table"),
        (figures, FIGURES, "figure"),
        (analyse, WHAT, "analysis"),
        ((study,) if study else (), studies.NAMES, "study"),
    ):
        for one in given:
            if one not in known:
                raise unknown(f"{kind} of {where}", one, known)
    if not 0 <= target <= 1:
        raise InputError(f"{where}: target must be an accuracy such as 0.9, not {target:g}")
    usual = Part(name)
    part = Part(
        name=name,
        compare=compare,
        study=study,
        settings=settings or {},
        tables=tables or usual.tables,
        figures=figures or usual.figures,
        analyse=analyse,
        last=int(last) or None,
        target=target or None,
        seconds=seconds or None,
        baseline=baseline or None,
        tune=tune,
    )
    if compare is not None:
        _check(part, where)
    return part


def _check(part: Part, where: str) -> None:
    try:
        part.grid.cells()
        if part.tune:
            searches(part.grid, part.tune)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
