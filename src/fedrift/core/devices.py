"""Devices of a simulated federation: how fast each computes and sends, and when it is there.

Nothing here waits: seconds are computed from what a visit is known to have cost, so that they are
the same on every machine and for every backend.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedrift.core.plain_files import read_plain
from fedrift.errors import InputError, no_option, unknown
from fedrift.grammar import Named, number, parse
from fedrift.rng import generator

FORWARD = 1.0 / 3.0  # what passing an example forward takes of differentiating it
LARGEST_FILE = 64 << 20  # bytes
SLOWEST, FASTEST = 1e-6, 1e15  # gradients or bytes in a second
COLUMNS = ("speed", "down", "up", "latency")
USUAL = {"speed": 1000.0, "down": 5e6, "up": 1e6, "latency": 0.05}
GRAMMAR = {
    "uniform": "uniform[:speed=1000,down=5e6,up=1e6,latency=0.05]",
    "lognormal": "lognormal[:1,network=1,speed=1000,down=5e6,up=1e6,latency=0.05]",
    "stragglers": "stragglers:P[,slow=4,speed=1000,down=5e6,up=1e6,latency=0.05]",
    "FILE.csv": "FILE.csv",
    "trace": "trace:FILE.csv[,period=86400,spread=1,network=1,speed=…]",
}


class Trip(NamedTuple):
    """A client's way from being sent the model to its reply, in seconds of the simulated clock."""

    client: int
    began: float
    down: float
    """How long it receives."""
    work: float
    """How long it computes."""
    up: float
    """How long it sends."""
    arrives: float
    """When the reply is there: later than these say if the device was away meanwhile."""


