"""From what the user names to run folders with names that tell them apart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedrift import results
from fedrift.cli.start import check_trust
from fedrift.errors import InputError

COMPARISON = "compare.toml"


def named_runs(given: Sequence[Path], trust: bool) -> tuple[dict[str, Path], Path | None]:
    """Run folders by name, and where figures of several runs go: None for a single run."""
    folders: list[Path] = []
    for path in given:
        inside = _inside(path)
        if not inside:
            raise InputError(f"'{path}' holds no run folder: there is no {results.SPEC} in it")
        folders += [folder for folder in inside if folder not in folders]
    algorithms = [check_trust(folder, trust)[0].algorithm_named for folder in folders]
    specs = [one.name if one.inner is None else str(one) for one in algorithms]
    if len(set(specs)) < len(specs):  # the options tell them apart
        specs = [str(one) for one in algorithms]
    named: dict[str, Path] = {}
    for folder, name in zip(folders, specs, strict=True):
        own = name if specs.count(name) == 1 else folder.name
        named[own if own not in named else str(folder)] = folder
    return named, _beside(given, folders) if len(folders) > 1 else None


def _inside(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"'{path}' does not exist; name run folders or comparison folders")
    if (path / results.SPEC).is_file():
        return [path]
    if not path.is_dir():
        return []
    places = (path / "runs",) if (path / COMPARISON).is_file() else (path, path / "runs")
    found = [p for place in places if place.is_dir() for p in sorted(place.iterdir())]
    return [folder for folder in found if (folder / results.SPEC).is_file()]


def _beside(given: Sequence[Path], folders: Sequence[Path]) -> Path:
    if len(given) == 1:
        return given[0] / results.ANALYSIS
    common = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    if common.name == "runs" and (common.parent / COMPARISON).is_file():
        common = common.parent
    here = Path.cwd()
    return (common.relative_to(here) if common.is_relative_to(here) else common) / results.ANALYSIS
