"""FedAvg: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, Algorithm 1.

Written with the mean update instead of the mean model, so that any server optimizer fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, Optimizer, OptState, apply


@message
class Down:
    w: Vec  # global model


@message
class Up:
    delta: Mean[Vec]  # w_i − w


@state
class Server:
    w: Vec
    opt: OptState  # of the outer optimizer


@dataclass(frozen=True)
class FedAvg(Algorithm[Server, None]):
    """Clients train, the server takes the mean of their updates."""

    local: Local = Local()
    outer: Optimizer = SGD(lr=1.0)
    weights: Weights = "samples"

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=self.outer.init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        w, opt = apply(self.outer, s.w, -up.delta, s.opt)
        return Server(w=w, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w)
        return Up(delta=run.delta), mine
