"""Optimizers on flat vectors, one formula each, for clients and server alike; rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedrift.core.flat import Vec
from fedrift.core.messages import shaped, state

SMALLEST = 1e-30  # rate that a schedule comes down to


@state
class OptState:
    """What an optimizer remembers: its vectors, and how many local steps it has made."""

    slots: tuple[Vec, ...] = ()  # one vector per moment
    count: Tensor = shaped(torch.int64, lambda algorithm, problem: ())  # steps made

    def copy(self) -> OptState:
        return OptState(slots=tuple(s.clone() for s in self.slots), count=self.count.clone())


@runtime_checkable
class Optimizer(Protocol):
    """`update_` turns g into the step direction, in place, and advances s unless frozen.

    `lr` is the rate of the server's step; a client's rate is in its `Local`.
    """

    @property
    def lr(self) -> float: ...
    def init(self, w: Vec) -> OptState: ...
    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec: ...


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def _remembered(slot: Vec, freeze: bool) -> Vec:
    return slot.clone() if freeze else slot


@dataclass(frozen=True)
class SGD:
    """v ← momentum·v + g + weight_decay·w; the direction is v, or g + momentum·v (Nesterov)."""

    lr: float = 1.0  # of the server's step
    momentum: float = 0.0  # of what v was
    nesterov: bool = False  # look ahead by it
    weight_decay: float = 0.0  # times w is added to g

    @property
    def is_plain(self) -> bool:
        """The direction is the gradient itself."""
        return self.momentum == 0.0 and self.weight_decay == 0.0

    def init(self, w: Vec) -> OptState:
        return OptState(slots=(torch.zeros_like(w),) if self.momentum else (), count=_zero())

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)
        if not self.momentum:
            return g
        v = _remembered(s.slots[0], freeze).mul_(self.momentum).add_(g)
        return g.add_(v, alpha=self.momentum) if self.nesterov else v


@dataclass(frozen=True)
class Momentum:
    """Mime's base optimizer: U = g + βs and V likewise, or both with (1−β)g (`ema`).

    Weight decay is added once, after U, and never enters the state.
    """

    beta: float  # of what s was
    ema: bool = True  # weigh g with 1−β
    lr: float = 1.0  # of the server's step
    weight_decay: float = 0.0  # times w is added to U

    def init(self, w: Vec) -> OptState:
        return OptState(slots=(torch.zeros_like(w),), count=_zero())

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        if self.ema:
            g.mul_(1.0 - self.beta)
        g.add_(s.slots[0], alpha=self.beta)
        if not freeze:
            s.slots[0].copy_(g)
        return g.add_(w, alpha=self.weight_decay) if self.weight_decay else g


@dataclass(frozen=True)
class Adam:
    """m, v averages of g and g²; direction m/(√v + eps) + weight_decay·w (decoupled, as AdamW)."""

    lr: float = 1.0  # of the server's step
    beta1: float = 0.9  # memory of m
    beta2: float = 0.99  # memory of v
    eps: float = 1e-3  # keeps √v from 0
    v_init: float = 0.0  # every entry of v at first
    bias_correction: bool = False  # divide m and v by 1−β^t, as Adam's paper does
    weight_decay: float = 0.0  # times w is added to the direction
    yogi: bool = False  # v moves towards g² by its sign

    def init(self, w: Vec) -> OptState:
        slots = (torch.zeros_like(w), torch.full_like(w, self.v_init))
        return OptState(slots=slots, count=_zero())

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        m, v = (_remembered(slot, freeze) for slot in s.slots)
        square = g * g
        m.mul_(self.beta1).add_(g, alpha=1.0 - self.beta1)
        if self.yogi:  # v moves by (1−β2)g² whatever the distance between v and g²
            v.sub_((v - square).sign_().mul_(square), alpha=1.0 - self.beta2)
        else:
            v.mul_(self.beta2).add_(square, alpha=1.0 - self.beta2)
        step = int(s.count) + 1
        if not freeze:
            s.count.fill_(step)
        m_scale = 1.0 / (1.0 - self.beta1**step) if self.bias_correction else 1.0
        v_scale = 1.0 / (1.0 - self.beta2**step) if self.bias_correction else 1.0
        torch.mul(v, v_scale, out=square).sqrt_().add_(self.eps)
        torch.div(m, square, out=g).mul_(m_scale)
        return g.add_(w, alpha=self.weight_decay) if self.weight_decay else g


@dataclass(frozen=True)
class Adagrad:
    """v ← v + g²; direction g/(√v + eps)."""

    lr: float = 1.0  # of the server's step
    eps: float = 1e-3  # keeps √v from 0
    v_init: float = 0.0  # every entry of v at first

    def init(self, w: Vec) -> OptState:
        return OptState(slots=(torch.full_like(w, self.v_init),), count=_zero())

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        v = _remembered(s.slots[0], freeze).addcmul_(g, g)
        return g.div_(v.sqrt().add_(self.eps))


@dataclass(frozen=True)
class RMSprop:
    """v average of g² (its variance if `centered`); the direction is g/(√v + eps), or a momentum
    of it."""

    lr: float = 1.0
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def init(self, w: Vec) -> OptState:
        number = 1 + self.centered + (self.momentum > 0)
        return OptState(slots=tuple(torch.zeros_like(w) for _ in range(number)), count=_zero())

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        v, *more = (_remembered(slot, freeze) for slot in s.slots)
        v.mul_(self.alpha).addcmul_(g, g, value=1.0 - self.alpha)
        spread = v
        if self.centered:
            mean = more[0].lerp_(g, 1.0 - self.alpha)
            spread = torch.addcmul(v, mean, mean, value=-1.0)
        g.div_(spread.sqrt().add_(self.eps))
        return more[-1].mul_(self.momentum).add_(g) if self.momentum else g


@dataclass(frozen=True)
class Decayed:
    """An optimizer of g + weight_decay·w: L2 regularisation, not AdamW's decay."""

    of: Optimizer
    weight_decay: float

    @property
    def lr(self) -> float:
        return self.of.lr

    def init(self, w: Vec) -> OptState:
        return self.of.init(w)

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        return self.of.update_(g.add_(w, alpha=self.weight_decay), s, w, freeze)


