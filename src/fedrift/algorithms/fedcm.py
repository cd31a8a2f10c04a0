"""FedCM: Xu, Wang, Wang, Yao, arXiv:2106.10874, 2021, Algorithm 1.

The server averages models (the paper's η_g = Kη); the direction Δ̄ is the mean of each client's
displacement divided by its own rate × steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import Blend, derived, refuse_memory


@message
class Down:
    w: Vec
    m: Vec  # Δ̄, a mean gradient; 0 in the first round


@message
class Up:
    delta: Mean[Vec]  # w_i − w
    span: float  # rate × steps
    rate: Mean[Vec] = derived(lambda up: up.delta / up.span)


@state
class Server:
    w: Vec
    m: Vec


@dataclass(frozen=True)
class FedCM(Algorithm[Server, None]):
    """Clients blend their gradient with the direction of the last round.

    alpha: weight of the fresh gradient
    """

    local: Local = Local()
    alpha: Annotated[float, "> 0", "<= 1"] = 0.1
    weights: Weights = "uniform"

    def check(self, p: Problem) -> None:
        refuse_memory(self.local, "Δ̄ divides displacements by rate × steps")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, m=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, m=s.m))
        return Server(w=s.w + up.delta, m=-up.rate)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w, Blend(self.alpha, down.m))
        return Up(delta=run.delta, span=run.span), mine
