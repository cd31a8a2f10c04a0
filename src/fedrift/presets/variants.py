"""Wrong forms of algorithms that stand in reports, to show what the mistake does.

They are marked where they appear, and none of them is among the names of `fedrift list`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedrift.algorithms.scaffold import Client, Down, Scaffold, Server, Up
from fedrift.core.algorithm import Algorithm
from fedrift.core.exchange import Cohort, Weights
from fedrift.core.local import Local
from fedrift.core.optim import SGD, apply
from fedrift.core.pieces import Linear
from fedrift.core.problem import Problem
from fedrift.core.site import Site


@dataclass(frozen=True)
class FlippedScaffold(Algorithm[Server, Client]):
    """SCAFFOLD (option II) with the sign of the local correction turned round: g + c_i − c.

    The correction then doubles the drift that it should take out. Wrong on purpose.
    """

    local: Local = Local()
    weights: Weights = "uniform"

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, c=torch.zeros_like(p.w0), opt=SGD().init(p.w0))

    def client(self, p: Problem) -> Client:
        return Client(c=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, c=s.c))
        w, opt = apply(SGD(), s.w, -up.delta, s.opt)
        return Server(w=w, c=s.c + cohort.weight / cohort.population * up.dc, opt=opt)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w, Linear(mine.c - down.c))
        c = mine.c - down.c - run.delta / run.span
        return Up(delta=run.delta, dc=c - mine.c), Client(c=c)


@dataclass(frozen=True)
class SummedScaffold(Scaffold):
    """SCAFFOLD whose server adds Σ Δc_i instead of their sum over N, as a released program does.

    c is then N times too long. Wrong on purpose.
    """

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, c=s.c))
        w, opt = apply(self.outer, s.w, -self.server_lr * up.delta, s.opt)
        return Server(w=w, c=s.c + cohort.weight * up.dc, opt=opt)
