"""The page of results: what was published, what was measured, what agrees and what does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedrift.presets.findings import Cell, Findings, Table
from fedrift.presets.preset import Preset
from fedrift.presets.relations import TRENDS, Relation, Verdict, shown, spoken, value_of
from fedrift.report.numbers import seconds_text
from fedrift.storage.jsonl import Record

BUSY = 1.5  # load per core above which others worked on the machine


@dataclass(frozen=True)
class Measured:
    """A preset with the records of its parts, in the order of its file."""

    preset: Preset
    size: str
    parts: Mapping[str, Record]

    @property
    def findings(self) -> dict[str, Findings]:
        return {name: Findings.of(record["findings"]) for name, record in self.parts.items()}

    @property
    def anchor(self) -> str:
        return self.preset.name if self.size == "laptop" else f"{self.preset.name}-{self.size}"

    def verdicts(self) -> list[tuple[Relation, Verdict | None]]:
        """Of the relations that this size has a part for."""
        findings = self.findings
        return [(one, one.decide(findings)) for one in self.preset.asked(self.size)]


def page(measured: Sequence[Measured], head: str) -> str:
    """The whole page: an overview, then a section for each preset."""
    return "\n".join(
        [head, _overview(measured), _trends(measured), *(section(one) for one in measured)]
    )


def _overview(measured: Sequence[Measured]) -> str:
    rows: list[list[str]] = []
    for one in measured:
        link = f"[`{one.preset.name}`](#{one.anchor})"
        rows.append([link, plain(one.preset.question), one.size, _took(one), *_counts(one)])
    heads = ("preset", "question", "size", "took", "held", "failed", "open", "by definition")
    words = (
        "Of the relations that each preset expects: how many held, failed, and were left open "
        "because this size cannot say or did not measure them; and how many of those that must "
        "hold by definition, such as equal bytes, did.\n\n"
    )
    return "## Overview\n\n" + words + _lines(heads, rows, numbers=range(3, 8))


def _counts(one: Measured) -> list[str]:
    """Relations that held, failed and are open; and of the certain ones that were decided."""
    verdicts = [
        (relation.certain, verdict and verdict.held) for relation, verdict in one.verdicts()
    ]
    asked = [holds for certain, holds in verdicts if not certain]
    sure = [holds for certain, holds in verdicts if certain and holds is not None]
    counts = [str(asked.count(case)) for case in (True, False, None)]
    return [*counts, f"{sum(sure)} of {len(sure)}" if sure else "–"]


def _trends(measured: Sequence[Measured]) -> str:
    """What every one of the expected trends came to, in whatever preset asks for it."""
    rows: list[list[str]] = []
    for trend, words in TRENDS.items():
        asked = [
            (one, relation, verdict)
            for one in measured
            for relation, verdict in one.verdicts()
            if relation.trend == trend and verdict is not None
        ]
        if not asked:
            rows.append([plain(words), "–", "–", spoken(None)])
        for number, (one, relation, verdict) in enumerate(asked):
            case = f"[`{one.anchor}`](#{one.anchor}): {plain(relation.words)}"
            cells = [case, plain(verdict.numbers), spoken(verdict)]
            rows.append(["" if number else plain(words), *cells])
    return "## Trends that small runs can be asked for\n\n" + _lines(
        ("expected", "asked in", "measured", ""), rows
    )


def section(one: Measured) -> str:
    """One preset."""
    preset, size = one.preset, one.preset.sizes[one.size]
    texts = [
        f'<a id="{one.anchor}"></a>\n\n## {preset.title}\n',
        f"{preset.question}\n",
        f"**Source.** {preset.source}\n",
    ]
    texts += [f"**How far it can be trusted.** {preset.caveat}\n"] if preset.caveat else []
    texts += [f"**Size: {one.size}.** {size.note}\n", _provenance(one)]
    texts += [_published(one)] if preset.published else []
    for name, findings in one.findings.items():
        texts += [f"### Measured: {name}\n"] if len(one.parts) > 1 else ["### Measured\n"]
        texts += [table_text(table) for table in findings.tables]
        texts += [f"- {plain(note)}\n" for note in findings.notes]
        texts += [
            f"![{preset.name}, {name}: {figure}](results/{picture(one, name, figure)})\n"
            for figure in findings.figures
        ]
    texts += [_relations(one)] if preset.relations else []
    if size.remarks:
        texts.append("### What agrees, what does not, and why\n")
        texts += [f"- {remark}" for remark in size.remarks]
        texts.append("")
    return "\n".join(texts)


def picture(one: Measured, part: str, figure: str) -> str:
    """The file of a figure on the page."""
    return f"{one.anchor}-{part}-{figure}.png"


def _provenance(one: Measured) -> str:
    """Command, seeds, date, machine, versions and time; each once where all parts agree."""
    records = list(one.parts.values())
    machine, versions = records[-1]["machine"], records[-1]["versions"]
    dates = sorted({str(r["date"]) for r in records})
    seeds = sorted({", ".join(map(str, r["seeds"])) for r in records})
    loads = [float(r["machine"]["load"]) for r in records if r["machine"].get("load") is not None]
    cores = int(machine["cores"])
    busy = bool(loads) and max(loads) > BUSY * cores
    shared = f", shared with other work (load {max(loads):.1f})" if busy else ""
    program_versions = " ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"`{records[-1]['command']}` · seeds {' / '.join(seeds)} · {' to '.join(dates)} · "
        f"{_took(one)} on {cores} cores of {machine['cpu']}{shared} · {program_versions}\n"
    )


def _took(one: Measured) -> str:
    """Time on the clock; where one process did it all, also the processor's."""
    records = one.parts.values()
    clock = seconds_text(sum(float(r["seconds"]) for r in records))
    own = [float(r["processor"]) for r in records if r.get("processor") is not None]
    return f"{clock} ({seconds_text(sum(own))} of one core)" if len(own) == len(records) else clock


def _published(one: Measured) -> str:
    findings = one.findings
    rows: list[list[str]] = []
    for row in one.preset.published:
        cell = row.ours(findings, one.size)
        ours = _inline(cell) if cell is not None else "–"
        rows.append([plain(row.what), plain(row.setting), plain(row.figure), ours])
    heads = ("what", "setting", "published", f"ours, {one.size}")
    return "### Published, and ours beside it\n\n" + _lines(heads, rows, numbers=(2, 3))


def _relations(one: Measured) -> str:
    rows: list[list[str]] = []
    for relation, verdict in one.verdicts():
        numbers = "–" if verdict is None else plain(verdict.numbers)
        rows.append([plain(relation.words), numbers, spoken(verdict)])
    return "### Relations\n\n" + _lines(("expected", "measured", ""), rows)


def table_text(table: Table) -> str:
    """A table of findings; columns of numbers to the right."""
    numbers = [
        i
        for i in range(1, len(table.columns))
        if all(row[i] in (None, "") or value_of(row[i], 0.0) is not None for row in table.rows)
    ]
    rows = [[_inline(cell) for cell in row] for row in table.rows]
    return f"{plain(table.title)}\n\n" + _lines([plain(c) for c in table.columns], rows, numbers)


def _inline(cell: Cell) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return plain(shown(cell))


def plain(words: str) -> str:
    """Text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(words.split()))


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    marks = ["---:" if i in numbers else "---" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, marks, *rows)) + "\n"
