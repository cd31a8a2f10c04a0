"""Statements such as "SCAFFOLD above FedAvg", decided from what runs have measured.

The rule stands in the preset's file before the run: which quantity, which two methods or which two
differences, and the margin. With three seeds or more the 95 % interval of the difference, seed by
seed, decides: *seen* if all of it is on the claimed side of the margin, *refuted* if none of it is,
else *undecided*. And `Reader`, by which relations and all else of a preset's file are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fedrift.errors import InputError, decimals, unknown
from fedrift.figures.svg import MINUS
from fedrift.presets.findings import Cell, Findings, Table
from fedrift.report.statistics.estimates import Estimate, estimate

T = TypeVar("T")
NOUNS = {str: "a text", float: "a number", int: "a whole number", list: "a list", dict: "a table"}


# Trends that runs much smaller than the published ones can be asked for: shape, not value.
TRENDS = {
    "sam": "one class per client: FedASAM ≥ FedSAM ≥ FedAvg − 1 point",
    "swa": "SWA ≥ the same without it in the last quarter of the rounds, and calmer",
    "ghbm": "one class per client: GHBM with τ = 1/C > FedCM ≈ FedAvg",
    "augmentation": "Mixup and Cutout help a centralised run, but not one class per client",
    "fed3r": "Fed3R is the same at every α",
    "alpha": "accuracy grows with α",
    "recency": "FedAvg's accuracy per class swings with the cohort, Fed3R's does not",
}
"""By the name that a relation gives as its `trend`."""


SIZES = ("laptop", "evening", "full")
FEWEST = 3  # seeds that can decide
PLUS = "+"
SIGNS = (">", "<", ">=", "<=", "=")
NUMBER = re.compile(r"[+\u2212-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
AFTERWARDS, CERTAIN = "added when the figures were known", "true by definition"
Costs = dict[int, float | None]
ALONE = ("accuracy", "loss")
"""Columns of a part with one setting: beside another measure they say nothing."""
TO_TARGET = "to target"
"""Ends the names of costs that are None in a seed that does not meet the target."""
DIVERGED = "diverged"
"""Begins the cell of a method whose runs became infinite: worse than any figure."""


@dataclass(frozen=True)
class Place:
    """A cell of a part's tables; without a table the first one that has such a row and column.

    A column that other sizes head otherwise is written `one | other`.
    """

    part: str
    row: str
    column: str
    table: str = ""
    measure: str = ""
    """What of its runs is compared seed by seed; else what the column says, or the accuracy."""

    def by_seed(self, parts: Mapping[str, Findings]) -> dict[int, float]:
        """The quantity for every seed; nothing where it was not kept or a seed became infinite."""
        found = self.kept(parts)
        return {} if None in found.values() else cast("dict[int, float]", found)

    def infinite(self, parts: Mapping[str, Findings]) -> int:
        """In how many seeds it became infinite, if in all of them; else 0."""
        found = self.kept(parts)
        return len(found) if found and set(found.values()) == {None} else 0

    def kept(self, parts: Mapping[str, Findings]) -> Costs:
        """The quantity for every seed; None: it became infinite, or the target was not met."""
        findings = parts.get(self.part)
        if findings is None:
            return {}
        found = (findings.by_seed(self.row, column, self.measure) for column in self.columns)
        return next((one for one in found if one), {})

    @property
    def columns(self) -> list[str]:
        return self.column.split(" | ")

    def cell(self, parts: Mapping[str, Findings]) -> Cell:
        """None where the parts that were run hold no such cell."""
        findings = parts.get(self.part)
        for table in () if findings is None else findings.tables:
            if self.table in ("", table.title) and (column := _column(table, self)) is not None:
                return table.cell(self.row, column)
        return None


def _column(table: Table, place: Place) -> str | None:
    """The one of the place's columns that the table has, if it has the row."""
    if not any(str(row[0]) == place.row for row in table.rows):
        return None
    return next((column for column in place.columns if column in table.columns), None)


