"""What a run measured, as checked arrays: the form that statistics and reports work on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from fedrift.config.spec import Spec
from fedrift.errors import InputError
from fedrift.report.statistics.clients import MEAN, AtClients, are_judged_at_clients, at_clients
from fedrift.report.statistics.domains import InDomains, in_domains
from fedrift.storage.jsonl import Record

MOST_TEXTS, LONGEST_TEXT = 4, 2000  # that a page shows of one run

OURS = "round loss accuracy n bytes_down bytes_up gradients time seconds".split()
"""Numbers that every row of rounds.jsonl has."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Recorded(Protocol):
    """What is known of one run. `RunRecord` is one; runs in memory can be others."""

    @property
    def folder(self) -> Path | None: ...
    @property
    def spec(self) -> Spec: ...
    @property
    def rounds(self) -> Sequence[Record]: ...
    @property
    def ledger(self) -> Sequence[Record]: ...
    @property
    def environment(self) -> Record: ...
    @property
    def summary(self) -> Record: ...
    @property
    def clients(self) -> Record: ...
    @property
    def torn(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, eq=False)
class Clients:
    """Who holds what. `counts` is clients × classes; None where there are no classes."""

    sizes: Ints
    counts: Ints | None
    scheme: str

    @property
    def shares(self) -> Floats | None:
        """Label mix of each client; zeros for an empty one."""
        if self.counts is None:
            return None
        return self.counts / np.maximum(1, self.counts.sum(axis=1))[:, None]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes of one field of one exchange, summed over a run."""

    phase: str
    direction: str
    field: str
    bytes: int


@dataclass(frozen=True, eq=False)
class Measured:
    """One run. Arrays have one entry per evaluated round; costs are sums since the start."""

    name: str
    spec: Spec
    status: str
    diverged_at: int | None
    rounds: Ints
    loss: Floats
    accuracy: Floats | None
    classes: Floats | None
    """Accuracy per class: rounds × classes."""
    class_total: tuple[int, ...] | None
    samples: int
    """Of the test set."""
    cohorts: tuple[tuple[int, ...], ...]
    bytes: Floats
    gradients: Floats
    seconds: Floats
    """On the simulated clock where there is one, else of the machine that ran it."""
    steps: int | None
    """Local steps of all clients in all rounds; None without a ledger."""
    traffic: tuple[Traffic, ...]
    clients: Clients | None
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fingerprint: str = ""
    tuned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options that were chosen by tuning, with their values."""
    label: str = ""
    """What the comparison calls the algorithm; empty: what the spec says."""
    own: frozenset[str] = frozenset()
    """Options that some algorithm of the comparison has for itself."""
    problems: tuple[str, ...] = ()
    continuations: tuple[str, ...] = ()
    """What a model of text has written at the end."""
    beginnings: tuple[int, ...] = ()
    """How many characters of each were given to it; empty: an older version did not say."""
    logged: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    """What the algorithm and the reader's metrics note of every round, by name."""
    at_clients: AtClients | None = None
    """What clients found on test data of their own."""
    is_judged_at_clients: bool = False
    """Its accuracy is the mean over clients."""
    domains: InDomains | None = None
    """What was found in each domain of a shift."""
    has_clock: bool = False
    """Its seconds are those of the simulated clock."""
    is_blank: bool = False
    """It became infinite before it was evaluated once: it counts as failed and has no curve."""

    @property
    def seed(self) -> int:
        return self.spec.seed

    @property
    def is_finished(self) -> bool:
        return self.status in ("done", "stopped", "diverged")


def takes_part(run: Measured) -> bool:
    """Whether who took part says something: not where it is everybody, every time."""
    return len({frozenset(cohort) for cohort in run.cohorts if cohort}) > 1


