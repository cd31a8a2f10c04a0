"""Reads what `fedrift analyse` has written to the run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrift.errors import InputError
from fedrift.report.statistics.findings import Findings
from fedrift.storage import run_folder
from fedrift.storage.jsonl import Record, read_file

ENDINGS = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Analysis:
    """One measurement of one run, as it was read from its folder."""

    run: str
    """What the page calls the run."""
    method: str
    setting: str
    what: str
    title: str
    sentences: tuple[str, ...]
    numbers: Record
    figures: dict[str, Path] = field(default_factory=dict[str, Path])


def read_analyses(findings: Findings) -> tuple[list[Analysis], list[str]]:
    """Of every run that was looked at; and what could not be read."""
    analyses: list[Analysis] = []
    problems: list[str] = []
    for one in findings.all:
        group = one.group
        setting = group.setting.label
        name = group.method + (f", {setting}" if len(findings.settings) > 1 else "")
        for run in (*group.runs, *group.unfinished):
            folder = Path(run.name) / run_folder.ANALYSIS
            files = sorted(folder.glob("*.json")) if folder.is_dir() else []
            named = f"{name}, seed {run.seed}" if len(group.runs) > 1 else name
            for file in files:
                try:
                    analyses.append(_read(file, named, group.method, setting))
                except InputError as error:
                    problems.append(f"{error}")
    return analyses, problems


def _read(file: Path, run: str, method: str, setting: str) -> Analysis:
    record: Record = read_file(file) or {}
    numbers, texts = record.get("numbers"), record.get("said")
    if not isinstance(numbers, dict) or not isinstance(texts, list):
        raise InputError(f"'{file}' is no analysis of a run; make it again")
    figures: dict[str, Path] = {}
    for name in _words(record.get("figures")):
        # a name from a file must not lead out of its folder
        if name.replace("-", "").replace("_", "").isalnum():
            stem = file.parent / f"{file.stem}-{name}"
            there = (stem.with_name(stem.name + ending) for ending in ENDINGS)
            first = next((path for path in there if path.is_file()), None)
            figures |= {} if first is None else {name: first}
    title = str(record.get("title") or file.stem)
    words = tuple(_words(texts))
    return Analysis(run, method, setting, file.stem, title, words, numbers, figures)  # type: ignore[arg-type]


def _words(values: Any) -> Sequence[str]:
    return [str(value) for value in values] if isinstance(values, list) else []