@dataclass(frozen=True)
class Relation:
    """`left sign right + slack`; the right side is another cell or a number."""

    says: str
    left: Place
    sign: str
    right: Place | float
    slack: float = 0.0
    """The margin: by how much at least, in points of accuracy or in the measure's own unit."""
    than: tuple[Place, Place] | None = None
    """Two other places: then the difference of the first two is held against that of these."""
    needs: tuple[Place, float] | None = None
    """A cell that must be above a number, or the run was too small to say anything."""
    trend: str = ""
    """Which of the expected trends it is a case of."""
    afterwards: bool = False
    """It was thought of when the figures were known."""
    only: str = ""
    """The one size it is asked of; the other has the part, but not the figure."""
    certain: bool = False
    """It follows from the definitions: a run that breaks it shows a mistake in the program."""
    why: str = ""
    """What another relation of the preset says, which tests a reason should this one be refuted."""
    published: str = ""
    """What the source has for it, in its own figures: then it is one of the main claims."""

    @property
    def words(self) -> str:
        """What it says, with what a reader must know of it."""
        marks = [AFTERWARDS] if self.afterwards else []
        marks += [CERTAIN] if self.certain else []
        return f"{self.says} ({'; '.join(marks)})" if marks else self.says

    @property
    def rule(self) -> str:
        """The quantity and the margin, as they are decided."""
        margin = f" {PLUS if self.slack > 0 else MINUS} {abs(self.slack):g}" if self.slack else ""
        if self.sign == "=":
            margin = f" ± {self.slack:g}" if self.slack else ""
        right = self.right.row if isinstance(self.right, Place) else f"{self.right:g}"
        if self.than is None:
            at = [self.left.measure, self.left.columns[0]]
            if self.left.measure and at[1] in ALONE:
                at.pop()
            there = ""
            if isinstance(self.right, Place) and self.right.column != self.left.column:
                there = f" at {self.right.columns[0]}"
            if isinstance(self.right, Place) and self.right.part != self.left.part:
                there += f" in {self.right.part}"
            said = f"{self.left.row} {spelt(self.sign)} {right}{there}{margin}"
            return f"{', '.join(filter(None, at))}: {said}"
        one, other = self.than
        part = "" if one.part == self.left.part else f" in {one.part}"
        there = f"({one.row} {MINUS} {other.row}, {one.columns[0]}{part})"
        here = f"({self.left.row} {MINUS} {right}, {self.left.columns[0]})"
        measure = f"{self.left.measure}: " if self.left.measure else ""
        return f"{measure}{here} {spelt(self.sign)} {there}{margin}"

    def decide(self, parts: Mapping[str, Findings]) -> Verdict | None:
        """None where one side was not measured."""
        found = self._paired(parts)
        if found is not None:
            too_small = self._too_small(parts)
            if too_small:
                return Verdict(self.says, too_small, None, found.n)
            return self._by_interval(found)
        if self.than is not None:
            return None
        quantity = self.left.measure or self.left.column
        if quantity.endswith(TO_TARGET) and isinstance(self.right, Place):
            return self._unmet(self.left.kept(parts), self.right.kept(parts))
        left = self.left.cell(parts)
        right = self.right.cell(parts) if isinstance(self.right, Place) else self.right
        if left is None or right is None:
            return None
        words = f"{shown(left)} {spelt(self.sign)} {shown(right)}"
        if self.slack and self.sign == "=":
            words += f" ± {self.slack:g}"
        elif self.slack:
            words += f" {PLUS if self.slack > 0 else MINUS} {abs(self.slack):g}"
        too_small = self._too_small(parts)
        if too_small:
            return Verdict(self.says, f"{words}; {too_small}", None)
        return Verdict(self.says, words, self._holds(left, right), self._without_end(parts))

    def _unmet(self, left: Costs, right: Costs) -> Verdict | None:
        """Of costs to a target that one side did not meet in every seed: if it met it in none, and
        the other in all, it costs more, whatever the margin."""
        if not left or not right:
            return None
        met = [sum(value is not None for value in one.values()) for one in (left, right)]
        seeds = min(len(left), len(right))
        words = f"met by {met[0]} of {len(left)} and {met[1]} of {len(right)} seeds"
        is_clear = seeds >= FEWEST and {met[0] / len(left), met[1] / len(right)} == {0.0, 1.0}
        held = (met[1] == 0) == (self.sign in ("<", "<=")) and self.sign != "="
        return Verdict(self.says, words, held if is_clear else None, seeds)

    def _without_end(self, parts: Mapping[str, Findings]) -> int:
        """Seeds, if one side became infinite in all of them and the other in none: it is worse."""
        if not isinstance(self.right, Place):
            return 0
        for one, other in ((self.left, self.right), (self.right, self.left)):
            seeds = min(one.infinite(parts), len(other.by_seed(parts)))
            if seeds >= FEWEST:
                return seeds
        return 0

    def _too_small(self, parts: Mapping[str, Findings]) -> str:
        """Why this size has learned too little to say anything; empty if it has not."""
        if self.needs is None:
            return ""
        cell, least = self.needs[0].cell(parts), self.needs[1]
        reached = value_of(cell, -math.inf)
        return (
            f"{shown(cell)} is not above {least:g}" if reached is None or reached <= least else ""
        )

    def _paired(self, parts: Mapping[str, Findings]) -> Estimate | None:
        """Of the difference, seed by seed; None where fewer than three seeds have both sides."""
        minus = [(self.left, 1), (self.right, -1)]
        minus += [] if self.than is None else [(self.than[0], -1), (self.than[1], 1)]
        sides = [(p.by_seed(parts), f) for p, f in minus if isinstance(p, Place)]
        common = [seed for seed in sides[0][0] if all(seed in one for one, _ in sides)]
        if len(common) < FEWEST:
            return None
        return estimate(-self._number + sum(f * one[seed] for one, f in sides) for seed in common)

    def _by_interval(self, found: Estimate) -> Verdict:
        low, high, slack = found.low, found.high, self.slack
        inside, outside = {
            ">": (low > slack, high <= slack),
            ">=": (low >= slack, high < slack),
            "<": (high < slack, low >= slack),
            "<=": (high <= slack, low > slack),
            "=": (abs(low) <= slack and abs(high) <= slack, low > slack or high < -slack),
        }[self.sign]
        held = True if inside else False if outside else None
        digits = decimals((found.mean, low, high), 2)
        mean, *ends = (self._text(value, digits) for value in (found.mean, low, high))
        words = f"{mean}{self._unit} ({' to '.join(ends)}), claimed {self._margin()}"
        if held is None:
            half = (high - low) / 2
            words += (
                f"; could have told {half:,.0f}"
                if half >= 1000
                else f"; could have told {half:.3g}"
            )
            words += " apart"
        return Verdict(self.says, words, held, found.n)

    def _text(self, difference: float, digits: int) -> str:
        """The difference of two methods; of one that is held against a number its own figure."""
        if not self._number:
            return _signed(difference, digits)
        return _signed(difference + self._number, digits).removeprefix(PLUS)

    def _margin(self) -> str:
        """What the interval is held against, in the same terms."""
        if self.sign == "=":
            around = f"{_spelt_number(self._number)} " if self._number else ""
            return f"{around}± {self.slack:g}"
        return f"{spelt(self.sign)} {_spelt_number(self._number + self.slack)}"

    @property
    def _unit(self) -> str:
        """Of costs, which are no points of accuracy."""
        quantity = self.left.measure or self.left.column
        unit = quantity.removesuffix(TO_TARGET)
        return f" {unit.strip().replace('seconds', 's')}" if unit != quantity else ""

    @property
    def _number(self) -> float:
        """That the left side is held against; 0 where it is another cell."""
        return self.right if isinstance(self.right, float) else 0.0

    def _holds(self, left: Cell, right: Cell) -> bool:
        worst = math.inf if "loss" in self.left.column else -math.inf
        one, other = value_of(left, worst), value_of(right, worst)
        if one is None or other is None:
            return self.sign == "=" and left == right
        other += self.slack
        tests = {
            ">": one > other,
            "<": one < other,
            ">=": one >= other,
            "<=": one <= other,
            "=": left == right if not self.slack else abs(one - other + self.slack) <= self.slack,
        }
        return tests[self.sign]


