"""What code running at a client can do: train, gradient, features. The only door to data.

A visit that trains puts what it wants into a `Request`, so that requests of one kind can be trained
together, as the rows of a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.core import alignment
from fedrift.core.alignment import empty_rows, settled
from fedrift.core.flat import Batch, Vec, count
from fedrift.core.local import Local, LocalStep, Run, Trains, batches, local_train, span_of
from fedrift.core.optim import SGD, Adagrad, Adam, Decayed, Momentum, OptState, RMSprop, rates_of
from fedrift.core.pieces import Correction, Gradient
from fedrift.core.problem import Problem
from fedrift.core.training_report import Report, Trace, joined_reports
from fedrift.rng import generator, torch_seed

USUAL = "order"
"""The purpose of the training whose result travels; it names the stream of its minibatches."""
FEATURE_CHUNK = 256  # samples whose features or outputs are computed at once

ELEMENTWISE = (SGD, Momentum, Adam, Adagrad, RMSprop)
"""Optimizers whose formula is the same for every element, so for rows as well."""

Augment = Callable[[Any, Any, np.random.Generator, np.random.Generator], tuple[Any, Any]]


class ClientData(Protocol):
    """One client's samples: how many, and any of them by position (None: all)."""

    def __len__(self) -> int: ...
    def batch(self, positions: np.ndarray | None) -> Batch: ...


