"""pFedMe: T. Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1.

Only the clients of the round work; in the paper all of them do, and some are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import EvaluatedModel, Step, refuse_memory


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]  # w_i − w after the local rounds


@state
class Server:
    w: Vec


@state
class Client:
    theta: Vec  # θ_i, the client's own model
    statistics: tuple[Tensor, ...]  # its running statistics


@dataclass(frozen=True)
class Envelope:
    """λ(w − θ), the gradient of the Moreau envelope; θ ≈ argmin f(θ) + (λ/2)‖θ − w‖², by a few
    steps on one minibatch from where θ was left."""

    lam: float
    steps: int
    lr: float
    theta: Vec
    """Belongs to the visit, and is moved."""

    def __call__(self, step: Step) -> Vec:
        for _ in range(self.steps):  # all of them on this minibatch
            g = step.grad(self.theta)
            g.add_(self.theta, alpha=self.lam).sub_(step.w, alpha=self.lam)
            self.theta.sub_(g, alpha=self.lr)
        return step.buffer().copy_(step.w).sub_(self.theta).mul_(self.lam)


@dataclass(frozen=True)
class PFedMe(Algorithm[Server, Client]):
    """Clients solve for models of their own near the global one, which follows them.

    lam: λ, the pull towards the local model
    inner_steps: K, gradient steps that solve for θ, on one minibatch
    inner_lr: their rate
    beta: how far the server goes towards the clients' mean
    """

    local: Local = Local()
    lam: Annotated[float, "> 0"] = 15.0
    inner_steps: Annotated[int, ">= 1"] = 5
    inner_lr: Annotated[float, "> 0"] = 0.01
    beta: Annotated[float, "> 0"] = 1.0
    weights: Weights = "uniform"
    takes_gradient_rule = False

    def check(self, p: Problem) -> None:
        refuse_memory(self.local, "w follows θ by the paper's plain steps")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Client:
        return Client(theta=p.w0, statistics=tuple(p.rest[name] for name in p.moving))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + self.beta * up.delta)  # (1 − β) w + β mean w_i

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        rule = Envelope(self.lam, self.inner_steps, self.inner_lr, mine.theta.clone())
        run = site.train(self.local, down.w, gradient=rule)
        return Up(delta=run.delta), Client(theta=rule.theta, statistics=site.statistics())

    def personal(self, site: Site, shown: EvaluatedModel, mine: Client) -> EvaluatedModel:
        return replace(shown, w=mine.theta, buffers=mine.statistics)
