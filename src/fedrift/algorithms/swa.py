"""SWA: Caldarola, Caputo, Ciccone, ECCV 2022, after Izmailov et al., UAI 2018.

A model is captured at the end of a rate cycle, when the rate is lowest; the authors' code
captures after its first, highest-rate round (`official_offset`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fedrift.algorithms.wrappers import Wrapper
from fedrift.core import Algorithm, Cohort, Problem, Schedule, Vec, local_of, map_local, rate
from fedrift.core import refuse_rates, state


@dataclass(frozen=True)
class Cycle:
    """From `start` on the rate falls linearly from lr to lr2, again and again."""

    lr: float | Schedule
    start: int
    length: int
    lr2: float

    def at(self, round: int, step: int) -> float:
        base = rate(self.lr, round, step)
        if round < self.start:
            return base
        u = ((round - self.start) % self.length + 1) / self.length
        return (1 - u) * base + u * self.lr2


@state
class Averaged:
    inner: Any
    average: Vec | None = None  # of the captured models
    n: int = 0  # models in the average


@dataclass(frozen=True)
class SWA(Wrapper):
    """Averages the server's models of the last part of training; the training itself goes on.

    start: when averaging begins: a share of the rounds below 1, a number of rounds from 1 on
    cycle: rounds of one cycle of the client rate; 1 leaves the rate alone
    lr2: client rate at the end of a cycle
    official_offset: capture after the first round of a cycle, as the authors' code does
    """

    inner: Algorithm[Any, Any]
    start: Annotated[float, ">= 0"] = 0.75
    cycle: Annotated[int, ">= 1"] = 1
    lr2: Annotated[float, "> 0"] = 1e-4
    official_offset: bool = False

    def begins(self, p: Problem) -> int:
        return int(self.start * p.rounds + 1e-9) if self.start < 1 else int(self.start)

    def counts_on_rounds(self) -> bool:
        return self.start < 1

    def prepare(self, p: Problem) -> SWA:
        inner = self.inner.prepare(p)
        if self.cycle > 1:
            local = local_of(inner)
            if local is not None:
                refuse_rates(local, "cycle is a schedule over rounds; or set cycle=1")
            begins, cycle, lr2 = self.begins(p), self.cycle, self.lr2
            inner = map_local(
                inner, lambda local: replace(local, lr=Cycle(local.lr, begins, cycle, lr2))
            )
        return replace(self, inner=inner)

    def server(self, p: Problem) -> Averaged:
        return Averaged(inner=self.inner.server(p))

    def round(self, s: Averaged, cohort: Cohort) -> Averaged:
        i, begins = cohort.round, self.begins(cohort.problem)
        before = self.inner.model(s.inner)
        inner = self.inner.round(s.inner, cohort)
        if i < begins:
            return Averaged(inner=inner)
        average = before if s.average is None else s.average
        if not self.captures(i - begins):
            return Averaged(inner=inner, average=average, n=s.n)
        w = self.inner.model(inner)
        average = average + (w - average) / (s.n + 1) if s.n else w
        return Averaged(inner=inner, average=average, n=s.n + 1)

    def captures(self, since: int) -> bool:
        if self.official_offset:
            return since > 0 and since % self.cycle == 0
        return (since + 1) % self.cycle == 0

    def model(self, s: Averaged) -> Vec:
        return self.inner.model(s.inner) if s.average is None else s.average
