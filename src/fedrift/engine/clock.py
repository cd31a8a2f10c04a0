"""The simulated clock of a run: when replies arrive, and which of them count."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrift.backends.backend import Fold, Held
from fedrift.backends.visit import Reply
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.arrivals import ClockState, Out
from fedrift.core.codecs import sizes_of
from fedrift.core.composition import arrivals_of, local_of
from fedrift.core.devices import (
    FORWARD,
    USUAL,
    DevicePlan,
    Devices,
    Late,
    Trip,
    parse_devices,
    parse_late,
)
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import nbytes, pack, unpack
from fedrift.core.sampling import LOOKS, Participation
from fedrift.core.site import Work
from fedrift.errors import InputError
from fedrift.grammar import parse

TRIES = 1000  # draws of nobody who works, before a round is given up


@dataclass(frozen=True)
class ClockPlan:
    """The devices of a run, and what is done about clients that take long."""

    devices: Devices
    late: Late = Late()
    arrivals: int | None = None
    """Replies that make a round of an asynchronous algorithm."""


@dataclass
class Taken:
    """What an exchange came to on the clock."""

    outcome: Outcome
    trips: Sequence[Trip]
    asked: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    """Who was asked and does not count: it failed, or came too late."""
    given: int = 0
    """How many were sent what is frozen."""
    base: int = 0
    """Bytes of what was frozen before the run, sent once."""


Send = Callable[[Exchange, Sequence[int]], "Sent"]
Draw = Callable[[int, np.ndarray, int], Sequence[int]]
"""The number of the departure, who may leave and how many → who leaves."""


@dataclass(frozen=True)
class Sent:
    """What came of sending a message to some clients."""

    outcome: Outcome
    dropped: tuple[int, ...]
    """Those of them that failed, in a simulated fault."""
    given: int
    """How many were sent what is frozen."""
    base: int
    """Bytes of what was frozen before the run, sent once."""
    once: Mapping[int, int]
    """Client → bytes that it was sent besides the message."""


def _order(one: Out) -> tuple[float, int]:
    """Arrivals are taken in by their time, then by client."""
    return one.trip.arrives, one.trip.client


class Clock:
    """Time that passes by what is declared and counted; no second of it is waited for."""

    def __init__(self, plan: ClockPlan, state: ClockState) -> None:
        self.plan, self.devices = plan, plan.devices
        self.time, self._departures = state.time, state.departures
        self._out = sorted(state.out, key=_order)

    def state(self) -> ClockState:
        return ClockState(self.time, self._departures, tuple(self._out))

    def present(self, of: np.ndarray) -> np.ndarray | None:
        """Those of some clients that are there now; None: everybody always is.

        If nobody is, the time goes on until somebody is.
        """
        here = self.devices.present(self.time)
        if here is None or not len(of):
            return here
        while not len(here := np.intersect1d(here, of)):
            later = self.devices.next_present(self.time, of)
            self.time = max(later, math.nextafter(self.time, math.inf))
            here = self.devices.present(self.time)
            assert here is not None
        return here

    # Everybody who is asked is waited for, or until it is too late.

    def part(
        self, exchange: Exchange, clients: Sequence[int], gradients: Sequence[float], up: int
    ) -> dict[int, float]:
        """Client → share of its steps that the time allows, for those whose time is too short."""
        late = self.plan.late
        if late.kind != "partial" or exchange.is_evaluation:
            return {}
        down = self._down(exchange, clients, {})
        spent = self.devices.seconds(
            np.array(clients), down, np.array(gradients), np.full(len(clients), float(up))
        )
        share = np.maximum(late.value - spent[0] - spent[2], 0.0) / np.maximum(spent[1], 1e-300)
        return {c: float(s) for c, s in zip(clients, share, strict=True) if s < 1.0}

    def settle(self, exchange: Exchange, clients: Sequence[int], sent: Sent, wanted: int) -> Taken:
        """What is in time: `wanted` replies are enough where more clients were asked."""
        late, began = self.plan.late, self.time
        trips = self._trips(exchange, sent, began)
        arrivals = sorted((trip.arrives, trip.client) for trip in trips)
        end = arrivals[-1][0] if arrivals else began
        if late.kind == "drop":
            deadline = began + late.value
            end = deadline if end > deadline or sent.dropped else end
        elif late.kind == "over" and len(arrivals) > wanted:
            end, _ = arrivals[wanted - 1]
            arrivals = arrivals[:wanted]
        in_time = {client for at, client in arrivals if at <= end}
        self.time = max(end, began)
        asked = tuple(clients)
        if not exchange.holds:
            return Taken(sent.outcome, trips, asked, sent.dropped, sent.given, sent.base)
        fold = Fold(replace(exchange, holds=False))
        for held in sent.outcome.held:
            if held.client in in_time:
                fold.add(held.client, held.n, held.reply, held.size)
            else:
                fold.work.add(held.reply.work)  # it has worked for nothing
        missing = {trip.client for trip in trips if trip.client not in in_time}
        dropped = tuple(c for c in clients if c in missing or c in sent.dropped)
        return Taken(fold.outcome(), trips, asked, dropped, sent.given, sent.base)

    def _down(
        self, exchange: Exchange, clients: Sequence[int], once: Mapping[int, int]
    ) -> np.ndarray:
        """Bytes that each is sent."""
        sizes = sizes_of(exchange.compression, "down", exchange.down).values()
        common = sum(size.total for size in sizes)
        common += sum(b.nbytes for b in exchange.buffers)
        down = np.full(len(clients), float(common))
        if once:
            down += [float(once.get(client, 0)) for client in clients]
        for i, client in enumerate(clients if exchange.private else ()):
            if client in exchange.private:
                own = nbytes(pack(exchange.private[client])).values()
                down[i] += sum(size.total for size in own)
        return down

    def _trips(self, exchange: Exchange, sent: Sent, began: float) -> list[Trip]:
        how, visits = exchange.aggregation, sent.outcome.visits
        if how is not None and how.is_ghost:  # nobody was there
            visits = ()
        clients = [visit.client for visit in visits]
        return self.devices.trips(
            clients,
            began,
            self._down(exchange, clients, sent.once),
            np.array([v.work.gradients + FORWARD * v.work.forwards for v in visits]),
            np.array([float(v.up) for v in visits]),
        )

    # Somebody is always out: a round is made by those who arrive.

    def arrivals(
        self, exchange: Exchange, size: int, population: int, draw: Draw, send: Send
    ) -> Taken:
        """Send clients out and take in replies until there are enough of them for a round.

        Everything that arrives at one instant is taken in before anybody is sent out.
        """
        wanted, fold, trips = self.plan.arrivals or 1, Fold(exchange), list[Trip]()
        total = Taken(fold.outcome(), trips)
        again, tries = Counter[int](), 0
        while len(trips) < wanted:
            if self._out and self._out[0].trip.arrives <= self.time:
                one = self._out.pop(0)
                self._take(fold, exchange, one)
                trips.append(one.trip)
                continue
            if len(self._out) < size:
                self._depart(exchange, size, population, draw, send, again, total)
            if self._out:
                self.time = max(self.time, self._out[0].trip.arrives)
            elif (tries := tries + 1) == TRIES:
                break  # nobody works
        total.outcome = fold.outcome()
        return total

    def _take(self, fold: Fold, exchange: Exchange, one: Out) -> None:
        up = None if one.up is None else unpack(exchange.signature.up, one.up)
        reply = Reply(up, None, one.buffers, one.work, one.is_finite, training=lambda: one.training)
        staleness = exchange.round - one.round
        fold.add(one.trip.client, one.n, reply, one.size, staleness)

    def _depart(
        self,
        exchange: Exchange,
        size: int,
        population: int,
        draw: Draw,
        send: Send,
        again: Counter[int],
        total: Taken,
    ) -> None:
        """Fill the free places: who leaves is visited now, and arrives when it arrives."""
        number, self._departures = self._departures, self._departures + 1
        away = [one.trip.client for one in self._out]
        is_here = np.ones(population, dtype=bool)
        is_here[away] = False
        able = np.flatnonzero(is_here)
        leaving = draw(number, able, size - len(away))
        total.asked += tuple(leaving)
        turns: dict[int, list[int]] = {}
        for client in leaving:
            turns.setdefault(again[client], []).append(client)
            again[client] += 1
        for turn, some in sorted(turns.items()):
            asked = replace(exchange, holds=True, streams=f"again {turn} " if turn else "")
            sent = send(asked, some)
            total.given += sent.given
            total.base += sent.base
            total.dropped += sent.dropped
            trips = self._trips(asked, sent, self.time)
            by_client = {trip.client: trip for trip in trips}
            for held in sent.outcome.held:
                insort(self._out, self._leaving(exchange, held, by_client), key=_order)

    @staticmethod
    def _leaving(exchange: Exchange, held: Held, trips: dict[int, Trip]) -> Out:
        reply = held.reply
        up: Any = None if reply.up is None else pack(reply.up)
        return Out(
            trips[held.client],
            exchange.round,
            held.n,
            up,
            reply.buffers,
            Work(reply.work.gradients, reply.work.forwards, reply.work.steps),
            held.size,
            reply.is_finite,
            reply.training(),
        )


# Settles the options `devices` and `late`, and refuses what would have no meaning.


def clock_of(
    spec: Spec, algorithm: Algorithm[Any, Any], who: Participation
) -> tuple[Participation, ClockPlan | None]:
    """Who is asked, and the clock of a run; an asynchronous algorithm always has one."""
    plan, late, takes = parse_devices(spec.devices), parse_late(spec.late), arrivals_of(algorithm)
    if plan is None and who.kind == "available":
        raise InputError(
            "sampling 'available' asks clients whose device is there, and there is no clock; give "
            "devices too, such as devices=trace:FILE.csv"
        )
    if plan is None and takes is None:
        if late.kind != "wait":
            raise InputError(
                f"late '{spec.late}' is about time, and there is no clock; give devices too, such "
                "as devices=lognormal"
            )
        return who, None
    if takes is not None:
        _check_asynchronous(spec, who)
    if any(parse(text, "faults").name == "stragglers" for text in spec.faults):
        raise InputError(
            "faults 'stragglers' and devices both say who is slow; keep one: with devices, say "
            "late=drop:SECONDS or late=partial:SECONDS"
        )
    if late.kind != "wait" and spec.privacy is not None:
        raise InputError(
            f"privacy and late '{spec.late}': who counts depends on how fast a client is, and no "
            "bound is known for that; use late=wait"
        )
    if late.kind == "partial" and local_of(algorithm) is None:
        raise InputError("late: partial needs local steps to leave out; use drop")
    if late.kind == "over":
        if who.kind not in ("fixed", "available", "size"):
            raise InputError(f"late '{spec.late}' needs sampling=fixed, not '{who.kind}'")
        if who.size + late.extra > who.population:
            raise InputError(
                f"late '{spec.late}': {who.size} + {late.extra} clients in a round, but there are "
                f"only {who.population}; ask fewer"
            )
        who = replace(who, size=who.size + late.extra)
    devices = (plan or DevicePlan(USUAL)).settle(who.population, spec.seed)
    return who, ClockPlan(devices, late, takes)


def _check_asynchronous(spec: Spec, who: Participation) -> None:
    name = parse(spec.algorithm, "algorithm").name
    if spec.late is not None:
        raise InputError(f"late '{spec.late}': {name} waits for nobody; leave it out")
    if who.kind in ("bernoulli", "cyclic", *LOOKS):
        raise InputError(
            f"sampling '{spec.sampling}': {name} sends a client out whenever a place is "
            "free; use fixed"
        )
    if spec.privacy is not None:
        raise InputError(
            f"privacy: clients of {name} are not drawn at random for every round, and no bound is "
            "known for that; use an algorithm that waits"
        )
    if spec.aggregate is not None:
        raise InputError(
            f"aggregate: replies of {name} start from different models and cannot be compared; "
            "use an algorithm that waits"
        )
