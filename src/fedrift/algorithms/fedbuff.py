"""FedBuff: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022, Algorithm 1.

As many clients as a cohort has are always out, on the simulated clock; a round is a step of the
server. The buffer is divided by K, not by the sum of the weights of staleness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, OptState, apply, uniform_only


@message
class Down:
    w: Vec  # global model


@message
class Up:
    delta: Mean[Vec]  # w_i − the model that was received


@state
class Server:
    w: Vec
    opt: OptState  # of the server's step


@dataclass(frozen=True)
class FedBuff(Algorithm[Server, None]):
    """Asynchronous: clients return when they are done, and every K updates make a step.

    buffer: updates that make a step of the server (K)
    server_lr: rate of that step (η_g)
    staleness: what an update of s versions ago counts: 1/√(1 + s), or none: as much as any other
    """

    local: Local = Local()
    buffer: Annotated[int, ">= 1"] = 10
    server_lr: Annotated[float, "> 0"] = 1.0
    staleness: Literal["sqrt", "none"] = "sqrt"
    weights: Weights = "uniform"

    def check(self, p: Problem) -> None:
        uniform_only(self)

    def arrivals(self) -> int:
        return self.buffer

    def discount(self, staleness: int) -> float:
        return (1.0 + staleness) ** -0.5 if self.staleness == "sqrt" else 1.0

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=SGD(lr=self.server_lr).init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        # The mean is the weighted sum over the sum of weights; the rule divides by K.
        step = up.delta * (cohort.weight / self.buffer)
        w, opt = apply(SGD(lr=self.server_lr), s.w, -step, s.opt)
        return Server(w=w, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w)
        return Up(delta=run.delta), mine
