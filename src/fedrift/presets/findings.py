"""What a study finds: tables, figures and remarks, in a form that JSON can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrift.errors import InputError
from fedrift.storage.jsonl import Record

BY_SEED = "by seed"
"""The fact that holds, by setting, method and quantity, one number for each seed."""
OTHERWISE = {"best round": "best", "accuracy (%)": "accuracy"}
"""Columns of tables that are headed otherwise than their quantity is called."""
Cell = str | int | float | bool | None
Tell = Callable[[str], None]
"""Is told, in a few words, what begins."""


@dataclass(frozen=True)
class Table:
    """Named columns; every row has a cell for each. The first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def cell(self, row: str, column: str) -> Cell:
        """What stands in the row whose first cell is `row`."""
        if column not in self.columns:
            raise InputError(f"table '{self.title}' has no column '{column}'")
        for cells in self.rows:
            if str(cells[0]) == row:
                return cells[list(self.columns).index(column)]
        raise InputError(f"table '{self.title}' has no row '{row}'")


@dataclass(frozen=True)
class Findings:
    """What one study has found."""

    tables: Sequence[Table] = ()
    figures: Sequence[str] = ()
    """Names without ending: NAME.png and NAME.svg are in the study's folder."""
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Numbers behind the figures, so that they can be drawn again."""

    def by_seed(self, row: str, column: str, measure: str = "") -> dict[int, float | None]:
        """One quantity of one method for every seed, of the runs behind a cell of the tables.

        The column is a setting, or names the quantity where there is but one setting.
        """
        kept = self.facts.get(BY_SEED)
        if kept is None:
            return {}
        settings = kept["settings"]
        if column not in settings and len(settings) == 1:
            column, measure = next(iter(settings)), measure or OTHERWISE.get(column, column)
        of_row = settings.get(column, {}).get(row, {})
        values = of_row.get(measure or kept["usual"])
        return {} if values is None else dict(zip(of_row["seed"], values, strict=True))

    def record(self) -> Record:
        """As JSON holds it."""
        return {
            "tables": [
                {
                    "title": table.title,
                    "columns": list(table.columns),
                    "rows": [list(row) for row in table.rows],
                }
                for table in self.tables
            ],
            "figures": list(self.figures),
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }

    @classmethod
    def of(cls, record: Record) -> Findings:
        """From what `record` gave, as read from a file."""
        tables = [Table(t["title"], t["columns"], t["rows"]) for t in record.get("tables", ())]
        rest = {key: record[key] for key in ("figures", "notes", "facts") if key in record}
        return cls(tables, **rest)


Study = Callable[[Path, Mapping[str, Any], Path | None, Tell], Findings]
"""study(folder, settings, data, tell): works in the folder, goes on where it was interrupted."""
