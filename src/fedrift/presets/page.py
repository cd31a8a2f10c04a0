"""The pages of results: one table of all claims, and for each preset what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedrift.presets.findings import Cell, Findings, Table
from fedrift.presets.preset import Preset
from fedrift.presets.relations import (
    HELD,
    OPEN,
    REFUTED,
    SEEN,
    TRENDS,
    UNDECIDED,
    Relation,
    Verdict,
    shown,
    spoken,
    value_of,
)
from fedrift.report.numbers import seconds_text
from fedrift.storage.jsonl import Record

MARKS = {SEEN: "✓", REFUTED: "✗", UNDECIDED: "○"}
COARSE = ("MB ", "rounds to ")
"""Columns of costs, with one decimal in all tables."""
SPREAD = re.compile(r"(-?\d+)\.(\d+) ± (\d[\d.e-]*)")
"""A mean and its spread, which has as many decimals, or as many as show a digit of it."""
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
        """Begins the names of its files."""
        return self.preset.name if self.size == "laptop" else f"{self.preset.name}-{self.size}"

    @property
    def pictures(self) -> list[str]:
        return [picture(self, part, f) for part, one in self.findings.items() for f in one.figures]

    def verdicts(self) -> list[tuple[Relation, Verdict | None]]:
        """Of the relations that this size has a part for."""
        findings = self.findings
        return [(one, one.decide(findings)) for one in self.preset.asked(self.size)]

    def decided(self, relation: Relation) -> Verdict | None:
        """None where this size does not ask it."""
        asked = relation in self.preset.asked(self.size)
        return relation.decide(self.findings) if asked else None

    def reason(
        self, relation: Relation, verdict: Verdict | None, measured: Sequence[Measured]
    ) -> str:
        """For a claim that was refuted: what the tests of reasons came to; empty without one."""
        words = ""
        for tested, found, where in self.reasons(relation, verdict, measured):
            opening = "Another reason" if words else "Why"
            numbers = "" if found is None else f": {found.numbers}"
            words += f". {opening}: {tested.says}, {spoken(found)}{where}{numbers}"
        return words

    def reasons(
        self, relation: Relation, verdict: Verdict | None, measured: Sequence[Measured]
    ) -> list[tuple[Relation, Verdict | None, str]]:
        """Claims that test why this one was refuted, one after the other up to the first that was
        seen; each with its verdict, in this size or in another that is measured."""
        told, said = [relation.says], relation.why if spoken(verdict) == REFUTED else ""
        found: list[tuple[Relation, Verdict | None, str]] = []
        while said and said not in told:
            tested = next(one for one in self.preset.relations if one.says == said)
            found.append((tested, *self._tested(tested, measured)))
            told.append(said)
            said = "" if spoken(found[-1][1]) == SEEN else tested.why
        return found

    def _tested(
        self, relation: Relation, measured: Sequence[Measured]
    ) -> tuple[Verdict | None, str]:
        """The verdict on a reason, and where else it was found, in words."""
        beside = [one for one in measured if one.preset == self.preset and one.size != self.size]
        for one in (self, *beside):
            if (found := one.decided(relation)) is not None:
                return found, "" if one is self else f" in the size {one.size}"
        return None, ""


def overview(measured: Sequence[Measured], head: str) -> str:
    """The main claims of the sources, then the presets, the trends, and every claim."""
    sections = [part(measured) for part in (_main_claims, _presets, _trends, _claims)]
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    jumps = " · ".join(f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles)
    return "\n".join([head, f"{_total(measured)}\n", f"{jumps}\n", *sections])


def _total(measured: Sequence[Measured]) -> str:
    """What all claims came to, in a sentence or two."""
    counts = _counted([v for one in measured for r, v in one.verdicts() if not r.certain and v])
    return f"Of {sum(counts.values())} claims: {_summed(counts)}. {_reasons(measured)}"


def _counted(verdicts: Iterable[Verdict]) -> Counter[str]:
    words = Counter(map(_word, verdicts))
    return Counter({word: words[word] for word in (SEEN, REFUTED, UNDECIDED)})


def _summed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _main_claims(measured: Sequence[Measured]) -> str:
    """Those for which the source says what it found, each with what we found."""
    rows: list[list[str]] = []
    for one in measured:
        asked = [(r, v) for r, v in one.verdicts() if r.published and v is not None]
        for number, (relation, verdict) in enumerate(asked):
            word = _word(verdict)
            cells = [plain(relation.words), plain(relation.published), plain(verdict.numbers)]
            rows.append([*cells, f"{MARKS[word]}&nbsp;**{word}**", *_origin(one, number)])
    heads = ("claim", "published", "ours, and what was claimed", "verdict", "source", "")
    words = (
        "What the sources say they found, and the difference that we found, with its 95 % "
        "interval over seeds and what it was held against. Smaller networks, fewer rounds: what is "
        "compared is the order of methods, not the value.\n\n"
    )
    return "## The main claims of the sources\n\n" + words + _lines(heads, rows)


def _origin(one: Measured, number: int) -> list[str]:
    """Where a claim stands and a picture, beside the first of a preset's."""
    if number:
        return ["", ""]
    return [f"[{plain(one.preset.title)}]({_link(one)}), {one.size}", _thumbnail(one)]


