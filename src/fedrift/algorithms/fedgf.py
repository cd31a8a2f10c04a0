"""FedGF: Lee, Yoon, "Rethinking the Flat Minima Searching in Federated Learning", ICML 2024.

While fewer than W rounds have passed, c is the mean over those present, as in the authors' code.
The threshold is an absolute distance: it depends on rate, steps and model size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import Step, Sum, norm, unit


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


@dataclass(frozen=True)
class Toward:
    """The gradient between the local ascent point and the globally perturbed model."""

    rowwise: ClassVar[bool] = True
    rho: float
    up: Vec | None
    c: float

    def __call__(self, step: Step) -> Vec:
        at = step.ahead(self.rho, step.grad(step.w))
        return step.grad(at if self.up is None else at.lerp_(self.up, self.c))


@dataclass(frozen=True)
class FedGF(Algorithm[Server, None]):
    """FedSAM that ascends from the global model instead when clients have drifted apart.

    rho: length of the local ascent
    rho_g: length of the global perturbation
    threshold: T_D, mean distance ‖w − w_i‖ above which a round counts as drifted
    window: W, rounds over which drifted ones are counted
    """

    local: Local = Local()
    rho: Annotated[float, ">= 0"] = 0.05
    rho_g: Annotated[float, ">= 0"] = 0.05
    threshold: float = 0.2
    window: Annotated[int, ">= 1"] = 30
    weights: Weights = "samples"
    takes_gradient_rule = False

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w, up=s.up, c=s.c))
        dist = up.drift / cohort.replies
        window = (*s.window, int(dist > self.threshold))[-self.window :]
        w = s.w + up.delta
        ahead = w + self.rho_g * unit(s.w - w)
        return Server(w=w, up=ahead, c=sum(window) / len(window), window=window, dist=dist)

    def log(self, s: Server) -> dict[str, float]:
        return {"dist": s.dist, "c": s.c}

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w, gradient=Toward(self.rho, down.up, down.c))
        return Up(delta=run.delta, drift=float(norm(run.delta))), mine
