"""Who takes part in a round: the same for every algorithm, from (seed, round) alone.

Three kinds look at more: `available` at who is there, `power` at what training has reported, and a
function at both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedrift.errors import InputError
from fedrift.rng import generator

TRIES = 1000
Kind = Literal["fixed", "bernoulli", "cyclic", "size", "explicit", "available", "power", "function"]
LOOKS: tuple[Kind, ...] = ("available", "power", "function")
"""Kinds whose cohorts depend on how the run went, not on seed and round alone."""


@dataclass(frozen=True)
class Choice:
    """What a function that chooses the clients of a round is given; its arrays are read-only."""

    round: int
    """Counts from 0."""
    clients: np.ndarray
    """Who can be asked: all, or those whose device is there now."""
    size: int
    """How many are wanted; other numbers are taken too."""
    samples: np.ndarray
    """Of every client."""
    losses: np.ndarray
    """The mean training loss that each client reported last; nan: none so far."""
    random: np.random.Generator
    """Of the run's seed and this round."""


Chooser = Callable[[Choice], Sequence[int]]


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn from all clients.

    fixed: `size` distinct clients; bernoulli: each with probability `share`, again if nobody
    came; cyclic: the clients fall into groups of `size` that take turns; size: `size` distinct
    clients, drawn one after the other in proportion to their samples; explicit: a schedule.
    available: as fixed, of those who are there; power: of `candidates` clients drawn as by size
    those who reported the largest loss; function: as the reader's own says.
    """

    population: int
    kind: Kind
    size: int
    share: float
    schedule: tuple[tuple[int, ...], ...] = ()
    redraws: bool = True
    """A bernoulli draw of nobody is drawn again, and who is absent is replaced; neither where
    privacy counts on how likely each is drawn."""

    samples: tuple[int, ...] = field(default=(), repr=False)
    """Of each client, where they are drawn in proportion to them."""

    candidates: int = field(default=0, repr=False)
    function: Chooser | None = field(default=None, repr=False)
    name: str = field(default="", repr=False)
    """What the reader calls the function."""

    @property
    def is_full(self) -> bool:
        """All clients take part in every round."""
        if self.kind == "explicit":
            return all(len(ids) == self.population for ids in self.schedule)
        if self.kind in ("available", "function"):
            return False
        return self.share >= 1.0 if self.kind == "bernoulli" else self.size == self.population

    @property
    def at_best(self) -> int:
        """As many clients as every round can have."""
        if self.kind == "explicit":
            return min(map(len, self.schedule), default=0)
        return self.population if self.kind in ("bernoulli", "function") else self.size

    def everybody(self) -> np.ndarray:
        """All who can ever be drawn."""
        if self.kind == "explicit":
            return np.unique(np.concatenate([np.array(ids, int) for ids in self.schedule]))
        return np.arange(self.population)

    def draw(
        self,
        round: int,
        seed: int,
        left: np.ndarray | None = None,
        losses: np.ndarray | None = None,
    ) -> tuple[int, ...]:
        """The cohort of a round (from 0); `left` restricts it to clients not counted yet.

        `losses` are those that clients reported last.
        """
        if self.kind == "explicit":
            return self.schedule[round] if round < len(self.schedule) else ()
        rng = generator(seed, "cohort", round)
        pool = self.population if left is None else len(left)
        if pool == 0:
            return ()
        if self.kind == "cyclic" and left is None:
            return self._turn(round, seed)
        if self.kind == "bernoulli":
            chosen = self._coins(rng, pool)
        elif self.kind in ("size", "power"):
            chosen = self._by_size(rng, np.arange(pool) if left is None else left)
            if self.kind == "power":
                known = np.full(self.population, np.nan) if losses is None else losses
                chosen = _largest(known if left is None else known[left], chosen)[: self.size]
        elif self.kind == "function":
            return self._asked(round, rng, left, losses)
        else:
            chosen = rng.choice(pool, min(self.size, pool), replace=False, shuffle=False)
        ids = chosen if left is None else left[chosen]
        return tuple(sorted(int(i) for i in ids))

    def among(
        self, round: int, seed: int, here: np.ndarray | None, losses: np.ndarray | None = None
    ) -> tuple[int, ...]:
        """The cohort of a round when only some are there; as ever when all are."""
        if here is None or len(here) == self.population:
            return self.draw(round, seed, losses=losses)
        if self.kind in ("explicit", "cyclic") or not self.redraws:  # the absent are missed
            return tuple(c for c in self.draw(round, seed) if c in set(here.tolist()))
        return self.draw(round, seed, here, losses)

    def first(self, rounds: int) -> Participation:
        """The same of fewer rounds."""
        if len(self.schedule) <= rounds:
            return self
        lists = self.schedule
        usual = participation(self.population, len(lists), participants=lists).share
        share = None if usual == self.share else self.share
        return participation(self.population, rounds, participants=lists, fraction=share)

    def _coins(self, rng: np.random.Generator, pool: int) -> np.ndarray:
        for _ in range(TRIES):
            chosen = np.flatnonzero(rng.random(pool) < self.share)
            if len(chosen) or not self.redraws:
                return chosen
        return rng.integers(0, pool, 1)  # the share is so small that nobody would ever come

    def _by_size(self, rng: np.random.Generator, pool: np.ndarray) -> np.ndarray:
        """Without replacement; clients without samples never come."""
        samples = np.asarray(self.samples, dtype=np.float64)[pool]
        able = int(np.count_nonzero(samples))
        if not able:
            return np.empty(0, np.int64)
        chances = samples / samples.sum()
        size = self.candidates if self.kind == "power" else self.size
        return rng.choice(len(pool), min(size, able), replace=False, p=chances)

    def _asked(
        self,
        round: int,
        rng: np.random.Generator,
        here: np.ndarray | None,
        losses: np.ndarray | None,
    ) -> tuple[int, ...]:
        """Whom the reader's function chooses, checked."""
        assert self.function is not None
        clients = np.arange(self.population) if here is None else here
        known = np.full(self.population, np.nan) if losses is None else losses
        who, samples, known = map(_read_only, (clients, np.array(self.samples), known))
        what, when = f"sampling '{self.name}'", f"in round {round + 1}"
        try:
            answer: Any = self.function(Choice(round, who, self.size, samples, known, rng))
        except Exception as error:  # the reader's code may fail in any way
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{what} failed {when}: {reason}") from error
        ids = _numbers(answer)
        if ids is None:
            raise InputError(
                f"{what} gave {_shown(answer)} {when}; a list of client numbers is wanted"
            )
        if not ids:
            raise InputError(f"{what} chose nobody {when}; at least one client is needed")
        able, seen = set(clients.tolist()), set[int]()
        for client in ids:
            if client not in able:
                raise InputError(
                    f"{what} chose client {client} {when}, who is not one of choice.clients"
                )
            if client in seen:
                raise InputError(f"{what} chose client {client} twice {when}; name each once")
            seen.add(client)
        return tuple(sorted(ids))

    def _turn(self, round: int, seed: int) -> tuple[int, ...]:
        order = generator(seed, "groups").permutation(self.population)
        groups = -(-self.population // self.size)
        first = round % groups * self.size
        return tuple(sorted(int(i) for i in order[first : first + self.size]))


def _largest(losses: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """These by falling loss, then by number; first who has reported none that is finite."""
    found = losses[chosen]
    return chosen[np.lexsort((chosen, -np.where(np.isfinite(found), found, np.inf)))]


def _read_only(values: np.ndarray) -> np.ndarray:
    copy = values.copy()
    copy.setflags(write=False)
    return copy


def _numbers(answer: Any) -> list[int] | None:
    """Whole numbers as Python's own; None if that is not what was given."""
    if isinstance(answer, str | bytes):
        return None
    try:
        given: list[Any] = list(answer)
    except Exception:
        return None
    items = [one.item() if getattr(one, "shape", None) == () else one for one in given]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in items):
        return None
    return items


def _shown(answer: Any) -> str:
    text = repr(answer)
    return text if len(text) <= 60 else f"{text[:60]}…"


def participation(
    population: int,
    rounds: int,
    *,
    per_round: int | None = None,
    fraction: float | None = None,
    participants: Sequence[Sequence[int]] | None = None,
    sampling: Kind = "fixed",
    samples: Sequence[int] = (),
    candidates: int = 0,
    function: Chooser | None = None,
    name: str = "",
) -> Participation:
    """Settle the options of a run, which are checked; nothing given means everybody."""
    if participants is not None:
        schedule = tuple(tuple(sorted(ids)) for ids in participants[:rounds])
        mean = sum(map(len, schedule)) / max(1, len(schedule))
        share = mean / population if fraction is None else fraction
        return Participation(population, "explicit", max(1, round(mean)), share, schedule)
    if per_round is not None:
        size, share = per_round, per_round / population
    else:
        share = 1.0 if fraction is None else fraction
        size = max(1, int(share * population + 1e-9))
    constant = share if sampling == "bernoulli" or fraction is not None else size / population
    by = tuple(int(n) for n in samples) if sampling in ("size", "power", "function") else ()
    if sampling == "power" and not size <= candidates <= population:
        why = f"{size} of the candidates take part; draw at least {size}"
        if candidates > population:
            why = f"there are only {population} clients; draw at most {population}"
        raise InputError(f"sampling 'power:{candidates}': {why}")
    return Participation(
        population,
        sampling,
        size,
        constant,
        samples=by,
        candidates=candidates,
        function=function,
        name=name,
    )
