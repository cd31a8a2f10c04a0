"""What a preset found, on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedrift.cli.screen import console
from fedrift.presets.findings import Findings, Table
from fedrift.presets.preset import Preset, Size
from fedrift.presets.relations import shown, spoken
from fedrift.records import Record


def report(preset: Preset, size: Size, records: Mapping[str, Record], folder: Path) -> None:
    """The tables, the published figures with ours beside them, and the relations."""
    from rich.table import Table as Rich

    screen = console()
    findings = {name: Findings.of(record["findings"]) for name, record in records.items()}
    for name, found in findings.items():
        for table in found.tables:
            _table(name if len(findings) > 1 else "", table)
        for note in found.notes:
            screen.print(f"note: {note}")
    if preset.published:
        rows = Rich("what", "setting", "published", f"ours, {size.name}")
        for one in preset.published:
            rows.add_row(one.what, one.setting, one.figure, shown(one.ours(findings, size.name)))
        screen.print(rows)
    for relation in preset.asked(size.name):
        verdict = relation.decide(findings)
        numbers = "" if verdict is None else f" ({verdict.numbers})"
        screen.print(f"{spoken(verdict)}: {relation.words}{numbers}")
    screen.print(f"runs, tables and figures in {folder}")


def _table(part: str, table: Table) -> None:
    from rich.table import Table as Rich

    title = f"{part}: {table.title}" if part else table.title
    made = Rich(*table.columns, title=title, title_justify="left")
    for row in table.rows:
        made.add_row(*map(shown, row))
    console().print(made)
