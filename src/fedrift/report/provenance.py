"""Where the numbers come from: runs, options, versions, and the commands that make them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrift.report import options
from fedrift.report.analyses import Analysed
from fedrift.report.markup import copied, folded, html_table, items, said, section
from fedrift.report.spelling import figure
from fedrift.report.tables import Cell, Table, measure, text
from fedrift.report.workings import Working
from fedrift.statistics.estimates import final
from fedrift.statistics.findings import Findings

VERSIONS = ("fedrift", "torch", "python", "instructions")


@dataclass(frozen=True)
class Extras:
    """What a report says besides its statistics."""

    title: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    """That make the comparison and the report again."""
    analyses: Sequence[Analysed] = ()
    """What was found inside the models of some runs."""
    workings: Sequence[Working] = ()
    """How the methods work, if that was asked for."""
    specs: Sequence[tuple[str, str]] = ()
    """Names and texts of comparison files."""


def provenance(findings: Findings, extras: Extras) -> str:
    """The last section of the page."""
    return section(
        "runs",
        "Runs",
        html_table(runs_table(findings)),
        "<h3>Options</h3>",
        _options(findings),
        "<h3>Make it again</h3>",
        _again(findings, extras),
    )


def runs_table(findings: Findings) -> Table:
    """One row per run, with its fingerprint and what its bits depend on."""
    rows = [
        (
            *map(text, (group.method, group.setting.label)),
            Cell(str(run.seed), run.seed),
            Cell(
                figure(final(run, findings.last), findings.has_accuracy),
                _value(final(run, findings.last)),
            ),
            *map(text, (run.status, run.fingerprint)),
            *(text(_version(run.environment, key)) for key in VERSIONS),
            text(run.name),
        )
        for group in (one.group for one in findings.all)
        for run in (*group.runs, *group.unfinished)
    ]
    headings = ("method", "setting", "seed", measure(findings), "status", "fingerprint")
    about = "Equal fingerprints mean equal weights and equal curves, bit for bit."
    return Table("runs", about, (*headings, *VERSIONS, "folder"), tuple(rows), texts=2)


def _value(figure: float) -> float | None:
    return None if figure != figure else figure


def _version(environment: Mapping[str, Any], key: str) -> str:
    return str(environment.get(key, "–"))


def _options(findings: Findings) -> str:
    """What all groups share as a list, what differs as a table."""
    described = options.table(findings)
    keys = list(dict.fromkeys(key for _, _, found in described for key in found))
    varying = [key for key in keys if len({found.get(key) for _, _, found in described}) > 1]
    shared = [f"{key}: {described[0][2][key]}" for key in keys if key not in varying]
    listed = folded("The same for all", items(shared)) if shared else ""
    if not varying:
        return listed
    rows = [
        (text(method), text(setting), *(text(found.get(key, "–")) for key in varying))
        for method, setting, found in described
    ]
    table = Table(
        "options",
        "Options that differ. Values that are marked as defaults were not given.",
        ("method", "setting", *varying),
        tuple(rows),
        texts=2 + len(varying),
    )
    return html_table(table) + listed


def _again(findings: Findings, extras: Extras) -> str:
    parts: list[str] = []
    if extras.commands:
        parts.append(copied("again", "\n".join(extras.commands)))
    for place, (name, content) in enumerate(extras.specs):
        parts.append(folded(name, copied(f"spec-{place}", content)))
    groups = [one.group for one in findings.all]
    runs = [run for group in groups for run in (*group.runs, *group.unfinished)]
    lines = [line for run in runs if (line := options.command(run.spec))]
    if lines:
        parts.append(folded("Every run by itself", copied("singly", "\n".join(lines))))
    if len(lines) < len(runs):
        parts.append(
            said("Runs on data and models given in Python are made again by the same calls.")
        )
    return "".join(parts)
