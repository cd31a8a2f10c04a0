"""DiLoCo: Douillard, Feng, Rusu, Chhaparia, Donchev et al., arXiv:2311.08105, 2023, Algorithm 1.

Constant inner rate, no warm-up and no clipping unless asked for; the paper's cosine schedule,
warm-up and clipping at 1 are options. Absent workers' moments do not age.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, Adam, InputError, Optimizer, OptState, Schedule, apply, refuse_rates


class Usual(float):
    """A default that can be told from the same number said on purpose."""


LR, DECAY = Usual(4e-4), Usual(0.1)  # of AdamW, unless the run or an option says otherwise


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]  # θ_i − θ


@state
class Server:
    w: Vec
    opt: OptState  # of the outer optimizer


@state
class Client:
    opt: OptState  # inner moments and step count: they persist and are never averaged


@dataclass(frozen=True)
class WarmCosine:
    """Linear warm-up, then constant, or a cosine down to 0 at `total` inner steps."""

    lr: float
    warmup: int
    decays: bool
    total: int = 0  # known at the client

    def at(self, round: int, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if not self.decays:
            return self.lr
        share = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * share))


def with_total(lr: float | Schedule, total: int) -> float | Schedule:
    """The schedule told of the client's number of inner steps, also inside another schedule."""
    if isinstance(lr, WarmCosine):
        return replace(lr, total=total)
    inner = getattr(lr, "lr", None)
    if inner is None or isinstance(inner, float):
        return lr
    return replace(lr, lr=with_total(inner, total))  # type: ignore[type-var]


@dataclass(frozen=True)
class DiLoCo(Algorithm[Server, Client]):
    """Long runs of an inner optimizer that remembers, few outer steps with Nesterov momentum."""

    local: Local = Local()
    outer: Optimizer = SGD(lr=0.7, momentum=0.9, nesterov=True)
    weights: Weights = "uniform"

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=self.outer.init(p.w0))

    def client(self, p: Problem) -> Client:
        return Client(opt=self.local.optimizer.init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        w, opt = apply(self.outer, s.w, -up.delta, s.opt)
        return Server(w=w, opt=opt)

    def counts_on_rounds(self) -> bool:
        return with_total(self.local.lr, 1) != self.local.lr

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        local = self.local
        visits = max(1, round(site.problem.rounds * site.problem.participation))
        local = replace(local, lr=with_total(local.lr, visits * site.steps(local)))
        run = site.train(local, down.w, opt=mine.opt)
        return Up(delta=run.delta), Client(opt=run.opt)


def diloco(
    local: Local = Local(lr=LR, optimizer=SGD(weight_decay=DECAY)),
    inner: Literal["adamw", "sgd"] = "adamw",
    inner_lr: Annotated[float, "> 0"] | None = None,
    inner_wd: Annotated[float, ">= 0"] | None = None,
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9,
    beta2: Annotated[float, ">= 0", "< 1"] = 0.95,
    eps: Annotated[float, "> 0"] = 1e-8,
    warmup: Annotated[int, ">= 0"] = 0,
    schedule: Literal["constant", "cosine"] = "constant",
    clip: Annotated[float, "> 0"] | None = None,
    server_lr: Annotated[float, "> 0"] = 0.7,
    server_momentum: Annotated[float, ">= 0", "< 1"] = 0.9,
    weights: Weights = "uniform",
) -> DiLoCo:
    """Clients run AdamW for long, keeping its moments; the server makes Nesterov steps.

    inner: optimizer of the clients
    inner_lr: its rate (4e-4); the run's lr says the same
    inner_wd: its weight decay (0.1), decoupled for AdamW; the run's weight_decay says the same
    beta1: decay of AdamW's first moment
    beta2: decay of AdamW's second moment
    eps: AdamW's ε
    warmup: inner steps of linear warm-up
    schedule: inner rate over all inner steps of a client
    clip: largest norm of an inner gradient
    server_lr: rate of the outer step
    server_momentum: Nesterov momentum of the outer step
    """
    base = local.lr if isinstance(local.lr, float) else getattr(local.lr, "lr", 0.0)
    if inner_lr is not None and not isinstance(base, Usual):
        raise InputError(f"diloco: lr={base} and inner_lr={inner_lr} say the same: keep one")
    known = local.optimizer
    if not isinstance(known, SGD):
        raise InputError("diloco: optimizer is refused: clients keep an inner one; set inner")
    refuse_rates(local, "its inner rate has a schedule of its own (warmup, schedule)")
    if inner_wd is not None and not isinstance(known.weight_decay, Usual):
        raise InputError("diloco: weight_decay and inner_wd say the same: keep one")
    if known.momentum:
        raise InputError("diloco: momentum is refused: the inner optimizer has its own; set 0")
    if (warmup or schedule == "cosine") and not isinstance(local.lr, float):
        raise InputError("diloco: a schedule over rounds and one over inner steps: keep one")
    lr = float(base if inner_lr is None else inner_lr)
    decay = float(known.weight_decay if inner_wd is None else inner_wd)
    if inner == "adamw":
        optimizer: Optimizer = Adam(1.0, beta1, beta2, eps, 0.0, True, decay)
    else:
        optimizer = replace(known, weight_decay=decay)
    changed = replace(local, optimizer=optimizer, clip=local.clip if clip is None else clip)
    if warmup or schedule == "cosine":
        changed = replace(changed, lr=WarmCosine(lr, warmup, schedule == "cosine"))
    elif isinstance(local.lr, float):
        changed = replace(changed, lr=lr)
    else:
        changed = replace(changed, lr=replace(local.lr, lr=lr))  # type: ignore[type-var]
    outer = SGD(lr=server_lr, momentum=server_momentum, nesterov=server_momentum > 0)
    return DiLoCo(local=changed, outer=outer, weights=weights)
