"""Runs a preset part by part; what is finished is kept, and the same call goes on after it."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedrift.config.backends import starts_workers
from fedrift.config.grid import COMPARISON, Cell, Grid
from fedrift.core.plain_files import taken_back, write_file
from fedrift.errors import InputError, RunError
from fedrift.grammar import parse
from fedrift.presets import studies
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.preset import Part, Preset, Size
from fedrift.storage.jsonl import Record, dump, read_file

if TYPE_CHECKING:
    from fedrift.comparison import Item
    from fedrift.engine.callbacks import Callback


# Processor time: unlike a clock, other work on the machine does not lengthen it.

PROCESSES = Path("/proc")
PARENT, FIRST, LAST = 1, 11, 15  # fields after the name: parent; own and reaped children's ticks


def cpu_seconds() -> float | None:
    """Seconds of one core that this process and all it has started have used; None: not known."""
    if not (PROCESSES / "self" / "stat").is_file():
        return None
    known = _processes()
    ours = {os.getpid()}
    while children := {pid for pid, (parent, _) in known.items() if parent in ours} - ours:
        ours |= children
    ticks = sum(known[pid][1] for pid in ours if pid in known)
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and ticks of every process; workers belong to the server that forks them."""
    processes: dict[int, tuple[int, int]] = {}
    for folder in PROCESSES.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            fields = text.rpartition(")")[2].split()
            processes[int(folder.name)] = int(fields[PARENT]), sum(map(int, fields[FIRST:LAST]))
    return processes


USUAL = "laptop"  # the size unless another is asked for
FINDINGS, ELAPSED = "findings.json", "elapsed.json"


class Watcher(Protocol):
    """Shows runs while they are made."""

    def restart(self, cells: Sequence[Cell], what: str = "") -> None: ...
    def callbacks(self, item: Item) -> Sequence[Callback]: ...


Watching = Callable[[], AbstractContextManager[Watcher]]


def folder_of(preset: Preset, size: Size) -> Path:
    """Where a preset is run unless another folder is named."""
    return Path("runs/presets") / (
        preset.name if size.name == USUAL else f"{preset.name}-{size.name}"
    )


@dataclass(frozen=True)
class Order:
    """How a preset is to be run; None: as its file says."""

    preset: Preset
    size: Size
    folder: Path
    data: Path | None = None
    seeds: tuple[int, ...] | None = None
    workers: int | str | None = None

    @property
    def command(self) -> str:
        """That makes it again: without paths, which differ from machine to machine."""
        words = ["fedrift preset run", self.preset.name]
        words += [f"--size {self.size.name}"] if self.size.name != USUAL else []
        words += [f"--seeds {','.join(map(str, self.seeds))}"] if self.seeds else []
        return " ".join(words)


def run(order: Order, watching: Watching, tell: Tell) -> dict[str, Record]:
    """The findings of every part, by name; each is written as soon as it is there."""
    records: dict[str, Record] = {}
    for number, part in enumerate(order.size.parts, start=1):
        place, key = order.folder / part.name, key_of(part, order)
        known = read_file(place / FINDINGS) if place.is_dir() else None
        if known is not None and known.get("key") == key:
            tell(f"part {number} of {len(order.size.parts)}, {part.name}: done before")
            records[part.name] = known
            continue
        tell(f"part {number} of {len(order.size.parts)}, {part.name}")
        with taken_back(place, ELAPSED, COMPARISON):
            records[part.name] = _part(order, part, place, key, watching, tell)
    return records


def finished(folder: Path) -> dict[str, Record]:
    """The findings that are in a preset's folder, by part."""
    files = sorted(folder.glob(f"*/{FINDINGS}"))
    return {file.parent.name: read_file(file) or {} for file in files}


def key_of(part: Part, order: Order) -> str:
    """Short hash of all that decides a part's findings."""
    deciding: dict[str, Any] = {**vars(part), "seeds": order.seeds}
    for key in ("tune", "seconds"):
        if not deciding[key]:
            del deciding[key]  # keys of before there were these
    return hashlib.sha256(dump(deciding).encode()).hexdigest()[:16]


