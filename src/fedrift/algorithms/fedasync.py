"""FedAsync: Xie, Koyejo, Gupta, 2019 (arXiv:1903.03934), Algorithm 1.

As many clients as a cohort has are always out, on the simulated clock; every arrival is a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import Prox, uniform_only


@message
class Down:
    w: Vec  # global model


@message
class Up:
    sent: Mean[Vec]  # w_i; in differences: w_i − the model that was received


@state
class Server:
    w: Vec


@dataclass(frozen=True)
class FedAsync(Algorithm[Server, None]):
    """Asynchronous: every model that arrives is mixed in at once, the less the older it is.

    alpha: share of a fresh model in the mixture (α)
    staleness: s(t − τ): polynomial (t − τ + 1)^−a, hinge 1/(a(t − τ − b) + 1) beyond b, constant 1
    a: how fast an old model loses weight
    b: versions without loss, of the hinge
    rho: strength of the proximal term (ρ/2)‖w − w_received‖² of the local steps
    form: mix the client's model, or add its difference from what it received
    """

    local: Local = Local()
    alpha: Annotated[float, "> 0", "<= 1"] = 0.6
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    a: Annotated[float, "> 0"] = 0.5
    b: Annotated[int, ">= 0"] = 4
    rho: Annotated[float, ">= 0"] = 0.005
    form: Literal["model", "difference"] = "model"
    weights: Weights = "uniform"

    def check(self, p: Problem) -> None:
        uniform_only(self)

    def arrivals(self) -> int:
        return 1

    def discount(self, staleness: int) -> float:
        if self.staleness == "polynomial":
            return (staleness + 1.0) ** -self.a
        late = staleness - self.b if self.staleness == "hinge" else 0
        return 1.0 / (self.a * late + 1.0) if late > 0 else 1.0

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        a = self.alpha * cohort.weight  # α_t = α·s(t − τ) of the one that has arrived
        kept = s.w if self.form == "difference" else (1.0 - a) * s.w
        return Server(w=kept + a * up.sent)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        run = site.train(self.local, down.w, Prox(self.rho))
        return Up(sent=run.w if self.form == "model" else run.delta), mine
