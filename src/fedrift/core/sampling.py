"""Who takes part in a round: the same for every algorithm, from (seed, round) alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrift.errors import InputError
from fedrift.rng import generator

TRIES = 1000
Kind = Literal["fixed", "bernoulli", "cyclic", "explicit"]


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn from all clients.

    fixed: `size` distinct clients; bernoulli: each with probability `share`, again if nobody
    came; cyclic: the clients fall into groups of `size` that take turns; explicit: a schedule.
    """

    population: int
    kind: Kind
    size: int
    share: float
    schedule: tuple[tuple[int, ...], ...] = ()
    redraws: bool = True
    """A bernoulli draw of nobody is drawn again, and who is absent is replaced; neither where
    privacy counts on how likely each is drawn."""

    @property
    def is_full(self) -> bool:
        """All clients take part in every round."""
        if self.kind == "explicit":
            return all(len(ids) == self.population for ids in self.schedule)
        return self.share >= 1.0 if self.kind == "bernoulli" else self.size == self.population

    def everybody(self) -> np.ndarray:
        """All who can ever be drawn."""
        if self.kind == "explicit":
            return np.unique(np.concatenate([np.array(ids, int) for ids in self.schedule]))
        return np.arange(self.population)

    def draw(self, round: int, seed: int, left: np.ndarray | None = None) -> tuple[int, ...]:
        """The cohort of a round (from 0); `left` restricts it to clients not counted yet."""
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
        else:
            chosen = rng.choice(pool, min(self.size, pool), replace=False, shuffle=False)
        ids = chosen if left is None else left[chosen]
        return tuple(sorted(int(i) for i in ids))

    def among(self, round: int, seed: int, here: np.ndarray | None) -> tuple[int, ...]:
        """The cohort of a round when only some are there; as ever when all are."""
        if here is None or len(here) == self.population:
            return self.draw(round, seed)
        if self.kind in ("explicit", "cyclic") or not self.redraws:  # the absent are missed
            return tuple(c for c in self.draw(round, seed) if c in set(here.tolist()))
        return self.draw(round, seed, here)

    def _coins(self, rng: np.random.Generator, pool: int) -> np.ndarray:
        for _ in range(TRIES):
            chosen = np.flatnonzero(rng.random(pool) < self.share)
            if len(chosen) or not self.redraws:
                return chosen
        return rng.integers(0, pool, 1)  # the share is so small that nobody would ever come

    def _turn(self, round: int, seed: int) -> tuple[int, ...]:
        order = generator(seed, "groups").permutation(self.population)
        groups = -(-self.population // self.size)
        first = round % groups * self.size
        return tuple(sorted(int(i) for i in order[first : first + self.size]))


def participation(
    population: int,
    rounds: int,
    *,
    per_round: int | None = None,
    fraction: float | None = None,
    participants: list[list[int]] | None = None,
    sampling: str = "fixed",
) -> Participation:
    """Check and settle the options of a run; nothing given means everybody."""
    if fraction is not None and not (_is_number(fraction) and 0.0 < fraction <= 1.0):
        raise InputError(f"fraction={fraction!r} must be a number above 0 and at most 1")
    if participants is not None:
        if sampling != "fixed":
            raise InputError(f"sampling='{sampling}' has no meaning with participants; drop one")
        return _explicit(population, rounds, participants, fraction, per_round)
    if per_round is not None and fraction is not None:
        raise InputError(f"per_round={per_round} and fraction={fraction}: give one of them")
    if per_round is not None and not (_is_whole(per_round) and 1 <= per_round <= population):
        raise InputError(
            f"per_round={per_round!r} must be a whole number from 1 to {population}, the clients"
        )
    if sampling not in ("fixed", "bernoulli", "cyclic"):
        raise InputError(f"sampling='{sampling}' must be fixed, bernoulli or cyclic")
    if per_round is not None:
        size, share = per_round, per_round / population
    else:
        share = 1.0 if fraction is None else fraction
        size = max(1, int(share * population + 1e-9))
    constant = share if sampling == "bernoulli" or fraction is not None else size / population
    return Participation(population, sampling, size, constant)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _explicit(
    population: int,
    rounds: int,
    participants: list[list[int]],
    fraction: float | None,
    per_round: int | None,
) -> Participation:
    if per_round is not None:
        raise InputError("participants and per_round: the schedule says who takes part; drop one")
    listed = isinstance(participants, (list, tuple))
    if not listed or not all(isinstance(ids, (list, tuple)) for ids in participants):
        raise InputError(f"participants={participants!r} must be a list of lists, one a round")
    if len(participants) < rounds:
        raise InputError(
            f"participants lists {len(participants)} rounds, but rounds={rounds}: one list a round"
        )
    schedule: list[tuple[int, ...]] = []
    for t, names in enumerate(participants[:rounds]):
        strange = next((i for i in names if not _is_whole(i)), None)
        if strange is not None:
            raise InputError(f"participants[{t}] names {strange!r}; client ids are whole numbers")
        ids = sorted(int(i) for i in names)
        wrong = [i for i in ids if not 0 <= i < population]
        if wrong or len(set(ids)) != len(ids):
            what = f"client {wrong[0]}" if wrong else "a client twice"
            raise InputError(
                f"participants[{t}] names {what}; client ids run from 0 to {population - 1}"
            )
        schedule.append(tuple(ids))
    mean = sum(map(len, schedule)) / max(1, len(schedule))
    share = mean / population if fraction is None else fraction
    return Participation(population, "explicit", max(1, round(mean)), share, tuple(schedule))