def judged_at_clients(run: Measured) -> Measured:
    """The same run with the clients' mean as its accuracy, in the rounds in which they were asked.

    Accuracy per class is of the server's test set, and left out.
    """
    found = run.at_clients
    if run.is_judged_at_clients or found is None:
        return run
    return replace(
        _at(run, np.flatnonzero(np.isin(run.rounds, found.rounds))),
        accuracy=found.columns[MEAN],
        classes=None,
        class_total=None,
        is_judged_at_clients=True,
    )


def until(run: Measured, seconds: float) -> Measured:
    """The same run as far as it had come at that time; at least its first evaluation."""
    cut = _at(run, np.arange(max(1, int((run.seconds <= seconds).sum()))))
    is_over = len(cut.rounds) < len(run.rounds)
    found, last = run.at_clients, cut.rounds[-1]
    if found is not None:
        before = found.rounds <= last
        columns = {name: column[before] for name, column in found.columns.items()}
        found = replace(
            found,
            rounds=found.rounds[before],
            columns=columns,
            not_visited=found.not_visited[before],
            table=tuple(line for line in found.table if line.round <= last),
        )
    return replace(cut, at_clients=found, status="stopped" if is_over else run.status)


def _at(run: Measured, at: Ints) -> Measured:
    """Some of its evaluated rounds; what is said of the whole run stays."""
    return replace(
        run,
        rounds=run.rounds[at],
        loss=run.loss[at],
        accuracy=None if run.accuracy is None else run.accuracy[at],
        classes=None if run.classes is None else run.classes[at],
        cohorts=tuple(run.cohorts[i] for i in at),
        bytes=run.bytes[at],
        gradients=run.gradients[at],
        seconds=run.seconds[at],
        logged={name: column[at] for name, column in run.logged.items()},
    )


def measure_run(
    record: Recorded, name: str, label: str = "", own: frozenset[str] = frozenset()
) -> Measured:
    """The arrays of a run; refuses what is no number, in one sentence that names the file."""
    try:
        return replace(_measure(record, name, label), own=own)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"'{name}' is damaged or of another version: {reason}") from None


def _measure(record: Recorded, name: str, label: str) -> Measured:
    rows, is_blank = record.rounds, False
    if not rows and record.summary.get("status") == "diverged":
        rows, is_blank = [_blank(record)], True
    if not rows:
        raise InputError(f"'{name}' holds no evaluated round")
    rounds = np.array([_whole(row["round"], "round") for row in rows], np.int64)
    if (np.diff(rounds) <= 0).any():
        raise InputError(f"'{name}' is damaged: its rounds are not in order")
    summary, at = record.summary, record.summary.get("diverged_at")
    tuned = summary.get("tuned")
    steps = sum(_whole(row["steps"], "steps") for row in record.ledger) if record.ledger else None
    return Measured(
        name=name,
        spec=record.spec,
        status=str(summary.get("status", "unfinished")),
        diverged_at=None if at is None else _whole(at, "diverged_at"),
        rounds=rounds,
        loss=_column(rows, "loss"),
        accuracy=_shares(_column(rows, "accuracy"), name) if "accuracy" in rows[0] else None,
        classes=_classes(rows, name),
        class_total=_total(rows[0]),
        samples=_whole(rows[0].get("n", 0), "n"),
        cohorts=tuple(tuple(_whole(c, "cohort") for c in row.get("cohort", ())) for row in rows),
        bytes=_column(rows, "bytes_down") + _column(rows, "bytes_up"),
        gradients=_column(rows, "gradients"),
        seconds=_column(rows, "time" if "time" in rows[0] else "seconds"),
        has_clock="time" in rows[0],
        steps=steps,
        traffic=_traffic(record.ledger),
        clients=_clients(record.clients),
        environment=record.environment,
        fingerprint=str(summary.get("fingerprint", "")),
        tuned=cast("dict[str, Any]", tuned) if isinstance(tuned, dict) else {},
        label=label,
        problems=() if is_blank else _problems(record, int(rounds[-1])),
        continuations=_continuations(summary),
        beginnings=_beginnings(summary),
        logged=_logged(rows),
        at_clients=at_clients(rows, getattr(record, "client_rounds", ())),
        is_judged_at_clients=are_judged_at_clients(rows),
        domains=in_domains(record.clients, rows, getattr(record, "client_rounds", ())),
        is_blank=is_blank,
    )


