"""Run folders below a root, read again and again at the price of what is new in them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrift.config.grid import COMPARISON, RUNS, from_toml
from fedrift.config.spec import Spec
from fedrift.core.phases import is_evaluation
from fedrift.errors import InputError
from fedrift.grammar import parse
from fedrift.storage import run_folder, run_record
from fedrift.storage.jsonl import Record
from fedrift.watch.clients import Clients
from fedrift.watch.tail import Tail
from fedrift.watch.writer import writer_of, writers

DEEPEST = 5  # folders between the root and a run
MOST_RUNS = 2000
PACE = 20  # rows at the end that say how fast a run goes
MOST_CLIENTS = 200  # of a cohort that are named


@dataclass
class WatchedRun:
    """One run folder as far as it has been read."""

    folder: Path
    name: str
    spec: Spec
    stamp: tuple[int, int]
    """Of the file that the spec was read from."""
    rounds: Tail
    ledger: Tail
    clients: Clients
    columns: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])
    reached: int = 0
    cohort: list[int] = field(default_factory=list[int])
    left_out: int = 0
    """Replies that were not finite."""
    generation: int = 0
    """Grows when what was read before is void: a run that was resumed writes rounds again."""
    summary: Record = field(default_factory=Record)

    @classmethod
    def open(cls, folder: Path, name: str) -> WatchedRun:
        rounds, ledger = folder / run_folder.ROUNDS, folder / run_folder.LEDGER
        clients = Clients.of(folder / run_folder.TRAINING)
        stamp, spec = _stamp(folder), run_folder.read_spec(folder)
        return cls(folder, name, spec, stamp, Tail(rounds), Tail(ledger), clients)

    @property
    def rows(self) -> int:
        return len(self.columns.get("round", ()))

    def refresh(self) -> None:
        """Takes in what has been written since the last time."""
        self._respell()
        exchanges, is_void = self.ledger.fresh()
        if is_void:  # they are told again
            self.left_out = 0
        for exchange in exchanges:
            self._exchange(exchange)
        self.clients.refresh()
        rows, is_void = self.rounds.fresh()
        if is_void and self.rows:
            self.columns, self.generation = {}, self.generation + 1
        for row in rows:
            self._row(row)
        try:
            self.summary = run_record.read_summary(self.folder)
        except InputError:
            self.summary = {}

    def _respell(self) -> None:
        """A run that goes on with more rounds has another spec, and so has a folder made anew."""
        stamp = _stamp(self.folder)
        if stamp != self.stamp:
            self.spec, self.stamp = run_folder.read_spec(self.folder), stamp

    def _exchange(self, exchange: Record) -> None:
        self.reached = exchange["round"]
        asked, lost = exchange.get("asked"), exchange.get("nonfinite")
        if isinstance(asked, list) and not is_evaluation(str(exchange.get("phase"))):
            self.cohort = [client for client in asked if isinstance(client, int)]
        self.left_out += len(lost) if isinstance(lost, list) else 0

    def _row(self, row: Record) -> None:
        numbers = {key: value for key, value in row.items() if _is_number(value)}
        if "bytes_up" in numbers and "bytes_down" in numbers:
            numbers["bytes"] = numbers["bytes_up"] + numbers["bytes_down"]
        rows = self.rows
        for key in numbers:
            self.columns.setdefault(key, [None] * rows)
        for key, column in self.columns.items():
            value = numbers.get(key)
            column.append(value if value is not None and math.isfinite(value) else None)
        self.reached = max(self.reached, row["round"])

    def overview(self, process: int | None) -> Record:
        """What is shown of a run in the list."""
        seconds = self.columns.get("seconds", [])
        status = "running" if process is not None else str(self.summary.get("status", "unfinished"))
        pace = self._pace()
        alpha = "" if self.spec.alpha is None else f", alpha {self.spec.alpha:g}"
        left = None
        if process is not None and pace:
            left = pace * max(0, self.spec.rounds - self.reached)
        return {
            "name": self.name,
            "group": group_of(self.name),
            "algorithm": str(self.spec.algorithm_named),
            "data": f"{self.spec.data}, {self.spec.partition}{alpha}",
            "model": str(self.spec.model),
            "seed": self.spec.seed,
            "status": status,
            "process": process,
            "rounds": self.spec.rounds,
            "reached": self.reached,
            "rows": self.rows,
            "generation": self.generation,
            "accuracy": self._last("accuracy"),
            "loss": self._last("loss"),
            "seconds": seconds[-1] if seconds else None,
            "left": left,
            "pace": pace,
            "cohort": self.cohort[:MOST_CLIENTS],
            "cohort_size": len(self.cohort),
            "population": max(self.spec.clients or 0, 1 + max(self.clients.seen, default=-1)),
            "clients": [self.clients.generation, len(self.clients.seen)],
            "warnings": self._warnings(status),
        }

    def _last(self, key: str) -> float | None:
        return next((v for v in reversed(self.columns.get(key, ())) if v is not None), None)

    def _pace(self) -> float | None:
        """Seconds per round, lately."""
        seconds, rounds = self.columns.get("seconds", []), self.columns.get("round", [])
        last = zip(seconds[-PACE:], rounds[-PACE:], strict=False)
        pairs = [(s, r) for s, r in last if s is not None and r]
        if not pairs:
            return None
        (s0, r0), (s1, r1) = (0.0, 0) if len(pairs) < 2 else pairs[0], pairs[-1]
        return (s1 - s0) / (r1 - r0) if r1 > r0 and s1 >= s0 else None

    def _warnings(self, status: str) -> list[str]:
        notes: list[str] = []
        if status == "diverged":
            notes.append(f"diverged in round {self.summary.get('diverged_at')}")
        if status == "unfinished":
            notes.append("not running and not finished: fedrift resume goes on with it")
        if self.left_out:
            notes.append(f"left out because they were not finite: {self.left_out} of the replies")
        return notes

    def curves(self, since: int, generation: int) -> Record:
        """The columns from a row on; all of them if the reader has seen rows that are void now."""
        start = since if generation == self.generation else 0
        columns = {key: column[start:] for key, column in self.columns.items()}
        return {"from": start, "generation": self.generation, "columns": columns}


def _stamp(folder: Path) -> tuple[int, int]:
    """Another when the spec is: files of a run are replaced as a whole."""
    try:
        there = (folder / run_folder.SPEC).stat()
    except OSError as error:
        raise InputError(f"its {run_folder.SPEC}: {error.strerror}") from None
    return there.st_ino, there.st_mtime_ns


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def group_of(name: str) -> str | None:
    """The folder of the comparison that a run belongs to, below the root; None if to none."""
    *above, _ = name.split("/")
    return "/".join(above[:-1]) if above[-1:] == [RUNS] else None


@dataclass
class Comparison:
    """How many runs a comparison will have and of which algorithms, as far as its file says."""

    file: Path
    stamp: tuple[int, int] | None = None
    total: int | None = None
    algorithms: tuple[str, ...] = ()

    def refresh(self) -> None:
        try:
            there = self.file.lstat()
        except OSError:
            self.stamp, self.total, self.algorithms = None, None, ()
            return
        stamp = there.st_ino, there.st_mtime_ns
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            grid = from_toml(self.file)
            named = [str(parse(one.algorithm, "algorithm")) for one in grid.entrants]
            self.total, self.algorithms = grid.size, tuple(named)
        except InputError:
            self.total, self.algorithms = None, ()


class Watched:
    """All runs below a folder."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError(f"'{root}' is no folder; name one that holds runs, or will")
        self.root = root
        self.runs: dict[str, WatchedRun] = {}
        self.unreadable: dict[str, str] = {}
        self.comparisons: dict[str, Comparison] = {}

    def refresh(self) -> None:
        """Looks for new folders and reads what is new in each."""
        present: set[str] = set()
        for folder in _run_folders(self.root):
            name = folder.relative_to(self.root).as_posix()
            present.add(name)
            try:
                if name not in self.runs:
                    self.runs[name] = WatchedRun.open(folder, name)
                self.runs[name].refresh()
                self.unreadable.pop(name, None)
            except InputError as error:
                self.unreadable[name] = str(error)
        for gone in self.runs.keys() - present:
            del self.runs[gone]
        for gone in self.unreadable.keys() - present:
            del self.unreadable[gone]
        groups = {group for name in self.runs if (group := group_of(name)) is not None}
        found = {
            g: self.comparisons.get(g) or Comparison(self.root / g / COMPARISON) for g in groups
        }
        for comparison in found.values():
            comparison.refresh()
        self.comparisons = found

    def overview(self) -> Record:
        locked = writers()
        listed = [run.overview(writer_of(run.folder, locked)) for run in self.runs.values()]
        problems = [f"{name} cannot be read: {why}" for name, why in self.unreadable.items()]
        totals = {name: comparison.total for name, comparison in self.comparisons.items()}
        asked = [name for one in self.comparisons.values() for name in one.algorithms]
        return {
            "root": self.root.absolute().name,
            "runs": listed,
            "comparisons": totals,
            "methods": list(dict.fromkeys(asked)),  # in the order in which reports have them
            "problems": problems,
        }


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with a spec, links not followed; never what stands inside a run."""
    count = 0
    for place, folders, files in os.walk(root):
        here = Path(place)
        is_run = run_folder.SPEC in files
        if is_run or len(here.relative_to(root).parts) >= DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if is_run:
            yield here
            count += 1
            if count == MOST_RUNS:
                return
