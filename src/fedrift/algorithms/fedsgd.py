"""FedSGD: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017 (C-fraction, E = 1, B = ∞).

The run's `lr` is the server's step; `epochs`, `steps` and momentum have no meaning here. Weight
decay and clipping are applied once, at the client.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, InputError, clip_, rate, refuse_rates


@message
class Down:
    w: Vec  # global model


@message
class Up:
    g: Mean[Vec]  # ∇F_i(w)


@state
class Server:
    w: Vec


@dataclass(frozen=True)
class FedSGD(Algorithm[Server, None]):
    """Clients send their gradient, the server makes one step: no local training."""

    local: Local = Local(batch_size=None)
    weights: Weights = "samples"
    takes_gradient_rule = False

    def local_now(self, s: Server) -> None:
        return None  # no steps, so nobody is left out for having none

    def check(self, p: Problem) -> None:
        if not isinstance(self.local.optimizer, SGD):
            raise InputError("it makes no local steps; leave optimizer out")
        refuse_rates(self.local, "it makes no local steps")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.gradient, Down(w=s.w))
        return Server(w=torch.add(s.w, up.g, alpha=-rate(self.local.lr, cohort.round)))

    def gradient(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        g = site.minibatch_grad(down.w, self.local.batch_size)
        if self.local.clip is not None:
            clip_(g, self.local.clip)
        if isinstance(self.local.optimizer, SGD):  # checked
            g.add_(down.w, alpha=self.local.optimizer.weight_decay)
        return Up(g=g), mine