def _claims(measured: Sequence[Measured]) -> str:
    """Every claim, folded by preset."""
    folds: list[str] = []
    for one in measured:
        asked = [(r, v) for r, v in one.verdicts() if v is not None and not r.certain]
        rows: list[list[str]] = []
        for relation, verdict in asked:
            word = _word(verdict)
            seeds = f"; {verdict.seeds} seeds"
            if not verdict.seeds:
                seeds = f": {HELD[verdict.held]}, with too few seeds"
            numbers = plain(f"{verdict.numbers}{seeds}{one.reason(relation, verdict, measured)}")
            rows.append([plain(relation.words), f"{MARKS[word]}&nbsp;**{word}**", numbers])
        if rows:
            counts = _summed(_counted(verdict for _, verdict in asked))
            head = f"{plain(one.preset.title)}, {one.size}: {counts}"
            page = f"[The page of `{one.preset.name}`]({_link(one)})\n"
            table = _lines(("claim", "verdict", "measured"), rows)
            opened = f'<details markdown="1">\n<summary>{head}</summary>\n'
            folds.append("\n".join([opened, page, table, "</details>\n"]))
    return "## All claims\n\n" + "\n".join(folds)


def _reasons(measured: Sequence[Measured]) -> str:
    """How many refuted claims stand with a reason, in a sentence."""
    asked = [(one, r, v) for one in measured for r, v in one.verdicts() if not r.certain]
    refuted = [(one, r, v) for one, r, v in asked if spoken(v) == REFUTED]
    tests = [one.reasons(relation, verdict, measured) for one, relation, verdict in refuted]
    seen = sum(any(spoken(v) == SEEN for _, v, _ in tested) for tested in tests)
    none = sum(not tested for tested in tests)
    return (
        f"Of the {len(refuted)} refuted {seen} have a tested reason that was seen, "
        f"{len(refuted) - seen - none} only such as were not, and {none} none."
    )


def _word(verdict: Verdict | None) -> str:
    return spoken(verdict).partition(":")[0]


def _link(one: Measured) -> str:
    return f"results/{one.preset.name}.md" + (f"#{one.size}" if one.size != "laptop" else "")


def _thumbnail(one: Measured) -> str:
    if not one.pictures:
        return ""
    return f"[![{one.preset.name}](results/{one.pictures[0]}){{ width=160 }}]({_link(one)})"


def _presets(measured: Sequence[Measured]) -> str:
    rows: list[list[str]] = []
    for one in measured:
        link = f"[`{one.preset.name}`]({_link(one)})"
        rows.append([link, plain(one.preset.question), one.size, _took(one), *_counts(one)])
    heads = ("preset", "question", "size", "took", SEEN, REFUTED, UNDECIDED, "by definition")
    words = (
        "Of the claims that each preset asks: how many were seen, refuted and left undecided, or "
        "not measured; and how many of those that must hold by definition, such as equal bytes, "
        "did.\n\n"
    )
    return "## All presets\n\n" + words + _lines(heads, rows, numbers=range(3, 8))


def _counts(one: Measured) -> list[str]:
    """Claims that were seen, refuted and are undecided; and of the certain ones those decided."""
    verdicts = one.verdicts()
    said = [_word(verdict) for relation, verdict in verdicts if not relation.certain]
    sure = [v.held for r, v in verdicts if r.certain and v is not None and v.held is not None]
    open_ones = said.count(UNDECIDED) + said.count(OPEN)
    counts = [str(said.count(SEEN)), str(said.count(REFUTED)), str(open_ones)]
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
            case = f"[`{one.anchor}`]({_link(one)}): {plain(relation.words)}"
            cells = [case, plain(verdict.numbers), spoken(verdict, relation.certain)]
            rows.append(["" if number else plain(words), *cells])
    return "## Trends that small runs can be asked for\n\n" + _lines(
        ("expected", "asked in", "measured", ""), rows
    )


def preset_page(measured: Sequence[Measured], head: str) -> str:
    """One preset, in all sizes that were run."""
    preset = measured[0].preset
    texts = [head, f"# {preset.title}\n", f"{preset.question}\n"]
    first = next((one.pictures[0] for one in measured if one.pictures), None)
    texts += [f"![{preset.title}]({first})\n"] if first else []
    texts += [f"**Source.** {preset.source}\n"]
    texts += [f"**How far it can be trusted.** {preset.caveat}\n"] if preset.caveat else []
    return "\n".join([*texts, *(section(one, measured) for one in measured)])


