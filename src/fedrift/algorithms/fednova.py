"""FedNova: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, equations 9–10 and Algorithm 1.

With momentum and proximal term together ‖a_i‖₁ follows the general definition (what the local
solver makes of a constant unit gradient); the authors' code adds the two recurrences up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import SGD, InputError, OptState, Prox, apply, rate, refuse_rates


@message
class Down:
    w: Vec


@message
class Up:
    d: Mean[Vec]  # Δ_i / ‖a_i‖₁
    a: Mean[float]  # ‖a_i‖₁
    steps: Mean[float]  # τ_i


@state
class Server:
    w: Vec
    opt: OptState


@dataclass(frozen=True)
class FedNova(Algorithm[Server, None]):
    """Updates are divided by the length of local work, so that more steps do not mean more say.

    mu: strength of a proximal term (μ/2)‖w − wᵗ‖² in the local steps
    gamma: momentum of the server
    tau_eff: the common step: Σp‖a‖ (a), Σpτ (steps), or as the authors (auto: steps if μ>0)
    """

    local: Local = Local()
    mu: Annotated[float, ">= 0"] = 0.0
    gamma: Annotated[float, ">= 0", "< 1"] = 0.0
    tau_eff: Literal["auto", "a", "steps"] = "auto"
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        optimizer = self.local.optimizer
        if not isinstance(optimizer, SGD) or optimizer.nesterov or self.local.clip is not None:
            raise InputError(
                "‖a‖₁ is known for SGD with momentum only; drop clip, use plain momentum"
            )
        refuse_rates(self.local, "‖a‖₁ counts steps of one size")

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=SGD(momentum=self.gamma).init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        counts_steps = self.tau_eff == "steps" or (self.tau_eff == "auto" and self.mu > 0)
        change = (up.steps if counts_steps else up.a) * up.d
        if not self.gamma:
            return Server(w=s.w + change, opt=s.opt)
        eta = rate(self.local.lr, cohort.round)  # the buffer is in units of a gradient
        w, opt = apply(SGD(lr=eta, momentum=self.gamma), s.w, -change / eta, s.opt)
        return Server(w=w, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        local = replace(self.local, correct=(*self.local.correct, Prox(self.mu)))
        run = site.train(local if self.mu else self.local, down.w)
        a = self._length(run.steps, run.lr)
        return Up(d=run.delta / a, a=a, steps=float(run.steps)), mine

    def _length(self, steps: int, lr: float) -> float:
        rho = self.local.optimizer.momentum if isinstance(self.local.optimizer, SGD) else 0.0
        v = a = 0.0
        for _ in range(steps):
            v = rho * v + 1.0 - lr * self.mu * a
            a += v
        return a
