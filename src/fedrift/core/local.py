"""Local training: the minibatches, what a client is asked to do, and the only loop that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedrift.core.flat import Batch, Layout, Vec, add_each, count, norm
from fedrift.core.flat_model import FlatModel, Forward, Objective
from fedrift.core.optim import SGD, Optimizer, OptState, Schedule, rates_of
from fedrift.core.pieces import Addition, Correction, Gradient, GradientAt, Plain, Step
from fedrift.core.training_report import Trace
from fedrift.rng import generator


def steps_per_epoch(n: int, batch_size: int | None, whole_pairs: bool = False) -> int:
    """Number of minibatches in one pass; the last may be short, none is dropped."""
    if n == 0 or batch_size is None or batch_size >= n:
        return min(n, 1)
    lonely = whole_pairs and n % batch_size == 1 and batch_size > 1
    return -(-n // batch_size) - lonely


def batches(
    n: int,
    batch_size: int | None,
    steps: int,
    rng: np.random.Generator,
    whole_pairs: bool = False,
) -> Iterator[np.ndarray | None]:
    """Positions of `steps` minibatches, pass after pass; None stands for the whole client.

    `whole_pairs` lets a last batch of one sample join the one before (batch normalisation
    cannot work on a single sample).
    """
    if batch_size is None or batch_size >= n:
        for _ in range(steps):
            yield None
        return
    done = 0
    while done < steps:
        order = rng.permutation(n)
        per_epoch = steps_per_epoch(n, batch_size, whole_pairs)
        for b in range(min(per_epoch, steps - done)):
            end = n if b == per_epoch - 1 else (b + 1) * batch_size
            yield order[b * batch_size : end]
        done += per_epoch


def table(
    n: int,
    batch_size: int | None,
    steps: int,
    order: Callable[[], np.random.Generator],
    room: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The same minibatches as rows of equal length, and how many samples of each row count.

    A short row is filled up with a sample that it holds already.
    """
    if batch_size is None or batch_size >= n:
        whole = np.minimum(np.arange(room), n - 1)
        return np.broadcast_to(whole, (steps, room)), np.full(steps, n)
    per_epoch = steps_per_epoch(n, batch_size)
    epochs, rng = -(-steps // per_epoch), order()
    if epochs == 1 and n == per_epoch * batch_size:  # the usual case
        return rng.permutation(n).reshape(-1, batch_size)[:steps], np.full(steps, batch_size)
    rows = np.empty((epochs, per_epoch * batch_size), dtype=np.int64)
    for row in rows:
        row[:n] = rng.permutation(n)
        row[n:] = row[n - 1]
    sizes = np.full((epochs, per_epoch), batch_size)
    sizes[:, -1] = n - (per_epoch - 1) * batch_size
    return rows.reshape(-1, batch_size)[:steps], sizes.reshape(-1)[:steps]


@dataclass(frozen=True)
class Draw:
    """An amount of work drawn uniformly from low…high for every client and round."""

    low: int  # the least, included
    high: int  # the most, included

    def at(self, seed: int, round: int, client: int) -> int:
        return int(generator(seed, "work", round, client).integers(self.low, self.high + 1))


Amount: TypeAlias = int | tuple[int, ...] | Draw
"""The same for everyone, one entry per client, or drawn."""


def amount_of(amount: Amount, seed: int, round: int, client: int) -> int:
    """The amount of one client in one round."""
    if isinstance(amount, int):
        return amount
    return amount[client] if isinstance(amount, tuple) else amount.at(seed, round, client)


@dataclass(frozen=True)
class Local:
    """The local step: gradient rule → corrections → clip → optimizer (decay inside) → w."""

    lr: float | Schedule = 0.1
    """Learning rate, or a rule that gives it over the rounds."""
    epochs: Amount | None = 1
    """Passes over the client's data in a visit; not asked if `steps` are given."""
    steps: Amount | None = None
    """Minibatches of a visit, however much data the client has."""
    batch_size: int | None = 64
    """None: the whole client."""
    optimizer: Optimizer = SGD()
    """Makes a step of the corrected gradient."""
    gradient: Gradient = Plain()
    """Where the gradient is taken."""
    correct: tuple[Correction, ...] = ()
    """What is added to every gradient, before the algorithm's own."""
    clip: float | None = None
    """Longest corrected gradient; longer ones are shortened to it."""

    def __post_init__(self) -> None:
        for name in ("epochs", "steps"):  # a list is welcome, but only a tuple stays as it is
            amount: object = getattr(self, name)
            if isinstance(amount, list):
                object.__setattr__(self, name, tuple(amount))  # type: ignore[reportUnknownArgumentType]

    def steps_for(self, n: int, seed: int, round: int, client: int, pairs: bool = False) -> int:
        """How many local steps a client with n samples makes in a round."""
        if n == 0:
            return 0
        if self.steps is not None:
            return amount_of(self.steps, seed, round, client)
        epochs = amount_of(1 if self.epochs is None else self.epochs, seed, round, client)
        return epochs * steps_per_epoch(n, self.batch_size, pairs)

    @property
    def has_memory(self) -> bool:
        """A step's size depends on earlier steps: momentum or an adaptive optimizer."""
        return not (isinstance(self.optimizer, SGD) and self.optimizer.momentum == 0.0)


@dataclass(frozen=True)
class Run:
    """What came out of local training."""

    w: Vec
    """The weights it ended with."""
    delta: Vec
    """w minus the weights it began with."""
    steps: int  # how many were made
    lr: float
    """Rate of the first step."""
    span: float
    """Σ of the rates of the steps: lr × steps when the rate is constant."""
    opt: OptState  # the optimizer's state after the last step
    mean_grad: Vec | None
    """Mean of the raw gradients, before corrections; only if asked for."""


class Buffers:
    """What the `Step` of one client and that of many have in common."""

    def __init__(self, layout: Layout, w: Vec, start: Vec) -> None:
        self.layout, self.w, self.start = layout, w, start
        self.k = self.steps = 0
        self.lr = 0.0
        self._used = 0
        self._pool: list[Vec] = []

    def ahead(self, rho: float, direction: Vec, length: Tensor | None = None) -> Vec:
        length = norm(direction) if length is None else length
        scale = (rho / length.clamp_min(1e-12)).to(direction.dtype)  # no number: a GPU would wait
        return torch.addcmul(self.w, direction, scale, out=self.buffer())

    def buffer(self) -> Vec:
        if self._used == len(self._pool):
            self._pool.append(self.new())
        self._used += 1
        return self._pool[self._used - 1]

    def new(self) -> Vec:
        return torch.empty_like(self.w)

    def is_bias(self) -> Tensor:
        return is_bias(self.layout, self.w.device)


class LocalStep(Buffers):
    """The `Step` that pieces see; one object serves all steps of all visits of a model."""

    def __init__(self, model: FlatModel) -> None:
        super().__init__(model.layout, model.w, torch.empty_like(model.w))
        self.model = model
        self.examples = self.forwards = 0
        self.dropout_seed = 0
        self.trace: Trace | None = None
        """Sees the minibatches of the present training."""
        self._batch: Batch
        self._asked = 0

    def begin(self, k: int, lr: float, batch: Batch) -> None:
        """Turn to the next minibatch; all buffers are free again."""
        self.k, self.lr, self._batch = k, lr, batch
        self._asked = self._used = 0
        if self.trace is not None:
            self.trace.turn(k)
            self.model.watch = self.trace.add

    @property
    def batch(self) -> Batch:
        return self._batch

    def seed(self) -> None:
        """Same minibatch, same dropout mask: every forward pass of a step starts from its seed."""
        self._draw()
        self.examples += count(self._batch[0])

    def _draw(self) -> None:
        torch.default_generator.manual_seed(self.dropout_seed + self.k)
        if self.w.is_cuda:
            torch.cuda.manual_seed(self.dropout_seed + self.k)

    def forward(self, at: Vec, statistics: Sequence[Tensor] | None = None) -> Forward:
        self._draw()
        self.forwards += count(self._batch[0])
        return self.model.forward_at(at, self._batch, statistics)

    def grad(self, at: Vec, objective: Objective | None = None) -> Vec:
        statistics = self._begin_pass()
        g = self.model.grad_at(at, self._batch, self.buffer(), objective)
        self._end_pass(statistics)
        return g

    def gradients(self, at: Vec) -> Sequence[Tensor]:
        """The same, one tensor for each parameter; those of the client's own come last."""
        statistics = self._begin_pass()
        made = self.model.gradients_at(at, self._batch)
        self._end_pass(statistics)
        return made

    def _begin_pass(self) -> tuple[Tensor, ...]:
        self.seed()
        statistics = self.model.all_buffers() if self._asked else ()
        self._asked += 1
        return statistics

    def _end_pass(self, statistics: tuple[Tensor, ...]) -> None:
        self.model.watch = None  # only the first pass is reported
        if statistics:  # only the first pass of a step moves running statistics
            self.model.load_all_buffers(statistics)

    def move(self, gradients: Sequence[Tensor], by: float) -> None:
        """w += by·gradients, parameter by parameter."""
        add_each(self.model.parameters, gradients, by)


class MovingStep(Step, Protocol):
    """A step that moves w by a gradient as it comes, one tensor for each parameter."""

    def gradients(self, at: Vec) -> Sequence[Tensor]: ...
    def move(self, gradients: Sequence[Tensor], by: float) -> None: ...


@dataclass(frozen=True)
class PlainStep:
    """w −= lr·(corrected gradient), part by part: no vector is made of their sum.

    The formula is that of `local_train`; a correction of 0 changes no bit.
    """

    rule: GradientAt
    additions: Sequence[tuple[Addition, float]]
    """Each with its share of the step; the one that looks at w comes before w moves."""
    share: float
    """Of the gradient."""

    @staticmethod
    def of(
        local: Local, rule: Gradient, corrections: Sequence[Correction], has_own: bool = False
    ) -> PlainStep | None:
        """None if the gradient is needed as one vector. `has_own`: some parameters stay at the
        client and follow the last gradient of the rule, uncorrected."""
        optimizer = local.optimizer
        if type(optimizer) is not SGD or not optimizer.is_plain or local.clip is not None:
            return None
        if not isinstance(rule, GradientAt) or type(rule).__call__ is not GradientAt.__call__:
            return None
        additions, share = list[tuple[Addition, float]](), 1.0
        for piece in reversed(corrections):
            if not isinstance(piece, Addition) or type(piece).__call__ is not Addition.__call__:
                return None
            additions.append((piece, share))
            share *= piece.share
        additions.sort(key=lambda each: each[0].is_fixed)
        if any(not piece.is_fixed for piece, _ in additions[1:]):
            return None
        if has_own and (additions or not isinstance(rule, Plain)):
            return None
        return PlainStep(rule, additions, share)

    def __call__(self, step: MovingStep) -> None:
        gradients = step.gradients(self.rule.point(step))
        for addition, share in self.additions:
            addition.move(step, -step.lr * share)
        step.move(gradients, -step.lr * self.share)


@lru_cache(maxsize=8)
def is_bias(layout: Layout, device: torch.device) -> Tensor:
    """True for the elements of parameters whose name does not contain "weight"."""
    flags = torch.tensor(["weight" not in name for name in layout.names], dtype=torch.bool)
    return flags.repeat_interleave(torch.tensor(layout.sizes, dtype=torch.long)).to(device)


def clip_(d: Vec, limit: float) -> Vec:
    """d · min(1, limit/‖d‖) in place; each row of a stack by its own norm."""
    return d.mul_(_shortened(norm(d), limit, d))


def _shortened(length: Tensor, limit: float, like: Vec) -> Tensor:
    return (limit / length.clamp_min(1e-12)).clamp_max(1.0).to(like.dtype)


Trains: TypeAlias = Literal["all", "shared", "own"]
"""What a local step moves: everything, or only what travels, or only what stays at the client."""


class _Own:
    """The parameters that stay at the client. They follow the last gradient that the rule has
    taken, uncorrected, with the local optimizer, which remembers nothing of earlier visits."""

    def __init__(self, model: FlatModel, local: Local) -> None:
        self._model, self._local = model, local
        self._memory = local.optimizer.init(model.own)
        self._d = torch.empty_like(model.own)

    def look(self) -> None:
        """Take the gradient, before a correction asks for others."""
        self._d.copy_(self._model.own_g)

    def clip_(self, d: Vec, limit: float, is_alone: bool) -> None:
        """Both parts by the norm of the whole; this one by its own if the other is not trained."""
        if is_alone:
            clip_(self._d, limit)
            return
        length = (norm(d).square() + norm(self._d).square()).sqrt()
        for part in (d, self._d):
            part.mul_(_shortened(length, limit, part))

    def step(self, lr: float) -> None:
        own = self._model.own
        own.add_(self._local.optimizer.update_(self._d, self._memory, own), alpha=-lr)


@torch.no_grad()
def local_train(
    step: LocalStep,
    local: Local,
    w: Vec,
    batches: Iterable[Batch],
    *,
    steps: int,
    round: int,
    correct: Sequence[Correction] = (),
    outside: Sequence[Correction] = (),
    gradient: Gradient | None = None,
    opt: OptState | None = None,
    freeze: bool = False,
    mean_grad: bool = False,
    trains: Trains = "all",
) -> Run:
    """Train from w on minibatches. `outside` corrects the direction after the optimizer."""
    model, optimizer = step.model, local.optimizer
    rule = gradient if gradient is not None else local.gradient
    corrections = (*local.correct, *correct)
    model.w.copy_(w)
    step.start.copy_(w)
    step.steps = steps
    memory = opt.copy() if opt is not None else optimizer.init(w)
    done = int(memory.count)
    rates = rates_of(local.lr, round, done, steps)
    own = _Own(model, local) if len(model.own) and trains != "shared" else None
    asks_more = outside or mean_grad or trains != "all"
    plain = None if asks_more else PlainStep.of(local, rule, corrections, own is not None)
    if plain is not None:
        for k, (lr, batch) in enumerate(zip(rates, batches, strict=True)):
            step.begin(k, lr, batch)
            plain(step)
        memory.count.fill_(done if freeze else done + steps)
        return _run(step, w, rates, memory)
    total = torch.zeros_like(w, dtype=torch.float64) if mean_grad else None
    for k, (lr, batch) in enumerate(zip(rates, batches, strict=True)):
        step.begin(k, lr, batch)
        d = rule(step)
        if own is not None:
            own.look()
        if total is not None:
            total.add_(d)
        for correction in corrections:
            correction(d, step)
        if local.clip is not None:
            clip_(d, local.clip) if own is None else own.clip_(d, local.clip, trains == "own")
        if own is not None:
            own.step(lr)
        if trains == "own":
            continue
        direction = optimizer.update_(d, memory, model.w, freeze)
        if outside:
            direction = step.buffer().copy_(direction)  # the momentum buffer stays as it is
            for correction in outside:
                correction(direction, step)
        model.w.add_(direction, alpha=-lr)
    memory.count.fill_(done if freeze else done + steps)
    mean = None if total is None else (total / max(1, steps)).to(w.dtype)
    return _run(step, w, rates, memory, mean)


def span_of(rates: Sequence[float]) -> float:
    """Σ of the rates; lr × steps, exactly, when they are equal."""
    return rates[0] * len(rates) if len(set(rates)) == 1 else sum(rates)


def _run(
    step: LocalStep, w: Vec, rates: Sequence[float], opt: OptState, mean: Vec | None = None
) -> Run:
    now, lr = step.w, rates[0] if rates else 0.0
    return Run(now.clone(), now - w, len(rates), lr, span_of(rates), opt, mean)
