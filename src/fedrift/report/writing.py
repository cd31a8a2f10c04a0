"""A report written: which runs, what is found of them, and every file that is asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedrift.config.grid import COMPARISON
from fedrift.core.plain_files import read_plain, write_file
from fedrift.errors import InputError, unknown
from fedrift.report import formats, provenance, sentences, tables
from fedrift.report.analyses import read_analyses
from fedrift.report.methods import Explainer
from fedrift.report.provenance import Extras, runs_table
from fedrift.report.selection import Labelled, Selection, select
from fedrift.report.statistics.findings import Findings, make_findings
from fedrift.report.statistics.measured import Recorded

FORMATS = ("md", "latex", "csv")
FIGURES = ("pdf", "png", "svg")
LONGEST_SPEC = 20_000  # characters of a comparison file that are quoted

Source = Recorded | Labelled | str | Path


@runtime_checkable
class Reportable(Protocol):
    """A result or a comparison, in memory or read from its folder."""

    def for_report(self) -> Sequence[Source]: ...


@dataclass(frozen=True)
class Written:
    """The files of a report, the page first; what it rests on; what could not be used."""

    files: tuple[Path, ...]
    findings: Findings
    problems: tuple[str, ...]


def write(
    runs: Source | Reportable | Iterable[Source | Reportable],
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
    """Write a page that compares runs, as `fedrift report` does; `fedrift.report` calls this.

    Everything is computed before the first file is written; each file is replaced as a whole.

    Args:
        runs: Folders of runs or comparisons, folders of these, or what `run`, `compare` and
            `load` return; one of them or several.
        path: The page, a file that ends in `.html`. It opens anywhere and needs no network.
        target: Accuracy whose cost is compared; what the baseline ends with unless given.
        baseline: The method others are compared to; fedavg, else the first.
        last: Evaluated rounds at the end that are averaged; a tenth, at most 100, unless given.
        format: Tables beside the page: `"md"`, `"latex"`, `"csv"`.
        figures: Figures beside the page: `"pdf"`, `"png"`, `"svg"`.
        title: The page's heading.
        notes: Sentences that the page ends with.
        explain: `fedrift.explain.workings` shows how the algorithms work, too.

    Returns:
        The files written, what they rest on, and sentences about what could not be used.
    """
    page_path = _checked(Path(path), format, figures)
    sources = _sources(runs)
    selection = select(sources)
    findings = make_findings(selection.runs, target=target, baseline=baseline, last=last)
    analyses, damaged = read_analyses(findings)
    left_out = [*selection.problems, *findings.grouped.problems, *damaged]
    problems = sentences.problems(left_out, findings)
    flags = _flags(target, baseline, last, explain is not None)
    extras = Extras(
        title=title or sentences.title(findings),
        problems=problems,
        notes=(*(provenance.tuning_sentence(t) for t in selection.tunings), *notes),
        commands=_commands(sources, selection, page_path, flags),
        specs=_specs(selection),
        analyses=analyses,
        workings=explain(_algorithms(findings)) if explain is not None else (),
    )
    texts = {page_path: _page(findings, extras)}
    texts |= _tables(findings, page_path, format)
    for file, content in texts.items():
        write_file(file, content)
    drawn: list[Path] = []
    if figures:
        from fedrift.report.figures import draw

        drawn = draw(findings, page_path.with_suffix(""), figures)
    return Written((*texts, *drawn), findings, tuple(problems))


def _sources(runs: Source | Reportable | Iterable[Source | Reportable]) -> list[Source]:
    if isinstance(runs, Reportable):
        return list(runs.for_report())
    if isinstance(runs, str | Path) or not isinstance(runs, Iterable):
        return [runs]
    sources: list[Source] = []
    for one in runs:
        sources.extend(one.for_report() if isinstance(one, Reportable) else [one])
    return sources


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
    from fedrift.report.html import plotly_library

    plotly_library()
    return path


def _page(findings: Findings, extras: Extras) -> str:
    from fedrift.report.charts import payload
    from fedrift.report.html import body, page

    return page(extras.title, body(findings, extras), payload(findings))


def _tables(findings: Findings, page: Path, wanted: Sequence[str]) -> dict[Path, str]:
    written = [tables.grid(findings), tables.leaderboard(findings)]
    clients = tables.clients(findings)
    written += [clients] if clients is not None else []
    texts: dict[Path, str] = {}
    for name in wanted:
        if name == "csv":
            for table in (*written, runs_table(findings)):
                file = page.with_name(f"{page.stem}-{table.name}.csv")
                texts[file] = formats.comma_separated(table)
        else:
            ending, writer = formats.WRITERS[name]
            texts[page.with_suffix(ending)] = writer(written)
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
    specs: list[tuple[str, str]] = []
    for folder in selection.comparisons:
        try:
            content = read_plain(folder / COMPARISON, 4 * LONGEST_SPEC).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(content) <= LONGEST_SPEC:
            specs.append((str(folder / COMPARISON), content))
    return specs
