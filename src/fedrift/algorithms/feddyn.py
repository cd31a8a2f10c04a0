"""FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021, Algorithm 1.

The same α for every client (the authors' code scales it by size). The model sent to clients is
evaluated, and the cohort's mean model beside it; the authors' example plots that of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import Linear, Prox, uniform_only


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]  # w_i − w


@state
class Server:
    w: Vec
    h: Vec  # mean of all h_i
    mean: Vec  # mean_S w_i, before h is taken off


@state
class Client:
    h: Vec  # h_i ≈ ∇F_i at the client's last model


@dataclass(frozen=True)
class FedDyn(Algorithm[Server, Client]):
    """A linear term per client, learned over the rounds, makes local and global optima agree.

    alpha: weight of the dynamic regulariser
    """

    local: Local = Local()
    alpha: Annotated[float, "> 0"] = 0.01
    weights: Weights = "uniform"

    def check(self, p: Problem) -> None:
        uniform_only(self)

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, h=torch.zeros_like(p.w0), mean=p.w0)

    def client(self, p: Problem) -> Client:
        return Client(h=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        w, h = server_step(s.w, s.h, up.delta, self.alpha, cohort)
        return Server(w=w, h=h, mean=s.w + up.delta)

    def also(self, s: Server) -> dict[str, Vec]:
        return {"mean": s.mean}

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w, Linear(-mine.h), Prox(self.alpha))
        return Up(delta=run.delta), Client(h=mine.h - self.alpha * run.delta)


def server_step(w: Vec, h: Vec, delta: Vec, alpha: float, cohort: Cohort) -> tuple[Vec, Vec]:
    """h ← h − (α/N) Σ_S Δ_i and w ← mean_S w_i − h/α."""
    h = h - alpha * (cohort.replies / cohort.population) * delta
    return w + delta - h / alpha, h