@dataclass(frozen=True)
class Verdict:
    """A relation with its numbers and whether it held; None: this run cannot say."""

    says: str
    numbers: str
    held: bool | None
    seeds: int = 0
    """How many the interval is of; 0: figures were compared without one."""


HELD = {True: "held", False: "did not hold", None: "this size cannot say"}
SEEN, REFUTED, UNDECIDED, OPEN = "seen", "refuted", "undecided", "not measured"


def spoken(verdict: Verdict | None, certain: bool = False) -> str:
    """One word for what an interval decided; what too few seeds say decides nothing."""
    if verdict is None:
        return OPEN
    if certain:
        return HELD[verdict.held]
    if verdict.seeds:
        return {True: SEEN, False: REFUTED, None: UNDECIDED}[verdict.held]
    return f"{UNDECIDED}: too few seeds ({HELD[verdict.held]})"


def spelt(sign: str) -> str:
    """A sign as it is read."""
    return {">=": "≥", "<=": "≤"}.get(sign, sign)


def _signed(value: float, digits: int) -> str:
    text = f"{abs(value):.{digits}f}" if abs(value) < 1000 else f"{abs(value):,.0f}"
    return f"{MINUS if value < 0 else PLUS}{text}" if text.strip("0.") else text


def _spelt_number(value: float) -> str:
    return f"{value:g}".replace("-", MINUS)