def _logged(rows: Sequence[Record]) -> dict[str, Floats]:
    """The columns of numbers that are in every row and are none of ours."""
    names = [
        key
        for key, value in rows[0].items()
        if key not in OURS and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    kept = [n for n in names if all(isinstance(row.get(n), int | float | None) for row in rows)]
    return {name: _column(rows, name) for name in kept}


def _blank(record: Recorded) -> Record:
    """A row for a run that has none: nothing is known of its quality, all of its costs."""
    summary = record.summary
    costs = {"gradients": "gradient_evaluations"} | {k: k for k in ("bytes_down", "bytes_up")}
    spent = {key: summary.get(name) for key, name in costs.items()}
    return {"round": summary.get("diverged_at") or 1, "seconds": summary.get("seconds"), **spent}


def _problems(record: Recorded, last: int) -> tuple[str, ...]:
    problems = [f"the last line of {name} was cut off" for name in record.torn]
    if "status" not in record.summary:
        problems.append(f"it stands at round {last} of {record.spec.rounds}")
    first = record.rounds[0]
    missing = [k for k in ("gradients", "bytes_up", "seconds", "cohort") if k not in first]
    if missing:
        problems.append(f"an older version wrote it, without {', '.join(missing)}")
    return tuple(problems)


def _continuations(summary: Record) -> tuple[str, ...]:
    given = summary.get("continuations")
    texts = cast("list[object]", given) if isinstance(given, list) else []
    return tuple(str(text)[:LONGEST_TEXT] for text in texts[:MOST_TEXTS])


def _beginnings(summary: Record) -> tuple[int, ...]:
    given = summary.get("beginnings")
    lengths = cast("list[object]", given) if isinstance(given, list) else []
    return tuple(_whole(length, "beginnings") for length in lengths[:MOST_TEXTS])


def _whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{field} must be a whole number, not {str(value)[:40]!r}")
    return value


def _number(value: object, field: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field} must be a number, not {str(value)[:40]!r}")
    return float(value)


def _column(rows: Sequence[Record], key: str) -> Floats:
    return np.array([_number(row.get(key), key) for row in rows], np.float64)


def _shares(values: Floats, name: str) -> Floats:
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError(f"'{name}' is damaged: an accuracy is not between 0 and 1")
    return values


def _classes(rows: Sequence[Record], name: str) -> Floats | None:
    if not rows[0].get("classes"):
        return None
    table = np.array([row["classes"] for row in rows], np.float64)
    if table.ndim != 2:
        raise InputError(f"'{name}' is damaged: classes must be a list of numbers")
    return _shares(table, name)


def _total(row: Record) -> tuple[int, ...] | None:
    total = row.get("class_total")
    return tuple(_whole(n, "class_total") for n in total) if total else None


def _traffic(ledger: Sequence[Record]) -> tuple[Traffic, ...]:
    sums: dict[tuple[str, str, str], int] = {}
    for row in ledger:
        for direction in ("down", "up"):
            for name, sizes in row[direction].items():
                key = (str(row["phase"]), direction, str(name))
                sums[key] = sums.get(key, 0) + sum(_whole(size, name) for size in sizes)
    return tuple(Traffic(*key, total) for key, total in sums.items())


def _clients(record: Record) -> Clients | None:
    if not record.get("sizes"):
        return None
    sizes = np.array([_whole(n, "sizes") for n in record["sizes"]], np.int64)
    counts = None
    if record.get("counts"):
        counts = np.array(record["counts"], np.int64)
        if counts.ndim != 2 or len(counts) != len(sizes) or (counts < 0).any():
            raise ValueError("counts must be one list of whole numbers per client")
    return Clients(sizes, counts, str(record.get("scheme") or ""))
