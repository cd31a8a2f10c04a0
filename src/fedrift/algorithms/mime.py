"""Mime, MimeLite: Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh, NeurIPS 2021, Algorithm 1.

The base optimizer's state is frozen during local steps and moved by the server afterwards, with
the mean full gradient c. `form=ema` is the paper's momentum, `heavy_ball` that of several codes.
Weight decay is added once, after the base optimizer's direction. MimeLite has neither the
correction nor the second exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeVar

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, SVRG, Momentum, OptState, advance, refuse_memory

Positive = Annotated[float, "> 0"]
C = TypeVar("C")  # what a client keeps
M = TypeVar("M", "Mime", "MimeLite")


@message
class Down:
    w: Vec
    opt: OptState  # s, state of the base optimizer


@message
class DownMean:
    c: Vec  # mean full gradient at w


@message
class UpGradient:
    g: Mean[Vec]  # ∇F_i(w)


@message
class Up:
    delta: Mean[Vec]  # w_i − w


@message
class UpBoth:
    delta: Mean[Vec]
    g: Mean[Vec | None]  # ∇F_i(w)


@state
class Server:
    w: Vec
    opt: OptState


@state
class Client:
    w: Vec | None = None  # what it was sent, kept from the first exchange to the second
    s: Vec | None = None


@dataclass(frozen=True)
class Mimicking(Algorithm[Server, C]):
    """What both have: the base optimizer is that of `local`, its state is the server's.

    server_lr: rate of the server's step
    """

    local: Local = Local()
    server_lr: Positive = 1.0
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        if not isinstance(self.local.optimizer, Momentum):
            name = f"{type(self).__name__.lower()}mom"
            refuse_memory(self.local, f"its momentum is the server's ({name})")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=self.local.optimizer.init(p.w0))


@dataclass(frozen=True)
class Mime(Mimicking[Client]):
    """Local steps that mimic centralised ones: variance-reduced, with frozen global momentum."""

    def client(self, p: Problem) -> Client:
        return Client()

    def round(self, s: Server, cohort: Cohort) -> Server:
        c = cohort.ask(self.gradient, Down(w=s.w, opt=s.opt)).g
        up = cohort.ask(self.train, DownMean(c=c))
        opt = advance(self.local.optimizer, c, s.opt, s.w)
        return Server(w=s.w + self.server_lr * up.delta, opt=opt)

    def gradient(self, site: Site, down: Down, mine: Client) -> tuple[UpGradient, Client]:
        s = down.opt.slots[0] if down.opt.slots else None
        return UpGradient(g=site.full_grad(down.w)), Client(w=down.w, s=s)

    def train(self, site: Site, down: DownMean, mine: Client) -> tuple[Up, Client]:
        assert mine.w is not None
        opt = replace(self.local.optimizer.init(mine.w), slots=() if mine.s is None else (mine.s,))
        run = site.train(self.local, mine.w, SVRG(mine.w, down.c), opt=opt, freeze=True)
        return Up(delta=run.delta), Client()


@dataclass(frozen=True)
class MimeLite(Mimicking[None]):
    """Mime without the correction: plain local gradients, frozen global momentum."""

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, opt=s.opt))
        opt = s.opt if up.g is None else advance(self.local.optimizer, up.g, s.opt, s.w)
        return Server(w=s.w + self.server_lr * up.delta, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[UpBoth, None]:
        g = site.full_grad(down.w) if down.opt.slots else None  # a stateless base needs none
        run = site.train(self.local, down.w, opt=down.opt, freeze=True)
        return UpBoth(delta=run.delta, g=g), mine


def _with_momentum(
    kind: type[M],
    local: Local = Local(),
    beta: Annotated[float, ">= 0", "< 1"] = 0.9,
    form: Literal["ema", "heavy_ball"] = "ema",
    server_lr: Positive = 1.0,
    weights: Weights = "samples",
) -> M:
    """Mime or MimeLite with momentum, whose state the server keeps, as the base optimizer.

    beta: momentum, kept by the server
    form: (1−β)g + βs as in the paper, or heavy ball g + βs
    server_lr: rate of the server's step
    """
    refuse_memory(local, "its momentum is the server's: set beta")
    decay = local.optimizer.weight_decay if isinstance(local.optimizer, SGD) else 0.0
    base = Momentum(beta, ema=form == "ema", weight_decay=decay)
    return kind(local=replace(local, optimizer=base), server_lr=server_lr, weights=weights)


mimemom = partial(_with_momentum, Mime)
"""Mime whose local steps also follow the server's momentum, frozen during the round."""

mimelitemom = partial(_with_momentum, MimeLite)
"""MimeLite whose local steps follow the server's momentum, frozen during the round."""