def value_of(cell: Cell, worst: float) -> float | None:
    """The number a cell stands for: `85.55 ± 3.97` is 85.55; None if it is none."""
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, int | float):
        return float(cell)
    if cell.startswith(DIVERGED):
        return worst
    number = NUMBER.match(cell)
    whole = number is not None and not re.match(r"[0-9A-Za-z]", cell[number.end() :])
    return float(number.group().replace("\u2212", "-")) if number is not None and whole else None


def shown(cell: Cell) -> str:
    """A cell in a sentence or a table."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    text = str(cell)
    if isinstance(cell, float):
        if cell.is_integer() and abs(cell) < 1e6:
            text = f"{cell:.0f}"
        else:
            text = f"{cell:.2f}" if 0.1 <= abs(cell) < 1e6 else f"{cell:.3g}"
    return MINUS + text[1:] if text.startswith("-") and NUMBER.match(text) else text


def relation(value: object, where: str, parts: Iterable[str]) -> Relation:
    """From a table `[[relations]]`; `right` is a row, or a number."""
    reader = Reader(value, where)
    says, part = reader.text("says"), reader.text("part")
    left, sign = reader.text("left"), reader.text("sign")
    column, table = reader.text("column"), reader.text("table", "")
    right_column, right_table = reader.text("right_column", column), reader.text("right_table", "")
    right_part, right = reader.text("right_part", part), reader.raw("right")
    slack, measure = reader.number("slack", 0.0), reader.text("measure", "")
    than = reader.table("than")
    needs = _needs(reader.table("needs"), f"{where}: needs", part)
    trend, only = reader.text("trend", ""), reader.text("only", "")
    afterwards, certain = reader.flag("afterwards"), reader.flag("certain")
    why, published = reader.text("why", ""), reader.text("published", "")
    reader.end()
    if only and only not in SIZES:
        raise unknown(f"only of {where}", only, SIZES)
    if trend and trend not in TRENDS:
        raise unknown(f"trend of {where}", trend, TRENDS)
    for name in (part, right_part):
        if name not in parts:
            raise unknown(f"part of {where}", name, parts)
    if sign not in SIGNS:
        raise InputError(f"{where}: sign must be one of {' '.join(SIGNS)}, not '{sign}'")
    if isinstance(right, str):
        place: Place | float = Place(right_part, right, right_column, right_table or table, measure)
    elif isinstance(right, int | float) and not isinstance(right, bool):
        place = float(right)
    else:
        raise InputError(f"{where}: right must be the name of a row or a number, not {right!r}")
    start = Place(part, left, column, table, measure)
    beside = None if than is None else _than(than, f"{where}: than", start, place, parts)
    return Relation(
        says=says,
        left=start,
        sign=sign,
        right=place,
        slack=slack,
        than=beside,
        needs=needs,
        trend=trend,
        afterwards=afterwards,
        only=only,
        certain=certain,
        why=why,
        published=published,
    )


def _than(
    value: object, where: str, left: Place, right: Place | float, parts: Iterable[str]
) -> tuple[Place, Place]:
    """From `than = { column = … }`: what is not said is as in the relation itself."""
    if not isinstance(right, Place):
        raise InputError(f"{where}: right must be the name of a row, not {right:g}")
    reader = Reader(value, where)
    part, column = reader.text("part", left.part), reader.text("column", left.column)
    rows = reader.text("left", left.row), reader.text("right", right.row)
    reader.end()
    if part not in parts:
        raise unknown(f"part of {where}", part, parts)
    one, other = (Place(part, row, column, "", left.measure) for row in rows)
    return one, other


def _needs(value: object, where: str, part: str) -> tuple[Place, float] | None:
    """From `needs = { row = …, column = …, above = … }`."""
    if value is None:
        return None
    reader = Reader(value, where)
    place = Place(part, reader.text("row"), reader.text("column"), reader.text("table", ""))
    least = reader.number("above")
    reader.end()
    return place, least


# Reading the tables of a preset's file with their types.


class Reader:
    """One table; every key must be asked for once, and what is left over is refused."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a table, not {value!r}")
        self.where = where
        self._left = dict(cast("dict[str, object]", value))
        self._known: list[str] = []

    def text(self, key: str, usual: str | None = None) -> str:
        return " ".join(self._take(key, str, usual).split())

    def number(self, key: str, usual: float | None = None) -> float:
        return float(self._take(key, float, usual))

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        if not isinstance(value, bool | None):
            raise InputError(f"{self.where}: {key} must be true or false, not {value!r}")
        return bool(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._take(key, list, [])
        for one in values:
            if not isinstance(one, str):
                raise InputError(f"{self.where}: {key} must be a list of texts, not {one!r}")
        return tuple(" ".join(one.split()) for one in cast("list[str]", values))

    def tables(self, key: str) -> list[object]:
        return cast("list[object]", self._take(key, list, []))

    def table(self, key: str) -> dict[str, Any] | None:
        """None if there is none."""
        self._known.append(key)
        return cast("dict[str, Any]", self._take(key, dict, {})) if key in self._left else None

    def raw(self, key: str) -> object:
        """The value as it is, whatever its type; None if there is none."""
        self._known.append(key)
        return self._left.pop(key, None)

    def end(self) -> None:
        """Refuses what nobody has asked for."""
        if self._left:
            raise unknown(f"key of {self.where}", next(iter(self._left)), self._known)

    def _take(self, key: str, kind: type[T] | Callable[..., T], usual: T | None) -> T:
        self._known.append(key)
        if key not in self._left:
            if usual is None:
                raise InputError(f"{self.where} lacks the key '{key}'")
            return usual
        value = self._left.pop(key)
        fits = (int, float) if kind is float else kind
        if not isinstance(value, cast("type", fits)) or isinstance(value, bool):
            noun = cast("Mapping[object, str]", NOUNS)[kind]
            raise InputError(f"{self.where}: {key} must be {noun}, not {value!r}")
        return cast("T", value)
