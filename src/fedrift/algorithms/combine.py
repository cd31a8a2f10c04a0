"""SWA: Caldarola, Caputo, Ciccone, ECCV 2022, after Izmailov et al., UAI 2018; WiMA: Caldarola,
Caputo, Ciccone, ICCV Workshops 2023; and algorithms with another gradient rule or server optimizer.

A model is captured at the end of a rate cycle, when the rate is lowest; the authors' code
captures after its first, highest-rate round (`official_offset`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from fedrift.algorithm import (
    Algorithm,
    Cohort,
    Redefine,
    Sampling,
    local_of,
    map_local,
    parts,
)
from fedrift.errors import InputError
from fedrift.flat import Vec
from fedrift.local import Local
from fedrift.messages import state
from fedrift.optim import Adam, Schedule, rate
from fedrift.pieces import ASAM, SAM, Gradient, Plain
from fedrift.problem import Problem


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


class Wrapper(Algorithm[Any, Any]):
    """All but the round and the model that is shown is the inner algorithm's."""

    inner: Algorithm[Any, Any]

    def check(self, p: Problem) -> None:
        self.inner.check(p)
        if p.moving:
            raise InputError(
                "swa, wima: averaged weights do not fit the running statistics of batch "
                "normalisation; use a model with group normalisation or none"
            )

    def sampling(self, s: Any) -> Sampling:
        return self.inner.sampling(s.inner)

    def allowed(self, s: Any) -> Tensor | None:
        return self.inner.allowed(s.inner)

    def temperature(self, s: Any) -> float:
        return self.inner.temperature(s.inner)

    def local_now(self, s: Any) -> Local | None:
        return self.inner.local_now(s.inner)

    def frozen(self, s: Any, p: Problem) -> Mapping[str, Tensor]:
        return self.inner.frozen(s.inner, p)

    def log(self, s: Any) -> Mapping[str, float]:
        return self.inner.log(s.inner)

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        return self.inner.adapt(p, redefine)

    def exhausted(self, s: Any, p: Problem) -> Any:
        return replace(s, inner=self.inner.exhausted(s.inner, p))


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

    def prepare(self, p: Problem) -> SWA:
        inner = self.inner.prepare(p)
        if self.cycle > 1:
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


@state
class Recent:
    inner: Any
    ring: tuple[Vec, ...] = ()  # the last W global models; w⁰ is not one of them


@dataclass(frozen=True)
class WiMA(Wrapper):
    """Evaluates the mean of the last global models; the training itself goes on.

    window: how many models
    """

    inner: Algorithm[Any, Any]
    window: Annotated[int, ">= 1"] = 10

    def prepare(self, p: Problem) -> WiMA:
        return replace(self, inner=self.inner.prepare(p))

    def server(self, p: Problem) -> Recent:
        return Recent(inner=self.inner.server(p))

    def round(self, s: Recent, cohort: Cohort) -> Recent:
        inner = self.inner.round(s.inner, cohort)
        return Recent(inner=inner, ring=(*s.ring, self.inner.model(inner))[-self.window :])

    def model(self, s: Recent) -> Vec:
        if not s.ring:
            return self.inner.model(s.inner)
        total = torch.zeros_like(s.ring[0], dtype=torch.float64)
        for w in s.ring:
            total.add_(w)
        return (total / len(s.ring)).to(s.ring[0].dtype)


def with_sam(
    inner: Algorithm[Any, Any], rho: Annotated[float, ">= 0"] = 0.05
) -> Algorithm[Any, Any]:
    """Any algorithm with sharpness-aware local steps: `sam(scaffold):rho=0.05`.

    rho: length of the ascent
    """
    return _with_rule(inner, SAM(rho))


def with_asam(
    inner: Algorithm[Any, Any],
    rho: Annotated[float, ">= 0"] = 0.5,
    eta_a: Annotated[float, ">= 0"] = 0.2,
) -> Algorithm[Any, Any]:
    """Any algorithm with adaptive sharpness-aware local steps.

    rho: length of the ascent in scaled coordinates
    eta_a: added to |w|, so that small weights move too
    """
    return _with_rule(inner, ASAM(rho, eta_a))


def _with_rule(inner: Algorithm[Any, Any], rule: Gradient) -> Algorithm[Any, Any]:
    for _, node in parts(inner):
        local = getattr(node, "local", None)
        plain = isinstance(local, Local) and isinstance(local.gradient, Plain)
        if isinstance(local, Local) and not (plain and node.takes_gradient_rule):
            kind = type(node).__name__
            raise InputError(f"sam, asam: {kind} already says where its gradient is taken")
    if local_of(inner) is None:
        raise InputError("sam, asam: there are no local steps to change")
    return map_local(inner, lambda local: replace(local, gradient=rule))


def with_server_adam(
    inner: Algorithm[Any, Any],
    server_lr: Annotated[float, "> 0"] = 0.1,
    tau: Annotated[float, "> 0"] = 1e-3,
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9,
    beta2: Annotated[float, ">= 0", "< 1"] = 0.99,
) -> Algorithm[Any, Any]:
    """Any algorithm with an outer optimizer, with Adam in its place: `serveradam(scaffold)`.

    server_lr: rate of the server's step
    tau: adaptivity, outside the root
    beta1: decay of the mean update
    beta2: decay of its square
    """
    if "outer" not in {f.name for f in fields(inner)}:  # type: ignore[arg-type]
        kind = type(inner).__name__
        raise InputError(f"serveradam: {kind} has a server rule of its own, no outer optimizer")
    return replace(inner, outer=Adam(server_lr, beta1, beta2, tau, tau**2))  # type: ignore[type-var]
