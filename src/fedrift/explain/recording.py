"""A client's work as it happens: every local step of the real loop, taken apart into arrows.

The pieces of a local step (gradient rule, corrections, optimizer) are handed to the real loop
inside watchers that call them and copy what they did. Nothing is computed a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fedrift.core.flat import Vec
from fedrift.core.local import Local, Run, Trains
from fedrift.core.optim import Adagrad, Adam, Momentum, Optimizer, OptState
from fedrift.core.pieces import Blend, Correction, Gradient, Step
from fedrift.core.site import Site
from fedrift.explain.terrain import Point


def point(x: Vec) -> Point:
    """A vector of two numbers, copied."""
    first, second = x.tolist()
    return first, second


@dataclass(frozen=True)
class Look:
    """A gradient that was computed, and where."""

    at: Point
    gradient: Point


@dataclass(frozen=True)
class Push:
    """What one piece added to the direction; `keeps` is the share of the rest that it left."""

    piece: str
    vector: Point
    keeps: float = 1.0


@dataclass(frozen=True)
class Stride:
    """One local step: where it began and ended, what the gradient rule gave, what was added."""

    start: Point
    end: Point
    lr: float
    rule: str
    looks: tuple[Look, ...]
    gradient: Point
    pushes: tuple[Push, ...]

    def arrows(self) -> list[tuple[str, Point]]:
        """The step as displacements that add up to it: gradient first, then each push."""
        parts = [(self.rule, self.gradient)]
        for push in self.pushes:
            parts = [(name, _times(push.keeps, vector)) for name, vector in parts]
            parts.append((push.piece, push.vector))
        return [(name, _times(-self.lr, vector)) for name, vector in parts]


def _times(scale: float, vector: Point) -> Point:
    return scale * vector[0], scale * vector[1]


@dataclass
class Visit:
    """One client in one exchange: its local steps, and gradients it computed besides."""

    client: int
    round: int
    begin: Point | None = None
    strides: list[Stride] = field(default_factory=list[Stride])
    looks: list[Look] = field(default_factory=list[Look])
    end: Point | None = None


@dataclass
class _Open:
    """A step under way."""

    start: Point
    lr: float
    looks: list[Look] = field(default_factory=list[Look])
    gradient: Point = (0.0, 0.0)
    pushes: list[Push] = field(default_factory=list[Push])
    direction: Point = (0.0, 0.0)
    """As the last piece left it."""


class _Looking:
    """A step that notes where gradients are taken; everything else is the real step's."""

    def __init__(self, step: Step, looks: list[Look]) -> None:
        self._step, self._looks = step, looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def grad(self, at: Vec) -> Vec:
        where = point(at)
        g = self._step.grad(at)
        self._looks.append(Look(where, point(g)))
        return g


class _Recorder:
    """The pieces of one local training, watched."""

    def __init__(self, rule: Gradient) -> None:
        self._rule = rule
        self.steps: list[_Open] = []

    def gradient(self, step: Step) -> Vec:
        now = _Open(point(step.w), step.lr)
        self.steps.append(now)
        d = self._rule(_Looking(step, now.looks))  # type: ignore[arg-type]
        now.gradient = now.direction = point(d)
        return d

    def correction(self, real: Correction) -> Correction:
        keeps = real.alpha if isinstance(real, Blend) else 1.0
        piece = type(real).__name__

        def watched(d: Vec, step: Step) -> None:
            before = d.clone()
            looks: list[Look] = []  # of the correction, not of the gradient rule
            real(d, _Looking(step, looks))  # type: ignore[arg-type]
            now = self.steps[-1]
            now.direction = point(d)
            now.pushes.append(Push(piece, point(d - keeps * before), keeps))

        return watched

    def strides(self, end: Vec) -> list[Stride]:
        ends = [*(step.start for step in self.steps[1:]), point(end)]
        return [
            Stride(
                start=step.start,
                end=end,
                lr=step.lr,
                rule=type(self._rule).__name__,
                looks=tuple(step.looks),
                gradient=step.gradient,
                pushes=tuple(p for p in step.pushes if p.keeps != 1.0 or p.vector != (0.0, 0.0)),
            )
            for step, end in zip(self.steps, ends, strict=True)
        ]


@dataclass(frozen=True)
class _Watched:
    """An optimizer that notes what it made of the direction it was given."""

    real: Optimizer
    steps: list[_Open]

    @property
    def lr(self) -> float:
        return self.real.lr

    def init(self, w: Vec) -> OptState:
        return self.real.init(w)

    def update_(self, g: Vec, s: OptState, w: Vec, freeze: bool = False) -> Vec:
        before, now = g.clone(), self.steps[-1]
        clipped = point(before)
        if clipped != now.direction:
            change = clipped[0] - now.direction[0], clipped[1] - now.direction[1]
            now.pushes.append(Push("clip", change))
        direction = self.real.update_(g, s, w, freeze)
        keeps = _keeps(self.real)
        added = point(direction - keeps * before)
        if keeps != 1.0 or added != (0.0, 0.0):
            now.pushes.append(Push(type(self.real).__name__, added, keeps))
        return direction


def _keeps(optimizer: Optimizer) -> float:
    """The share of the given direction that stands in the optimizer's own."""
    if isinstance(optimizer, Momentum) and optimizer.ema:
        return 1.0 - optimizer.beta
    return 0.0 if isinstance(optimizer, Adam | Adagrad) else 1.0


class WatchedSite:
    """The real site, whose training and gradients are noted in a visit."""

    def __init__(self, site: Site, visit: Visit) -> None:
        self._site, self._visit = site, visit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

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
        purpose: str = "order",
        trains: Trains = "all",
    ) -> Run:
        if purpose != "order":  # of a model of the client's own, beside the one that is drawn
            return self._site.train(
                local, w, *correct, gradient=gradient, opt=opt, purpose=purpose, trains=trains
            )
        recorder = _Recorder(gradient if gradient is not None else local.gradient)
        watched = replace(
            local,
            optimizer=_Watched(local.optimizer, recorder.steps),
            correct=tuple(map(recorder.correction, local.correct)),
        )
        run = self._site.train(
            watched,
            w,
            *map(recorder.correction, correct),
            outside=tuple(map(recorder.correction, outside)),
            gradient=recorder.gradient,
            opt=opt,
            freeze=freeze,
            mean_grad=mean_grad,
            purpose=purpose,
        )
        self._visit.begin, self._visit.end = point(w), point(run.w)
        self._visit.strides += recorder.strides(run.w)
        return run

    def full_grad(self, w: Vec) -> Vec:
        return self._noted(w, self._site.full_grad(w))

    def minibatch_grad(self, w: Vec, batch_size: int | None) -> Vec:
        return self._noted(w, self._site.minibatch_grad(w, batch_size))

    def _noted(self, w: Vec, g: Vec) -> Vec:
        self._visit.looks.append(Look(point(w), point(g)))
        return g


def watching(visits: list[Visit]) -> Callable[..., WatchedSite]:
    """Makes sites whose visits are added to a list."""

    def make(*given: Any, client: int, round: int, **more: Any) -> WatchedSite:
        site = Site(*given, client=client, round=round, **more)
        visits.append(Visit(client, round))
        return WatchedSite(site, visits[-1])

    return make