@dataclass
class Work:
    """What a visit cost: examples differentiated once, and examples only passed forward."""

    gradients: int = 0
    forwards: int = 0
    steps: int = 0
    spent: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds by kind, if they are measured."""

    def add(self, other: Work) -> None:
        self.gradients += other.gradients
        self.forwards += other.forwards
        self.steps += other.steps
        for kind, seconds in other.spent.items():
            self.spent[kind] = self.spent.get(kind, 0.0) + seconds


class Site:
    """One client in one round. Its random streams depend on (seed, purpose, round, client) only.

    `round` counts from 0, as schedules and streams do; reports, folders and charts, which people
    read, count from 1. `client` is its number, `n` how many samples it has, `problem` the model,
    loss and population, `rng` a generator for draws of the algorithm's own.
    """

    def __init__(
        self,
        problem: Problem,
        data: ClientData,
        *,
        client: int,
        round: int,
        seed: int,
        augment: Augment | None = None,
        part: float = 1.0,
        meet: TrainTogether | None = None,
        streams: str = "",
    ) -> None:
        """`meet` is where the visit may be trained together with others; `streams` sets its random
        numbers apart from those of other visits in the round."""
        self.problem, self.client, self.round = problem, client, round
        self.n = len(data)
        self.work = Work()
        self._reports: list[Report] = []
        self.has_trained = False
        self._data, self._seed, self._augment = data, seed, augment
        self._part, self._meet, self._streams = part, meet, streams
        self._pairs = problem.model.has_batch_norm

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator for the algorithm's own draws."""
        return self._stream("site")

    def _stream(self, purpose: str) -> np.random.Generator:
        return generator(self._seed, self._streams + purpose, self.round, self.client)

    def steps(self, local: Local) -> int:
        """Local steps this visit would make; at least one of a client that comes late."""
        steps = local.steps_for(self.n, self._seed, self.round, self.client, self._pairs)
        return steps if self._part >= 1.0 else min(steps, max(1, int(self._part * steps)))

    def span(self, local: Local) -> float:
        """Rate × steps of the visit, known before it trains."""
        return span_of(rates_of(local.lr, self.round, 0, self.steps(local)))

    def train(
        self,
        local: Local,
        w: Vec,
        *correct: Correction,
        outside: tuple[Correction, ...] = (),
        gradient: Gradient | None = None,
        opt: OptState | None = None,
        freeze: bool = False,
        mean_grad: bool = False,
        purpose: str = USUAL,
        trains: Trains = "all",
    ) -> Run:
        """Local training from w. A method that trains twice in a round names its second purpose.

        - `correct`: what is added to every gradient, after that of `local`.
        - `outside`: the same, but added to what the optimizer made of it.
        - `gradient`: where the gradient is taken, in place of what `local` says.
        - `opt`: the optimizer's memory to begin with, such as that of the last visit; an empty one
          unless given. `freeze=True` leaves it as it came.
        - `mean_grad=True`: `Run.mean_grad` is the mean of the raw gradients.
        - `trains`: where a part of the model stays at the client, `"own"` trains that part alone,
          `"shared"` the rest alone.
        """
        steps = self.steps(local)
        if self._meet is not None and self._augment is None and trains != "own":
            done = 0 if opt is None else int(opt.count)
            rates = rates_of(local.lr, self.round, done, steps)
            rule, order = gradient or local.gradient, partial(self._stream, purpose)
            how = freeze, mean_grad, rates, self._data, order
            trained = self._stacked(Request(local, w, correct, outside, rule, opt, *how))
            if trained is not None:
                self.work.gradients += trained.examples
                self.work.steps += steps
                self.has_trained = True
                if purpose == USUAL:
                    self._reports.append(trained.training)
                return trained.run
        step = self._ready("dropout" if purpose == USUAL else f"dropout {purpose}")
        before = self._still(trains)
        with self._watched(step, purpose == USUAL):
            run = local_train(
                step,
                local,
                w,
                self._batches(local.batch_size, steps, purpose),
                steps=steps,
                round=self.round,
                correct=correct,
                outside=outside,
                gradient=gradient,
                opt=opt,
                freeze=freeze,
                mean_grad=mean_grad,
                trains=trains,
            )
        before()
        self.work.add(Work(gradients=step.examples, forwards=step.forwards, steps=steps))
        self.has_trained = True
        return run

    @contextmanager
    def _watched(self, step: LocalStep, is_reported: bool = True) -> Generator[None]:
        """What is trained meanwhile is reported; not what a method trains for another purpose."""
        if not is_reported:
            yield
            return
        trace = step.trace = Trace(self.problem.classes)
        try:
            yield
        finally:
            step.trace = step.model.watch = None
        self._reports.append(trace.end)

    @property
    def training(self) -> Report:
        """Says what training reports, once it is over, of what it is that travels."""
        return partial(joined_reports, self._reports)

    def _still(self, trains: Trains) -> Callable[[], None]:
        """What puts the running statistics of the part back that is not trained."""
        model = self.problem.model
        if trains == "own" and model.moving:
            return partial(model.load_buffers, model.buffers())
        if trains == "shared" and model.own_moving:
            return partial(model.load_own_buffers, model.own_buffers())
        return lambda: None

    def statistics(self) -> tuple[Tensor, ...]:
        """Running statistics as training has left them here."""
        return self.problem.model.buffers()

    def load_statistics(self, values: Sequence[Tensor]) -> None:
        """Go on with others, such as those of the client's own model."""
        self.problem.model.load_buffers(values)

    def own(self) -> tuple[Vec, tuple[Tensor, ...]]:
        """Parameters and running statistics that stay here, as training has left them."""
        model = self.problem.model
        return model.own.clone(), model.own_buffers()

    def load_own(self, own: Vec, statistics: Sequence[Tensor]) -> None:
        """Put them into the model."""
        model = self.problem.model
        model.own.copy_(own)
        model.load_own_buffers(statistics)

    def _stacked(self, request: Request) -> Trained | None:
        """Train together with others, if that is possible."""
        return None if self._meet is None else self._meet(request)

    def _ready(self, purpose: str) -> LocalStep:
        step = self.problem.step
        module = self.problem.model.module.train()
        if self.problem.part == "head":  # the extractor is frozen, its statistics too
            module.eval()
        still = self.problem.is_base_still
        if self._pairs and (still or self.n == 1):  # one sample is nothing to normalise over
            for part in module.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()
        step.examples = step.forwards = 0
        purpose = self._streams + purpose
        step.dropout_seed = torch_seed(self._seed, purpose, self.round, self.client) >> 1
        return step

    def _samples(self, positions: np.ndarray | None) -> Batch:
        batch = self._data.batch(positions)  # picked, so newly made
        if alignment.CHECKS:
            alignment.check_settled("samples", batch)
        return batch

    def _batches(self, batch_size: int | None, steps: int, purpose: str) -> Iterator[Batch]:
        order = self._stream(purpose)
        changing = self._stream("augment"), self._stream("mixup")
        for positions in batches(self.n, batch_size, steps, order, self._pairs):
            x, y = self._samples(positions)
            yield (x, y) if self._augment is None else settled(self._augment(x, y, *changing))

    @torch.no_grad()
    def full_grad(self, w: Vec) -> Vec:
        """Exact gradient of the mean loss over all samples, without decay or augmentation."""
        step, model = self._ready("full"), self.problem.model
        statistics = model.all_buffers()
        batch = self._samples(None)
        step.begin(0, 0.0, batch)
        step.seed()
        g = model.grad_at(w, batch).clone()
        model.load_all_buffers(statistics)
        self.work.add(Work(gradients=self.n))
        return g

    @torch.no_grad()
    def minibatch_grad(self, w: Vec, batch_size: int | None) -> Vec:
        """Gradient on one training batch, augmented like any; the whole client if None."""
        step, model = self._ready("dropout"), self.problem.model
        batch = next(self._batches(batch_size, 1, USUAL))
        with self._watched(step):
            step.begin(0, 0.0, batch)
            step.seed()
            g = model.grad_at(w, batch).clone()
        self.has_trained = True
        self.work.add(Work(gradients=count(batch[0])))
        return g

    def chunks(self) -> Iterator[Batch]:
        """All samples in fixed order, a few hundred at a time."""
        for start in range(0, self.n, FEATURE_CHUNK):
            yield self._samples(np.arange(start, min(self.n, start + FEATURE_CHUNK)))

    def features(self, w: Vec, layer: str | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(features, labels) of all samples: the head's input, evaluation mode, no augmentation."""
        for x, y in self.chunks():
            yield self.problem.model.features(w, x, layer), y
        self.work.add(Work(forwards=self.n))

    def logits(self, w: Vec) -> Iterator[tuple[Tensor, Tensor]]:
        """(output, labels) of all samples in evaluation mode."""
        for x, y in self.chunks():
            yield self.problem.model.logits(w, x), y
        self.work.add(Work(forwards=self.n))


class Request(NamedTuple):
    """What a visit asks for: local training from w on its samples."""

    local: Local
    w: Vec
    correct: tuple[Correction, ...]
    outside: tuple[Correction, ...]
    gradient: Gradient
    opt: OptState | None
    freeze: bool
    mean_grad: bool
    rates: Sequence[float]
    samples: Any
    """The client's data: a `ClientData`."""
    order: Callable[[], np.random.Generator]

    @property
    def pieces(self) -> tuple[Any, ...]:
        return (self.gradient, *self.local.correct, *self.correct, *self.outside)


class Trained(NamedTuple):
    """What a visit gets, and how many examples were differentiated for it."""

    run: Run
    examples: int
    training: Report
    spent: Mapping[str, float]
    """Its share of the stack's seconds, by kind of work."""


TrainTogether: TypeAlias = Callable[[Request], Trained | None]
"""Where a visit brings its request; None: it must train by itself."""


Kind: TypeAlias = tuple[Any, ...]
"""What requests must have in common to be trained in one stack."""


@cache
def _fields(cls: type) -> tuple[str, ...] | None:
    """The fields of a piece whose formula holds for rows; None if it does not say so."""
    if not vars(cls).get("rowwise") or not is_dataclass(cls):
        return None
    return tuple(f.name for f in fields(cls))


def _piece_kind(piece: Any) -> tuple[Any, ...] | None:
    names = _fields(type(piece))
    if names is None:
        return None
    values = (getattr(piece, name) for name in names)
    return type(piece), *("rows" if isinstance(v, Tensor) else v for v in values)


def kind_of(request: Request) -> Kind | None:
    """Equal for requests that can be trained in one stack; None if this one cannot be."""
    local, optimizer, rates = request.local, request.local.optimizer, request.rates
    inner = optimizer.of if isinstance(optimizer, Decayed) else optimizer
    if type(inner) not in ELEMENTWISE or not rates:
        return None
    pieces = tuple(_piece_kind(piece) for piece in request.pieces)
    if None in pieces:
        return None
    n, opt = len(request.samples), request.opt
    equal = rates.count(rates[0]) == len(rates)
    return (
        room_of(n, local.batch_size),
        rates[0] if equal else tuple(rates),
        optimizer,
        local.clip,
        request.freeze,
        request.mean_grad,
        len(request.correct),
        len(request.outside),
        -1 if opt is None else int(opt.count),
        pieces,
    )


def room_of(n: int, batch_size: int | None) -> int:
    """Samples a batch has room for. A whole client is padded, so that few sizes differ.

    It depends on the client alone, so that who stands beside it changes nothing.
    """
    return batch_size if batch_size is not None and batch_size < n else -(-n // 8) * 8


def rows(vectors: Sequence[Vec]) -> Vec:
    """A row for each, at a boundary, or the vector itself if it is the same one for all."""
    first = vectors[0]
    if all(v is first for v in vectors):
        return first
    return torch.stack(list(vectors), out=empty_rows(first, (len(vectors), *first.shape)))


def joined(pieces: Sequence[Any]) -> Any:
    """One piece that does to each row what they do to one vector each."""
    first, changed = pieces[0], dict[str, Vec]()
    for name in _fields(type(first)) or ():
        if isinstance(getattr(first, name), Tensor):
            changed[name] = rows([getattr(piece, name) for piece in pieces])
    return replace(first, **changed) if changed else first


def first_rows(piece: Any, number: int) -> Any:
    """The piece for the first rows only."""
    cut = {
        name: getattr(piece, name)[:number]
        for name in _fields(type(piece)) or ()
        if isinstance(getattr(piece, name), Tensor) and getattr(piece, name).dim() > 1
    }
    return replace(piece, **cut) if cut else piece
