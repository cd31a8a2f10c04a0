"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020, Algorithm 1.

The objective is the plain mean over clients; `objective=samples` weighs them by size and then
needs everybody in every round. Local momentum breaks option II, whose c_i is a displacement
divided by rate × steps; `momentum_repair` offers two ways out: `raw` keeps the exact fixed point,
`outside`, which some public code uses, ends a little off it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, InputError, Linear, Optimizer, OptState, Plain, Run, apply


@message
class Down:
    w: Vec  # x, the global model
    c: Vec  # server control variate


@message
class Up:
    delta: Mean[Vec]  # y_i − x
    dc: Mean[Vec]  # c_i⁺ − c_i


@state
class Server:
    w: Vec
    c: Vec
    opt: OptState


@state
class Client:
    c: Vec  # c_i, 0 until the first visit


@dataclass(frozen=True)
class Scaffold(Algorithm[Server, Client]):
    """Control variates estimate how each client's gradient differs and take the difference out.

    option: c_i⁺ = the full gradient at the received model (I), or the mean local gradient (II)
    server_lr: rate of the server's step
    objective: what is minimised: the plain mean over clients, or weighed by their samples
    freeze_controls: keep every c_i equal to c (ablation: this is FedAvg)
    momentum_repair: with local momentum, c_i from raw gradients, or the correction outside it
    """

    local: Local = Local()
    option: Literal["I", "II"] = "II"
    server_lr: Annotated[float, "> 0"] = 1.0
    objective: Literal["uniform", "samples"] = "uniform"
    freeze_controls: bool = False
    momentum_repair: Literal["none", "raw", "outside"] = "none"
    weights: Weights = "uniform"
    outer: Optimizer = SGD()

    def weighting(self) -> Weights:
        return self.objective

    def check(self, p: Problem) -> None:
        is_scaffold = isinstance(self.local.gradient, Plain)  # FedGAMMA has no such options
        if self.weights != "uniform":
            instead = "use objective=samples" if is_scaffold else "leave it out"
            raise InputError(f"weights=samples is not its rule; {instead}")
        if self.objective == "samples" and not p.is_full:
            raise InputError("objective=samples needs all clients in every round")
        if self.option == "I" and self.momentum_repair == "outside":
            raise InputError("momentum_repair=outside repairs option II; option=I needs no repair")
        if self.momentum_repair == "outside" and not isinstance(self.local.optimizer, SGD):
            raise InputError(
                "momentum_repair=outside adds controls to the step itself, which an adaptive "
                "optimizer has scaled; use optimizer=sgd, or momentum_repair=raw"
            )
        if self.option == "II" and self.local.has_memory and self.momentum_repair == "none":
            more = ", option=I, or momentum_repair=raw or outside" if is_scaffold else ""
            raise InputError(
                "with local momentum or an adaptive optimizer, option II mistakes the size of the "
                f"steps for that of the gradient; set momentum=0 and optimizer=sgd{more}"
            )

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, c=torch.zeros_like(p.w0), opt=self.outer.init(p.w0))

    def client(self, p: Problem) -> Client:
        return Client(c=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, c=s.c))
        w, opt = apply(self.outer, s.w, -self.server_lr * up.delta, s.opt)
        everybody = cohort.population if self.objective == "uniform" else cohort.problem.samples
        share = cohort.weight / everybody
        return Server(w=w, c=s.c + share * up.dc, opt=opt)  # c + (1/N) Σ_S Δc_i

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        correction = Linear(down.c - mine.c)
        if self.momentum_repair == "outside":
            run = site.train(self.local, down.w, outside=(correction,))
        else:
            run = site.train(
                self.local, down.w, correction, mean_grad=self.momentum_repair == "raw"
            )
        c = mine.c if self.freeze_controls else self._control(site, down, mine, run)
        return Up(delta=run.delta, dc=c - mine.c), Client(c=c)

    def _control(self, site: Site, down: Down, mine: Client, run: Run) -> Vec:
        if self.option == "I":
            return site.full_grad(down.w)
        if run.mean_grad is not None:
            return run.mean_grad
        return mine.c - down.c - run.delta / run.span