@dataclass(frozen=True)
class Presence:
    """When devices are there: pieces of time of each, again and again with a period."""

    period: float
    first: np.ndarray
    """Where the pieces of each client begin in the arrays below; one more at the end."""
    start: np.ndarray
    before: np.ndarray
    """Seconds in which the client was there before a piece begins, since the period began."""
    length: np.ndarray
    total: np.ndarray
    """Seconds in which each client is there in a period."""

    @staticmethod
    def of(pieces: Sequence[Sequence[tuple[float, float]]], period: float) -> Presence:
        lengths = [np.array([b - a for a, b in one]) for one in pieces]
        return Presence(
            period,
            np.concatenate([[0], np.cumsum([len(one) for one in pieces])]),
            np.array([a for one in pieces for a, _ in one]),
            np.concatenate([np.cumsum(one) - one for one in lengths]),
            np.concatenate(lengths),
            np.array([one.sum() for one in lengths]),
        )

    @cached_property
    def _keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Begins and ends of all pieces, those of each client beyond those of the one before."""
        owner = np.repeat(np.arange(len(self.total)), np.diff(self.first)) * self._wide
        return owner + self.start, owner + self.before + self.length

    @property
    def _wide(self) -> float:
        return 2.0 * self.period

    def _begun(self, rest: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """The last piece of each that has begun by then; −1: none."""
        found = np.searchsorted(self._keys[0], clients * self._wide + rest, "right") - 1
        return np.where(found >= self.first[clients], found, -1)

    def seconds(self, time: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """How long each has been there since the clock began."""
        periods = np.floor(time / self.period)
        rest = time - periods * self.period
        k = self._begun(rest, clients)
        inside = self.before[k] + np.minimum(rest - self.start[k], self.length[k])
        return periods * self.total[clients] + np.where(k < 0, 0.0, inside)

    def after(self, seconds: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """The inverse: when each will have been there for so long."""
        total = self.total[clients]
        periods = np.maximum(np.ceil(seconds / total) - 1.0, 0.0)
        rest = seconds - periods * total
        k = np.searchsorted(self._keys[1], clients * self._wide + rest)
        k = np.clip(k, self.first[clients], self.first[clients + 1] - 1)
        return periods * self.period + self.start[k] + (rest - self.before[k])

    def are_there(self, time: float) -> np.ndarray:
        """Which clients are there now."""
        clients = np.arange(len(self.total))
        rest = np.full(len(clients), time - np.floor(time / self.period) * self.period)
        k = self._begun(rest, clients)
        return (k >= 0) & (rest < self.start[k] + self.length[k])

    def next_there(self, time: float, of: np.ndarray | None = None) -> float:
        """When somebody, of these, is there again, if nobody is now."""
        rest = time - np.floor(time / self.period) * self.period
        start = self.start
        if of is not None:
            start = start[np.isin(np.repeat(np.arange(len(self.total)), np.diff(self.first)), of)]
        later = start[start >= rest]
        return time - rest + float(later.min() if len(later) else self.period + start.min())


@dataclass(frozen=True)
class Devices:
    """One device per client: gradients per second, bytes per second down and up, latency."""

    speed: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray
    presence: Presence | None = None

    def __len__(self) -> int:
        return len(self.speed)

    def seconds(
        self, clients: np.ndarray, down: np.ndarray, gradients: np.ndarray, up: np.ndarray
    ) -> np.ndarray:
        """What receiving, computing and sending take: a column for each client."""
        delay = self.latency[clients]
        return np.stack(
            [
                delay + down / self.down[clients],
                gradients / self.speed[clients],
                delay + up / self.up[clients],
            ]
        )

    def arrival(self, clients: np.ndarray, began: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """When work of so many seconds is done: it rests while the device is away."""
        if self.presence is None:
            return began + seconds
        there = self.presence
        done = there.after(there.seconds(began, clients) + seconds, clients)
        return np.maximum(done, began)

    def trips(
        self,
        clients: Sequence[int],
        began: float,
        down: np.ndarray,
        gradients: np.ndarray,
        up: np.ndarray,
    ) -> list[Trip]:
        """The ways of clients who are sent something at the same time."""
        who = np.asarray(clients, dtype=np.int64)
        spent = self.seconds(who, down, gradients, up)
        begin = np.full(len(who), began)
        ends = self.arrival(who, begin, spent.sum(axis=0))
        columns = who.tolist(), begin.tolist(), *spent.tolist(), ends.tolist()
        return [Trip(*row) for row in zip(*columns, strict=True)]

    def present(self, time: float) -> np.ndarray | None:
        """The clients that are there; None: all of them, always."""
        return None if self.presence is None else np.flatnonzero(self.presence.are_there(time))

    def next_present(self, time: float, of: np.ndarray | None = None) -> float:
        return time if self.presence is None else self.presence.next_there(time, of)


# What a reader can say of devices.


class DevicePlan(NamedTuple):
    """Devices as they are said, for any number of clients."""

    medians: Mapping[str, float]
    spread: float = 0.0
    """Standard deviation of the logarithm of speeds."""
    network: float = 0.0
    """The same of bandwidths and latencies, which a device has good or bad together."""
    share: float = 0.0
    """Of the clients, those that compute more slowly, by a factor uniform in 1…slow."""
    slow: float = 1.0
    table: Mapping[str, tuple[float, ...]] | None = None
    """The columns of a file; clients draw their rows unless it says whose they are."""
    is_by_client: bool = False
    pieces: Mapping[int, tuple[tuple[float, float], ...]] | None = None
    period: float = 0.0

    def settle(self, clients: int, seed: int) -> Devices:
        """The devices of a run."""
        if self.table is not None:
            return self._from_table(clients, seed)
        random = generator(seed, "devices")
        fast, near = random.standard_normal((2, clients))
        columns = {name: np.full(clients, value) for name, value in self.medians.items()}
        columns["speed"] = columns["speed"] * np.exp(self.spread * fast)
        if self.share:  # of a larger share, those of a smaller one are a part
            who = random.permutation(clients)[: round(self.share * clients)]
            columns["speed"][who] /= random.uniform(1.0, self.slow, clients)[who]
        for name in ("down", "up"):
            columns[name] = columns[name] * np.exp(self.network * near)
        columns["latency"] = columns["latency"] * np.exp(-self.network * near)
        presence = None
        if self.pieces is not None:
            self._check_everybody(self.pieces, clients, "trace")
            presence = Presence.of([self.pieces[c] for c in range(clients)], self.period)
        speed, down, up, latency = (columns[name] for name in COLUMNS)
        return Devices(speed, down, up, latency, presence)

    def _from_table(self, clients: int, seed: int) -> Devices:
        assert self.table is not None
        rows = {name: np.array(column) for name, column in self.table.items()}
        number = len(rows["speed"])
        if self.is_by_client:
            self._check_everybody(range(number), clients, "file")
        else:
            drawn = generator(seed, "devices").integers(0, number, clients)
            rows = {name: column[drawn] for name, column in rows.items()}
        return Devices(rows["speed"], rows["down"], rows["up"], rows["latency"])

    @staticmethod
    def _check_everybody(known: Mapping[int, object] | range, clients: int, what: str) -> None:
        missing = next((c for c in range(clients) if c not in known), None)
        if missing is not None:
            raise InputError(
                f"devices: the {what} says nothing of client {missing}, and there are {clients} "
                "clients; give every client from 0 on"
            )
        if len(known) > clients:
            raise InputError(
                f"devices: the {what} is of {len(known)} clients, but there are {clients}; "
                "use one of as many"
            )


def parse_devices(text: str | None) -> DevicePlan | None:
    """`uniform`, `lognormal:1`, `stragglers:0.5`, `FILE.csv` or `trace:FILE.csv`; None: none."""
    if text is None:
        return None
    if text.lower().endswith(".csv") and not text.startswith("trace:"):
        return _table(Path(text))
    named = parse(text, "devices")
    if named.name not in GRAMMAR:
        raise unknown("devices", named.name, GRAMMAR)
    keys = {
        "uniform": (),
        "lognormal": ("network",),
        "stragglers": ("slow",),
        "trace": ("network", "spread", "period"),
    }
    known = (*keys[named.name], *COLUMNS)
    for key in named.options:
        if key not in known:
            raise no_option(f"devices '{named}'", key, known, GRAMMAR[named.name])
    is_bare = named.name == "uniform" and named.value is not None
    is_empty = named.name in ("trace", "stragglers") and named.value is None
    if named.inner is not None or is_bare or is_empty:
        raise InputError(f"devices '{named}': write {GRAMMAR[named.name]}")
    medians = {key: _amount(named, key, USUAL[key]) for key in COLUMNS}
    spread = _spread(named, named.value or "1", "the spread") if named.name == "lognormal" else 0.0
    if "spread" in named.options:
        spread = _spread(named, named.options["spread"], "spread")
    network = _spread(named, named.options.get("network", str(spread)), "network")
    plan = DevicePlan(medians, spread, network)
    if named.name == "stragglers":
        share = number(named.value or "", "devices: stragglers", low=0.0, high=1.0)
        slow = number(named.options.get("slow", "4"), "devices: slow", low=1.0, high=1e6)
        plan = plan._replace(share=share, slow=slow)
    return _traced(plan, named) if named.name == "trace" else plan


def _amount(named: Named, key: str, usual: float) -> float:
    field, text = f"devices: {key}", named.options.get(key, str(usual))
    return number(text, field, low=0.0 if key == "latency" else SLOWEST, high=FASTEST)


def _spread(named: Named, text: str, what: str) -> float:
    return number(text, f"devices '{named}': {what}", low=0.0, high=5.0)


def _lines(path: Path, wanted: Sequence[str], more: Sequence[str] = ()) -> list[dict[str, float]]:
    """The rows of a CSV file with named columns, all numbers."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"devices '{path}' is larger than {LARGEST_FILE >> 20} MB")
        lines = read_plain(path, LARGEST_FILE).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise InputError(f"devices '{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"devices '{path}' is not UTF-8 text; save it as UTF-8") from None
    head, *body = list(csv.reader(lines)) or [[]]
    names = [name.strip() for name in head]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(
            f"devices '{path}' has no column '{missing[0]}'; its first line must name "
            f"{', '.join((*more, *wanted))}"
        )
    rows: list[dict[str, float]] = []
    for at, cells in enumerate(body, start=2):
        if not cells:
            continue
        if len(cells) != len(names):
            raise InputError(
                f"devices '{path}', line {at}: {len(cells)} values for {len(names)} columns"
            )
        given = dict(zip(names, cells, strict=True))
        rows.append(
            {
                name: number(given[name].strip(), f"devices '{path}', line {at}: {name}")
                for name in (*wanted, *more)
                if name in given
            }
        )
    if not rows:
        raise InputError(f"devices '{path}' has no rows; give one per device")
    return rows


def _client(row: Mapping[str, float], path: Path, at: int) -> int:
    if row["client"] < 0 or row["client"] != int(row["client"]):
        raise InputError(
            f"devices '{path}', row {at}: client must be a whole number from 0 on, "
            f"not '{row['client']:g}'"
        )
    return int(row["client"])


def _table(path: Path) -> DevicePlan:
    """A file with a row per device; with a column `client`, whose it is."""
    rows = _lines(path, ("speed", "down", "up"), ("latency", "client"))
    for at, row in enumerate(rows, start=1):
        for name in ("speed", "down", "up"):
            if not SLOWEST <= row[name] <= FASTEST:
                raise InputError(
                    f"devices '{path}', row {at}: {name} must be a number of at least {SLOWEST:g} "
                    f"and at most {FASTEST:g}, not '{row[name]:g}'"
                )
        if not 0 <= row.get("latency", 0.0) <= FASTEST:
            raise InputError(
                f"devices '{path}', row {at}: latency must be a number of at least 0 and at most "
                f"{FASTEST:g}, not '{row['latency']:g}'"
            )
    if "client" in rows[0]:
        owners = [_client(row, path, at) for at, row in enumerate(rows, start=1)]
        twice = next((c for i, c in enumerate(owners) if c in owners[:i]), None)
        if twice is not None:
            raise InputError(f"devices '{path}' has two rows of client {twice}; keep one")
        if sorted(owners) != list(range(len(owners))):
            gap = next(c for c in range(len(owners)) if c not in owners)
            raise InputError(f"devices '{path}' has no row of client {gap}; give every client one")
        rows = [row for _, row in sorted(zip(owners, rows, strict=True), key=lambda pair: pair[0])]
    table = {name: tuple(row.get(name, 0.0) for row in rows) for name in COLUMNS}
    return DevicePlan(USUAL, table=table, is_by_client="client" in rows[0])


def _traced(plan: DevicePlan, named: Named) -> DevicePlan:
    """A file of the times in which each client is there."""
    path = Path(named.value or "")
    rows = _lines(path, ("client", "start", "end"))
    pieces: dict[int, list[tuple[float, float]]] = {}
    for at, row in enumerate(rows, start=1):
        if not 0 <= row["start"] < row["end"]:
            raise InputError(
                f"devices '{path}', row {at}: from {row['start']:g} to {row['end']:g} is no time; "
                "start must be at least 0 and before end"
            )
        pieces.setdefault(_client(row, path, at), []).append((row["start"], row["end"]))
    last = max(row["end"] for row in rows)
    period = number(
        named.options.get("period", repr(last)),
        "devices: period",
        low=0.0,
        high=1e12,
        low_open=True,
    )
    if period < last:
        raise InputError(
            f"devices: period must be at least {last:g}, the end of '{path}', not '{period:g}'"
        )
    gap = next((c for c in range(max(pieces) + 1) if c not in pieces), None)
    if gap is not None:
        raise InputError(
            f"devices '{path}' has a hole: client {gap} is never there; give every client from 0 "
            f"to {max(pieces)} a time"
        )
    for client, own in pieces.items():
        own.sort()
        for (_, end), (start, _) in pairwise(own):
            if start < end:
                raise InputError(
                    f"devices '{path}': two times of client {client} overlap at {start:g}; "
                    "join them"
                )
    held = {client: tuple(own) for client, own in pieces.items()}
    return plan._replace(pieces=held, period=period)


# Who is late, and what becomes of the reply.

LateKind = Literal["wait", "drop", "partial", "over"]
LATE = {
    "wait": "wait",
    "drop": "drop:SECONDS",
    "partial": "partial:SECONDS",
    "over": "over:CLIENTS",
}


class Late(NamedTuple):
    """What the server does about clients that take long.

    wait: it waits for all; drop: who has not replied after `value` seconds is left out; partial:
    clients make as many of their steps as `value` seconds allow; over: `value` more clients are
    asked, and the first replies count.
    """

    kind: LateKind = "wait"
    value: float = 0.0

    @property
    def extra(self) -> int:
        return int(self.value) if self.kind == "over" else 0

    @property
    def holds(self) -> bool:
        """Which replies count is known only when all are there."""
        return self.kind in ("drop", "over")


def parse_late(text: str | None) -> Late:
    """`wait`, `drop:60`, `partial:60` or `over:5`."""
    if text is None:
        return Late()
    named = parse(text, "late")
    if named.name not in LATE:
        raise unknown("rule for late clients", named.name, LATE)
    is_wrong = (named.name == "wait") != (named.value is None)
    if named.inner is not None or named.options or is_wrong:
        raise InputError(f"late '{named}': write {LATE[named.name]}")
    if named.name == "wait":
        return Late()
    if named.name == "over":
        return Late("over", number(named.value or "", "late: over", kind=int, low=1, high=1e6))
    kind: LateKind = "drop" if named.name == "drop" else "partial"
    return Late(kind, number(named.value or "", f"late: {kind}", low=0.0, high=1e12, low_open=True))
