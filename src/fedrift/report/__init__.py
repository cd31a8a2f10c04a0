"""Reports of finished runs: a page, tables and figures, from run folders or runs in memory."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrift.config.grid import COMPARISON
from fedrift.errors import InputError, unknown
from fedrift.report import formats, provenance, sentences, tables
from fedrift.report.analyses import analysed
from fedrift.report.provenance import Extras, runs_table
from fedrift.report.selection import Labelled, Selection, select
from fedrift.report.statistics.findings import Findings, find
from fedrift.report.statistics.measured import Recorded
from fedrift.report.workings import Explainer
from fedrift.storage.jsonl import replace_bytes

FORMATS = ("md", "latex", "csv")
FIGURES = ("pdf", "png", "svg")
LONGEST_SPEC = 20_000  # characters of a comparison file that are quoted

Source = Recorded | Labelled | str | Path


@dataclass(frozen=True)
class Written:
    """The files of a report, the page first; what it rests on; what could not be used."""

    files: tuple[Path, ...]
    findings: Findings
    problems: tuple[str, ...]


def write(
    runs: Iterable[Source],
    path: str | Path = "report.html",
    *,
    target: float | None = None,
    baseline: str | None = None,
    last: int | None = None,
    format: Sequence[str] = (),
    figures: Sequence[str] = (),
    title: str | None = None,
    notes: Sequence[str] = (),
    explain: Explainer | None = None,
) -> Written:
    """Writes the page, and beside it tables (`md`, `latex`, `csv`) and figures (`pdf`, …).

    `runs` are run folders, comparison folders, folders of either, or records of runs in memory.
    With `explain=fedrift.explain.workings` it shows how the algorithms work, too.
    Everything is computed before the first file is written; each file is replaced as a whole.
    """
    page_path = _checked(Path(path), format, figures)
    sources = list(runs)
    selection = select(sources)
    findings = find(selection.runs, target=target, baseline=baseline, last=last)
    analyses, damaged = analysed(findings)
    told = [*selection.problems, *findings.grouped.problems, *damaged]
    problems = sentences.problems(told, findings)
    flags = _flags(target, baseline, last, explain is not None)
    extras = Extras(
        title=title or sentences.title(findings),
        problems=problems,
        notes=(*(provenance.sentence(t) for t in selection.tunings), *notes),
        commands=_commands(sources, selection, page_path, flags),
        specs=_specs(selection),
        analyses=analyses,
        workings=explain(_algorithms(findings)) if explain is not None else (),
    )
    texts = {page_path: _page(findings, extras)}
    texts |= _tables(findings, page_path, format)
    for file, content in texts.items():
        replace_file(file, content)
    drawn: list[Path] = []
    if figures:
        from fedrift.report.figures import draw

        drawn = draw(findings, page_path.with_suffix(""), figures)
    return Written((*texts, *drawn), findings, tuple(problems))


def _checked(path: Path, format: Sequence[str], figures: Sequence[str]) -> Path:
    """Refuses, before anything is read, what could not be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"the report '{path}' must end in .html")
    if path.is_dir():
        raise InputError(f"the report '{path}' is a folder; name a file")
    for name in format:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    for name in figures:
        if name not in FIGURES:
            raise unknown("figures", name, FIGURES)
    from fedrift.report.html import library

    library()
    return path


def _page(findings: Findings, extras: Extras) -> str:
    from fedrift.report.charts import payload
    from fedrift.report.html import body, page

    return page(extras.title, body(findings, extras), payload(findings))


def _tables(findings: Findings, page: Path, wanted: Sequence[str]) -> dict[Path, str]:
    found = [tables.grid(findings), tables.leaderboard(findings)]
    clients = tables.clients(findings)
    found += [clients] if clients is not None else []
    texts: dict[Path, str] = {}
    for name in wanted:
        if name == "csv":
            for table in (*found, runs_table(findings)):
                file = page.with_name(f"{page.stem}-{table.name}.csv")
                texts[file] = formats.comma_separated(table)
        else:
            ending, writer = formats.WRITERS[name]
            texts[page.with_suffix(ending)] = writer(found)
    return texts


def _commands(
    sources: Sequence[Source], selection: Selection, page: Path, flags: Sequence[str]
) -> list[str]:
    """That make the comparisons and this report again; nothing for runs in memory."""
    folders = [str(source) for source in sources if isinstance(source, str | Path)]
    if len(folders) < len(sources):
        return []
    lines = [
        shlex.join(["fedrift", "compare", "--spec", str(folder / COMPARISON), "--out", str(folder)])
        for folder in selection.comparisons
    ]
    return [*lines, shlex.join(["fedrift", "report", *folders, "-o", str(page), *flags])]


def _flags(
    target: float | None, baseline: str | None, last: int | None, explain: bool
) -> list[str]:
    given = [("--target", target), ("--baseline", baseline), ("--last", last)]
    flags = [word for flag, value in given if value is not None for word in (flag, str(value))]
    return [*flags, "--explain"] if explain else flags


def _algorithms(findings: Findings) -> list[str]:
    """With their options, each once, the baseline first."""
    groups = sorted(findings.grouped.groups, key=lambda g: g.method != findings.baseline)
    return list(dict.fromkeys(group.spec.algorithm for group in groups))


def _specs(selection: Selection) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for folder in selection.comparisons:
        try:
            content = (folder / COMPARISON).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(content) <= LONGEST_SPEC:
            found.append((str(folder / COMPARISON), content))
    return found


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file as a whole, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None
