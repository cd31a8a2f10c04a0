"""FedSMOO: Sun, Shen, Chen, Ding, Tao, ICML 2023, Algorithm 1.

s̃_i = μ_i − ŝ of the last step, as in independent reimplementations; the authors' simulator leaves
−ŝ out (`drop_last_perturbation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fedrift.algorithms.feddyn import server_step
from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import GradientAt, Linear, Prox, Step, norm, uniform_only, unit


@message
class Down:
    w: Vec
    s: Vec  # global perturbation, length r (0 at first)


@message
class Up:
    delta: Mean[Vec]  # w_i − w
    s: Mean[Vec]  # s̃_i


@state
class Server:
    w: Vec
    h: Vec  # Λ, mean of all λ_i
    s: Vec
    mean: Vec  # mean_S w_i


@state
class Client:
    h: Vec  # λ_i, dual of the model
    mu: Vec  # μ_i, dual of the perturbation


class Perturbed(GradientAt):
    """The gradient at w + ŝ; owns the dual μ for the length of a visit, which moves every step."""

    def __init__(self, r: float, s: Vec, mu: Vec) -> None:
        self.r, self.s, self.mu, self.last = r, s, mu.clone(), torch.zeros_like(mu)

    def point(self, step: Step) -> Vec:
        q = step.grad(step.w).sub_(self.mu).sub_(self.s)
        scale = (self.r / norm(q).clamp_min(1e-12)).to(q.dtype)
        torch.mul(q, scale, out=self.last)  # ŝ
        self.mu.add_(self.last).sub_(self.s)
        return torch.add(step.w, self.last, out=q)


@dataclass(frozen=True)
class FedSMOO(Algorithm[Server, Client]):
    """FedDyn whose sharpness-aware perturbation is driven to agree across clients as well.

    gamma: weight of the dynamic regulariser, 1/β in the paper
    r: length of the perturbation
    drop_last_perturbation: send μ_i instead of μ_i − ŝ, as the authors' simulator does
    """

    local: Local = Local()
    gamma: Annotated[float, "> 0"] = 0.1
    r: Annotated[float, ">= 0"] = 0.1
    drop_last_perturbation: bool = False
    weights: Weights = "uniform"
    takes_gradient_rule = False

    def check(self, p: Problem) -> None:
        uniform_only(self)

    def server(self, p: Problem) -> Server:
        zero = torch.zeros_like(p.w0)
        return Server(w=p.w0, h=zero, s=zero.clone(), mean=p.w0)

    def client(self, p: Problem) -> Client:
        zero = torch.zeros_like(p.w0)
        return Client(h=zero, mu=zero.clone())

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, s=s.s))
        w, h = server_step(s.w, s.h, up.delta, self.gamma, cohort)
        return Server(w=w, h=h, s=self.r * unit(up.s), mean=s.w + up.delta)

    def also(self, s: Server) -> dict[str, Vec]:
        return {"mean": s.mean}

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        rule = Perturbed(self.r, down.s, mine.mu)
        run = site.train(self.local, down.w, Linear(-mine.h), Prox(self.gamma), gradient=rule)
        tilde = rule.mu if self.drop_last_perturbation else rule.mu - rule.last
        up = Up(delta=run.delta, s=tilde)
        return up, Client(h=mine.h - self.gamma * run.delta, mu=rule.mu)
