"""FedGF: Lee, Yoon, "Rethinking the Flat Minima Searching in Federated Learning", ICML 2024.

While fewer than W rounds have passed, c is the mean over those present, as in the authors' code.
The threshold is an absolute distance: it depends on rate, steps and model size. `auto` takes it
from the run itself: c is 0 in the first W rounds, whose distances give it; bits count from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import GradientAt, Step, Sum, norm, unit


@message
class Down:
    w: Vec
    up: Vec | None  # w̃, the globally perturbed model; absent in round 0
    c: float  # how much to trust it


@message
class Up:
    delta: Mean[Vec]  # w_i − w
    drift: Sum[float]  # ‖w_i − w‖; a plain mean, so not Mean, which may weigh by samples


@state
class Server:
    w: Vec
    up: Vec | None = None
    c: float = 0.0
    window: tuple[int, ...] = ()  # bits of the last W rounds: were clients far apart?
    dist: float = 0.0  # mean ‖w − w_i‖ of the last round, to choose the threshold by
    early: tuple[
        float, ...
    ] = ()  # those of the first W rounds, if the threshold is taken from them


@dataclass(frozen=True)
class Toward(GradientAt):
    """The gradient between the local ascent point and the globally perturbed model."""

    rowwise: ClassVar[bool] = True
    rho: float
    up: Vec | None
    c: float

    def point(self, step: Step) -> Vec:
        at = step.ahead(self.rho, step.grad(step.w))
        return at if self.up is None else at.lerp_(self.up, self.c)


@dataclass(frozen=True)
class FedGF(Algorithm[Server, None]):
    """FedSAM that ascends from the global model instead when clients have drifted apart.

    rho: length of the local ascent
    rho_g: length of the global perturbation
    threshold: T_D, mean ‖w − w_i‖ above which a round has drifted; auto: median of the first W
    window: W, rounds over which drifted ones are counted
    """

    local: Local = Local()
    rho: Annotated[float, ">= 0"] = 0.05
    rho_g: Annotated[float, ">= 0"] = 0.05
    threshold: float | Literal["auto"] = 0.2
    window: Annotated[int, ">= 1"] = 30
    weights: Weights = "samples"
    takes_gradient_rule = False

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, up=s.up, c=s.c))
        dist = up.drift / cohort.replies
        limit, window, early = self.limit(s.early), s.window, s.early
        if limit is None:
            early = (*early, dist)
        else:
            window = (*window, int(dist > limit))[-self.window :]
        c = sum(window) / len(window) if window else 0.0
        w = s.w + up.delta
        ahead = w + self.rho_g * unit(s.w - w)
        return Server(w=w, up=ahead, c=c, window=window, dist=dist, early=early)

    def limit(self, early: Sequence[float]) -> float | None:
        """T_D; None as long as too few rounds have passed to take it from."""
        if self.threshold != "auto":
            return self.threshold
        if len(early) < self.window:
            return None
        return float(torch.tensor(early, dtype=torch.float64).quantile(0.5))

    def log(self, s: Server) -> dict[str, float]:
        limit = self.limit(s.early) if self.threshold == "auto" else None
        return {"dist": s.dist, "c": s.c} | ({} if limit is None else {"threshold": limit})

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w, gradient=Toward(self.rho, down.up, down.c))
        return Up(delta=run.delta, drift=float(norm(run.delta))), mine
