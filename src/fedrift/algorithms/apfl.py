"""APFL: Deng, Kamani, Mahdavi, arXiv:2003.13461, 2020, Algorithm 1.

The factor α of the chain rule stays in the step of v. With `adaptive`, α moves once a visit, by the
gradient of its first step, and is used from the next visit on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from torch import Tensor

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, EvaluatedModel, Step, clip_, dot, refuse_memory


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]  # w_i − w


@state
class Server:
    w: Vec


@state
class Client:
    alpha: float  # weight of the client's own model in the mixture
    v: Vec  # the client's own model
    w: Vec | None = None  # its version of the global model, of its last visit
    statistics: tuple[Tensor, ...] = ()  # running statistics of that visit


@dataclass(frozen=True)
class Mixture:
    """Moves v by α·g(v̄) beside every step of w, on its minibatch; v̄ = α v + (1 − α) w."""

    alpha: float
    v: Vec
    """Belongs to the visit, and is moved."""
    decay: float = 0.0
    clip: float | None = None
    slopes: list[Tensor] = field(default_factory=list[Tensor])
    """η ⟨v − w, g(v̄)⟩ of the first step."""

    def __call__(self, g: Vec, step: Step) -> None:
        mixed = step.buffer().copy_(self.v).lerp_(step.w, 1.0 - self.alpha)
        d = step.grad(mixed)
        if not self.slopes:
            self.slopes.append(step.lr * dot(self.v - step.w, d))
        d.mul_(self.alpha)
        if self.clip is not None:
            clip_(d, self.clip)
        self.v.sub_(d.add_(self.v, alpha=self.decay), alpha=step.lr)


@dataclass(frozen=True)
class APFL(Algorithm[Server, Client]):
    """FedAvg; beside it each client trains a model of its own inside a mixture with the global one.

    alpha: weight of the client's own model in the mixture
    adaptive: let every client learn its weight
    """

    local: Local = Local()
    alpha: Annotated[float, ">= 0", "<= 1"] = 0.5
    adaptive: bool = False
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        refuse_memory(self.local, "the client's own model follows the paper's plain steps")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Client:
        return Client(alpha=self.alpha, v=p.w0, statistics=tuple(p.rest[name] for name in p.moving))

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        decay = self.local.optimizer.weight_decay if isinstance(self.local.optimizer, SGD) else 0.0
        mixture = Mixture(mine.alpha, mine.v.clone(), decay, self.local.clip)
        run = site.train(self.local, down.w, mixture)
        alpha = mine.alpha
        if self.adaptive and mixture.slopes:
            alpha = min(1.0, max(0.0, alpha - float(mixture.slopes[0])))
        statistics = site.statistics()
        return Up(delta=run.delta), Client(alpha=alpha, v=mixture.v, w=run.w, statistics=statistics)

    def personal(self, site: Site, shown: EvaluatedModel, mine: Client) -> EvaluatedModel:
        if mine.w is None:  # never visited: the model of the server in place of its own version
            return replace(shown, w=self.mixed(mine, shown.w))
        return replace(shown, w=self.mixed(mine, mine.w), buffers=mine.statistics)

    def mixed(self, mine: Client, w: Vec) -> Vec:
        return mine.v.lerp(w, 1.0 - mine.alpha)