def _part(
    order: Order, part: Part, place: Path, key: str, watching: Watching, tell: Tell
) -> Record:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out '{place}' cannot be made: {error.strerror}") from None
    known = read_file(place / ELAPSED) or {}
    before = known if known.get("key") == key else {}
    began, worked = time.perf_counter(), cpu_seconds()
    try:
        findings, seeds = (
            _compare(order, part, place, watching)
            if part.compare is not None
            else _study(order, part, place, tell)
        )
    finally:
        elapsed: Record = {
            "key": key,
            "seconds": before.get("seconds", 0.0) + time.perf_counter() - began,
            "processor": _added(before.get("processor", 0.0), worked, cpu_seconds()),
        }
        write_file(place / ELAPSED, dump(elapsed) + "\n")
    record: Record = {
        "key": key,
        "preset": order.preset.name,
        "size": order.size.name,
        "part": part.name,
        "command": order.command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(elapsed["seconds"], 1),
        "processor": elapsed["processor"],
        "seeds": list(seeds),
        **_surroundings(),
        "findings": findings.record(),
    }
    write_file(place / FINDINGS, dump(record, indent=1) + "\n")
    return record


def _added(before: float | None, start: float | None, end: float | None) -> float | None:
    """Processor time of all attempts; None where one of them could not tell."""
    if before is None or start is None or end is None:
        return None
    return round(before + end - start, 1)


def _compare(
    order: Order, part: Part, place: Path, watching: Watching
) -> tuple[Findings, tuple[int, ...]]:
    from fedrift.backends import importing, prestart

    with importing():
        from fedrift import comparison
    from fedrift.presets.tables import comparison_findings

    grid = _grid(order, part)
    cells = grid.cells()
    if starts_workers(grid.base.backend, grid.base.workers):
        prestart()
    with watching() as watch:
        if part.tune:
            grid = comparison.tuned(grid, part.tune, place, watch.callbacks, begins=watch.restart)
            cells = grid.cells()
        write_file(place / COMPARISON, grid.to_toml())
        watch.restart(cells)
        how = (grid.base.workers, watch.callbacks)
        comparison_made = comparison.run_grid(cells, place, *how, backend=grid.base.backend)
    failed = next((o for o in comparison_made.outcomes if o.result is None), None)
    if failed is not None:
        raise RunError(
            f"part '{part.name}': {failed.item.label} failed: {failed.error}; the same command "
            "tries again"
        )
    findings = comparison_findings(place, part)
    return replace(findings, notes=[*findings.notes, *_chosen(grid)]), grid.seeds


def _chosen(grid: Grid) -> list[str]:
    """What tuning has given each method; nothing without tuning."""
    words: list[str] = []
    for one in grid.entrants:
        values = {**parse(one.algorithm, "algorithm").options, **one.settings}
        given = ", ".join(f"{key} {values[key]}" for key in one.tuned if key in values)
        words += [f"{one.name.removesuffix(f' ({given})')} {given}"] if given else []
    if not words:
        return []
    return [f"Chosen on held-out training data of seed {grid.seeds[0]}: {'; '.join(words)}."]


def _grid(order: Order, part: Part) -> Grid:
    """The comparison with what the order says in its place."""
    grid = part.grid
    given: dict[str, Any] = {}
    if order.data is not None:
        given["data_dir"] = str(order.data)
    if order.workers is not None:
        given["workers"] = order.workers
    return replace(grid, base=replace(grid.base, **given), seeds=order.seeds or grid.seeds)


def _study(order: Order, part: Part, place: Path, tell: Tell) -> tuple[Findings, tuple[int, ...]]:
    settings = dict(part.settings)
    if order.seeds is not None:
        settings["seeds"] = list(order.seeds)
    if order.workers is not None:
        settings["workers"] = order.workers
    seeds = settings.get("seeds", [0])
    return studies.find(part.study)(place, settings, order.data, tell), tuple(seeds)


def _surroundings() -> Record:
    """What the time depends on, and the bits."""
    import numpy
    import torch

    from fedrift.version import VERSION

    versions = {
        "fedrift": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = round(os.getloadavg()[2], 1) if hasattr(os, "getloadavg") else None
    return {"versions": versions, "machine": {"cpu": _cpu(), "cores": cores, "load": load}}


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    named = (line for line in text.splitlines() if line.startswith("model name"))
    return next(named, f": {platform.machine()}").partition(":")[2].strip()
