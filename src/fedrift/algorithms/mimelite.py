"""MimeLite: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, NeurIPS 2021, Algorithm 1.

Mime without its correction and its second exchange; see there for the momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrift.algorithm import Algorithm, Cohort, Weights, refuse_memory
from fedrift.algorithms.mime import Beta, Down, Form, Positive, Server, base
from fedrift.flat import Vec
from fedrift.local import Local
from fedrift.messages import Mean, message
from fedrift.optim import Momentum, advance
from fedrift.problem import Problem
from fedrift.site import Site


@message
class UpBoth:
    delta: Mean[Vec]
    g: Mean[Vec | None]  # ∇F_i(w)


@dataclass(frozen=True)
class MimeLite(Algorithm[Server, None]):
    """Mime without the correction: plain local gradients, frozen global momentum.

    server_lr: rate of the server's step
    """

    local: Local = Local()
    server_lr: Positive = 1.0
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        if not isinstance(self.local.optimizer, Momentum):
            refuse_memory(self.local, "its momentum is the server's (mimelitemom)")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=self.local.optimizer.init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, opt=s.opt))
        opt = s.opt if up.g is None else advance(self.local.optimizer, up.g, s.opt, s.w)
        return Server(w=s.w + self.server_lr * up.delta, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[UpBoth, None]:
        g = site.full_grad(down.w) if down.opt.slots else None  # a stateless base needs none
        run = site.train(self.local, down.w, opt=down.opt, freeze=True)
        return UpBoth(delta=run.delta, g=g), mine


def mimelitemom(
    local: Local = Local(),
    beta: Beta = 0.9,
    form: Form = "ema",
    server_lr: Positive = 1.0,
    weights: Weights = "samples",
) -> MimeLite:
    """MimeLite whose local steps follow the server's momentum, frozen during the round.

    beta: momentum, kept by the server
    form: (1−β)g + βs as in the paper, or heavy ball g + βs
    server_lr: rate of the server's step
    """
    return MimeLite(local=base(local, beta, form), server_lr=server_lr, weights=weights)