# torch's optimizers by torch's names, with its options and defaults; `lr` is its default rate.

Betas = tuple[float, float]


def adam(betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0) -> Optimizer:
    return _decayed(Adam(1e-3, *betas, eps, bias_correction=True), weight_decay)


def adamw(betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01) -> Optimizer:
    return Adam(1e-3, *betas, eps, bias_correction=True, weight_decay=weight_decay)


def adagrad(
    eps: float = 1e-10, initial_accumulator_value: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    return _decayed(Adagrad(1e-2, eps, initial_accumulator_value), weight_decay)


def rmsprop(
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
) -> Optimizer:
    return _decayed(RMSprop(1e-2, alpha, eps, momentum, centered), weight_decay)


def _decayed(optimizer: Optimizer, weight_decay: float) -> Optimizer:
    return Decayed(optimizer, weight_decay) if weight_decay else optimizer


ADAPTIVE: dict[str, Callable[..., Optimizer]] = {
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
}


def apply(opt: Optimizer, w: Vec, g: Vec, s: OptState) -> tuple[Vec, OptState]:
    """One server step: w − lr·direction and the new state; nothing is changed in place."""
    new = s.copy()
    direction = opt.update_(g.clone(), new, w)
    return torch.add(w, direction, alpha=-opt.lr), new


def advance(opt: Optimizer, g: Vec, s: OptState, w: Vec) -> OptState:
    """The state after seeing g, without a step."""
    new = s.copy()
    opt.update_(g.clone(), new, w)
    return new


class Schedule(Protocol):
    """A client rate that depends on the round (from 0) and on the optimizer's step count."""

    def at(self, round: int, step: int) -> float: ...


@dataclass(frozen=True)
class Exponential:
    """lr·factor^round."""

    lr: float  # of the first round
    factor: float  # from a round to the next

    def at(self, round: int, step: int) -> float:
        return self.lr * self.factor**round


@dataclass(frozen=True)
class Staircase:
    """lr·factor^(round // every)."""

    lr: float  # of the first rounds
    every: int  # rounds with one rate
    factor: float  # from one rate to the next

    def at(self, round: int, step: int) -> float:
        return self.lr * self.factor ** (round // self.every)


@dataclass(frozen=True)
class Cosine:
    """From lr towards lr·floor over `total` rounds."""

    lr: float  # of the first round
    total: int  # rounds until it is at its least
    floor: float = 0.0  # the least, as a share of lr

    def at(self, round: int, step: int) -> float:
        share = min(1.0, round / self.total)
        return self.lr * (self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * share)))


@dataclass(frozen=True)
class PerStep:
    """A schedule over the local steps of a visit, anew in each, instead of over rounds."""

    shape: Exponential | Staircase | Cosine

    def at(self, round: int, step: int) -> float:
        return self.shape.at(step, step)

    def over(self, steps: int) -> PerStep:
        """For a visit of so many steps: a cosine comes to its end with them."""
        is_cosine = isinstance(self.shape, Cosine)
        return PerStep(replace(self.shape, total=steps)) if is_cosine else self


def rate(lr: float | Schedule, round: int, step: int = 0) -> float:
    """The client rate of a round; a schedule never reaches 0, since formulas divide by the rate."""
    return float(lr) if isinstance(lr, (int, float)) else max(lr.at(round, step), SMALLEST)


def rates_of(lr: float | Schedule, round: int, done: int, steps: int) -> list[float]:
    """The client rates of a visit, whose optimizer has made some steps before."""
    if isinstance(lr, (int, float)):
        return [float(lr)] * steps
    if isinstance(lr, PerStep):
        lr, done = lr.over(steps), 0
    return [rate(lr, round, done + k) for k in range(steps)]
