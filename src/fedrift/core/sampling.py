"""Who takes part in a round: the same for every algorithm, from (seed, round) alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedrift.rng import generator

TRIES = 1000
Kind = Literal["fixed", "bernoulli", "cyclic", "size", "explicit"]


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn from all clients.

    fixed: `size` distinct clients; bernoulli: each with probability `share`, again if nobody
    came; cyclic: the clients fall into groups of `size` that take turns; size: `size` distinct
    clients, drawn one after the other in proportion to their samples; explicit: a schedule.
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

    @property
    def is_full(self) -> bool:
        """All clients take part in every round."""
        if self.kind == "explicit":
            return all(len(ids) == self.population for ids in self.schedule)
        return self.share >= 1.0 if self.kind == "bernoulli" else self.size == self.population

    @property
    def at_best(self) -> int:
        """As many clients as every round can have."""
        if self.kind == "explicit":
            return min(map(len, self.schedule), default=0)
        return self.population if self.kind == "bernoulli" else self.size

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
        elif self.kind == "size":
            chosen = self._by_size(rng, np.arange(pool) if left is None else left)
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
        return rng.choice(len(pool), min(self.size, able), replace=False, p=chances)

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
    participants: Sequence[Sequence[int]] | None = None,
    sampling: Kind = "fixed",
    samples: Sequence[int] = (),
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
    by = tuple(int(n) for n in samples) if sampling == "size" else ()
    return Participation(population, sampling, size, constant, samples=by)
