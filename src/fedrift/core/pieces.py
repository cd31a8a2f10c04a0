"""Gradient rules (where a gradient is taken) and corrections (what is added to it)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

import torch

from fedrift.core.flat import Batch, Vec, norm
from fedrift.core.flat_model import Forward, Objective


class Step(Protocol):
    """What a piece sees during one minibatch. Buffers are valid until the step ends."""

    w: Vec
    start: Vec
    k: int
    steps: int
    lr: float

    @property
    def batch(self) -> Batch:
        """Inputs and targets of the minibatch, augmented as they are trained on."""
        ...

    def grad(self, at: Vec, objective: Objective | None = None) -> Vec:
        """The gradient at any point: same minibatch, same dropout mask; counted.

        Of the task's mean loss, or of `objective(here)`, a number made of what the model says of
        the minibatch: `here.output`, `here.features`, `here.loss`.
        """
        ...

    def forward(self, at: Vec, statistics: Sequence[torch.Tensor] | None = None) -> Forward:
        """What a frozen model says of the minibatch: weights `at`, in evaluation mode, without
        gradients; w, running statistics and random numbers stay what they are. Counted.

        `statistics` are the frozen model's running statistics; those of here unless given.
        """
        ...

    def ahead(self, rho: float, direction: Vec, length: torch.Tensor | None = None) -> Vec:
        """w + rho·direction/length in a buffer (length: ‖direction‖); w itself where it is 0."""
        ...

    def buffer(self) -> Vec:
        """A vector to work in, contents undefined."""
        ...

    def is_bias(self) -> torch.Tensor:
        """True for the elements of parameters whose name does not contain "weight"."""
        ...


Gradient: TypeAlias = Callable[[Step], Vec]
Correction: TypeAlias = Callable[[Vec, Step], None]
"""A rule or correction says `rowwise` if it is a dataclass whose formula also holds for a stack of
clients: vectors of shape (clients, d), its own too; norms kept as a column, and neither
`step.steps` nor what looks at samples (`step.batch`, `step.forward`, an objective)."""


class GradientAt(ABC):
    """A gradient rule that ends with the gradient at one point, wherever that is."""

    @abstractmethod
    def point(self, step: Step) -> Vec:
        """Where: `step.w`, or a vector made of gradients that are taken before."""

    def __call__(self, step: Step) -> Vec:
        return step.grad(self.point(step))


@dataclass(frozen=True)
class Plain(GradientAt):
    """The gradient here."""

    rowwise: ClassVar[bool] = True

    def point(self, step: Step) -> Vec:
        return step.w


@dataclass(frozen=True)
class SAM(GradientAt):
    """The gradient at w + rho·g/‖g‖ (Foret et al. 2021)."""

    rowwise: ClassVar[bool] = True
    passes: ClassVar[int] = 2
    rho: float  # radius of the ascent

    def point(self, step: Step) -> Vec:
        return step.ahead(self.rho, step.grad(step.w))


@dataclass(frozen=True)
class ASAM(GradientAt):
    """SAM in coordinates scaled by T = |w| + eta for weights, 1 for biases (Kwon et al. 2021)."""

    rowwise: ClassVar[bool] = True
    passes: ClassVar[int] = 2
    rho: float  # radius in the scaled coordinates
    eta: float  # added to |w| of weights

    def point(self, step: Step) -> Vec:
        g = step.grad(step.w)
        t = torch.abs(step.w, out=step.buffer()).add_(self.eta).masked_fill_(step.is_bias(), 1.0)
        length = norm(g.mul_(t))
        return step.ahead(self.rho, g.mul_(t), length)


@dataclass(frozen=True)
class Extra:
    """(1−alpha)·gradient here + alpha·gradient at the ascent point."""

    rowwise: ClassVar[bool] = True
    passes: ClassVar[int] = 2
    rho: float  # radius of the ascent
    alpha: float  # share of the gradient there

    def __call__(self, step: Step) -> Vec:
        g = step.grad(step.w)
        return g.lerp_(step.grad(step.ahead(self.rho, g)), self.alpha)


class Addition(ABC):
    """A correction g = share·g + weight·vector, where the vector does not depend on g.

    So it may as well move w by itself: a plain step makes no vector of the sum.
    """

    is_fixed: ClassVar[bool] = False
    """The vector is the same wherever w is."""

    @property
    def share(self) -> float:
        """Of the gradient."""
        return 1.0

    @property
    def weight(self) -> float:
        """Of the vector."""
        return 1.0

    @abstractmethod
    def vector(self, step: Step) -> Vec:
        """What is added; it is not written to."""

    def move(self, step: Step, by: float) -> None:
        """w += by·weight·vector."""
        step.w.add_(self.vector(step), alpha=by * self.weight)

    def __call__(self, g: Vec, step: Step) -> None:
        if self.share != 1.0:
            g.mul_(self.share)
        g.add_(self.vector(step), alpha=self.weight)


@dataclass(frozen=True)
class Prox(Addition):
    """g += mu·(w − anchor); the anchor is the model the visit started from, unless given."""

    rowwise: ClassVar[bool] = True
    mu: float  # strength of the spring
    anchor: Vec | None = None  # where it is fixed

    @property
    def weight(self) -> float:
        return self.mu

    def vector(self, step: Step) -> Vec:
        return torch.sub(step.w, self._fixed_at(step), out=step.buffer())

    def move(self, step: Step, by: float) -> None:
        step.w.lerp_(self._fixed_at(step), -by * self.mu)

    def _fixed_at(self, step: Step) -> Vec:
        return step.start if self.anchor is None else self.anchor


@dataclass(frozen=True)
class Linear(Addition):
    """g += v."""

    rowwise: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    v: Vec  # added to every gradient

    def vector(self, step: Step) -> Vec:
        return self.v


@dataclass(frozen=True)
class Blend(Addition):
    """g = alpha·g + (1−alpha)·m."""

    rowwise: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    alpha: float  # share of the gradient
    m: Vec  # what takes the rest

    @property
    def share(self) -> float:
        return self.alpha

    @property
    def weight(self) -> float:
        return 1.0 - self.alpha

    def vector(self, step: Step) -> Vec:
        return self.m


@dataclass(frozen=True)
class SVRG:
    """g += mean − gradient at another point on the same minibatch."""

    rowwise: ClassVar[bool] = True
    at: Vec  # the other point
    mean: Vec  # mean gradient at that point

    def __call__(self, g: Vec, step: Step) -> None:
        g.sub_(step.grad(self.at)).add_(self.mean)


def passes_of(rule: Gradient) -> int:
    """How many gradients a rule takes for each step, as far as it says so (`passes`)."""
    return int(getattr(rule, "passes", 1))