def section(one: Measured, measured: Sequence[Measured] = ()) -> str:
    """One size of a preset, of those measured: verdicts first, then what they rest on."""
    preset, size = one.preset, one.preset.sizes[one.size]
    head = f'<a id="{one.size}"></a>\n\n## Size: {one.size}\n'
    texts = [head, f"{size.note}\n", _provenance(one)]
    texts += [_relations(one, measured)] if preset.asked(one.size) else []
    if size.remarks:
        texts.append("### What agrees, what does not, and why\n")
        texts += [f"- {remark}" for remark in size.remarks]
        texts.append("")
    texts += [_published(one)] if any(not p.table for p in preset.published) else []
    texts += _published_tables(one)
    for name, findings in one.findings.items():
        texts += [f"### Measured: {name}\n"] if len(one.parts) > 1 else ["### Measured\n"]
        texts += [table_text(table) for table in findings.tables]
        texts += [f"- {plain(note)}\n" for note in findings.notes]
        texts += [
            f"![{preset.name}, {name}: {figure}]({picture(one, name, figure)})\n"
            for figure in findings.figures
        ]
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
        f"{_took(one)}, {cores} cores of {machine['cpu']}{shared} · {program_versions}\n"
    )


def _took(one: Measured) -> str:
    """Time of one core, which other work on the machine does not lengthen; else on the clock."""
    records = one.parts.values()
    own = [float(r["processor"]) for r in records if r.get("processor") is not None]
    if len(own) == len(records):
        return f"{seconds_text(sum(own))} of one core"
    return seconds_text(sum(float(r["seconds"]) for r in records))


def _published(one: Measured) -> str:
    findings = one.findings
    rows: list[list[str]] = []
    for row in (p for p in one.preset.published if not p.table):
        cell, column = row.ours(findings, one.size), "" if row.place is None else row.place.column
        ours = _inline(cell, column) if cell is not None else "–"
        rows.append([plain(row.what), plain(row.setting), plain(row.figure), ours])
    heads = ("what", "setting", "published", f"ours, {one.size}")
    return "### Published, and ours beside it\n\n" + _lines(heads, rows, numbers=(2, 3))


def _published_tables(one: Measured) -> list[str]:
    """Methods × settings: the published figure, then ours where that cell was run."""
    findings, texts = one.findings, list[str]()
    for title in dict.fromkeys(p.table for p in one.preset.published if p.table):
        cells = [p for p in one.preset.published if p.table == title]
        heads = list(dict.fromkeys(p.setting for p in cells))
        rows: list[list[str]] = []
        for what in dict.fromkeys(p.what for p in cells):
            row = {p.setting: p for p in cells if p.what == what}
            both = [(row[h].figure, row[h].ours(findings, one.size)) for h in heads]
            rows.append([plain(what), *(_beside(*pair) for pair in both)])
        words = f"### Published and, in bold, ours: {plain(title)}\n\n"
        texts.append(words + _lines(("method", *map(plain, heads)), rows, range(1, len(heads) + 1)))
    return texts


def _beside(published: str, ours: Cell) -> str:
    return plain(published) if ours is None else f"{plain(published)} **{_inline(ours)}**"


def _relations(one: Measured, measured: Sequence[Measured]) -> str:
    rows: list[list[str]] = []
    for relation, verdict in one.verdicts():
        numbers = "–" if verdict is None else plain(verdict.numbers)
        said = f"**{plain(spoken(verdict, relation.certain))}**"
        said += plain(one.reason(relation, verdict, measured))
        rows.append([plain(relation.words), plain(relation.rule), numbers, said])
    return "### Verdicts\n\n" + _lines(("claim", "rule", "measured", "verdict"), rows)


def table_text(table: Table) -> str:
    """A table of findings; columns of numbers to the right."""
    numbers = [
        i
        for i in range(1, len(table.columns))
        if all(row[i] in (None, "") or value_of(row[i], 0.0) is not None for row in table.rows)
    ]
    rows = [
        [_inline(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    return f"{plain(table.title)}\n\n" + _lines([plain(c) for c in table.columns], rows, numbers)


def _inline(cell: Cell, column: str = "") -> str:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    if isinstance(cell, float) and column.startswith(COARSE) and cell >= 1:
        return f"{cell:,.1f}".removesuffix(".0")
    if isinstance(cell, str) and (parts := SPREAD.fullmatch(cell)):
        spread, places = float(parts[3]), len(parts[2])
        while spread and not float(f"{spread:.{places}f}"):
            places += 1
        cell = f"{parts[1]}.{parts[2]} ± {spread:.{places}f}"
    return plain(shown(cell))


def plain(words: str) -> str:
    """Text that Markdown leaves as it is."""
    escaped = re.sub(r"([\\`*_|>\[\]])", r"\\\1", " ".join(words.split()))
    return escaped.replace("<", "&lt;")  # a backslash before it would be shown


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    marks = ["---:" if i in numbers else "---" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, marks, *rows)) + "\n"
