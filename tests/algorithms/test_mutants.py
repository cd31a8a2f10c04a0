"""Wrong versions of the algorithms, planted one by one: each must be caught by the checks it names.

Most are published mistakes. A mutant replaces one method, piece or function while a test runs;
where a mistake's effect on the golden problem is known, the planted one must show exactly that.
The list of mutants and what caught them is printed at the end of the test run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.algorithms import (
    apfl,
    fedasync,
    fedavg,
    fedbuff,
    fedcm,
    feddyn,
    fedgf,
    ghbm,
    mime,
    pfedme,
    swa,
)
from fedrift.algorithms import scaffold as scaffold_module
from fedrift.algorithms.diloco import DiLoCo
from fedrift.algorithms.ditto import Ditto
from fedrift.algorithms.fed3r import Fed3R
from fedrift.algorithms.fedasync import FedAsync
from fedrift.algorithms.fedavg_finetune import FineTuned
from fedrift.algorithms.fedbuff import FedBuff
from fedrift.algorithms.fedcm import FedCM
from fedrift.algorithms.fednova import FedNova
from fedrift.algorithms.fedrep import HeadThenBody
from fedrift.algorithms.fedsmoo import Perturbed
from fedrift.algorithms.keep import Keep
from fedrift.backends.backend import Fold
from fedrift.conform import closed_form, convergence, generic, golden, identities, invariants
from fedrift.conform.golden import PERSONAL, ROWS
from fedrift.core import SAM, SGD, Adam, Algorithm, Blend, Linear, Prox, advance, apply
from fedrift.engine.clock import Clock, Taken
from tests.support.product import (
    Bench,
    FedAvg,
    Inside,
    Scaffold,
    Trial,
    alternating,
    classifier,
    golden_trial,
    path,
    run_trial,
    subject_of,
    uneven_quadratic,
)

Patch = pytest.MonkeyPatch

# What may catch a mutant: a name, and a function that returns what is wrong.


def faults(killer: str) -> Iterator[str]:
    """Runs a check until it is known: `golden scaffold`, `golden scaffold A`, `limit feddyn`, …"""
    kind, name, *rest = killer.split()
    return iter(CHECKS[kind](name, *rest))


def is_right(killer: str) -> bool:
    return next(faults(killer), None) is None


def _golden(name: str, mode: str = "") -> Iterator[str]:
    if name == "fed3r":
        yield from closed_form.golden_failures()
        return
    rows = [row for row in ROWS if row.name == name and row.mode == (mode or row.mode)]
    own = [row for row in PERSONAL if row.name == name and row.mode == (mode or row.mode)]
    assert rows or own
    for row in rows:
        yield from golden.failures(row)
    for row in own:
        yield from golden.personal_failures(row)


def _identities(name: str) -> Iterator[str]:
    if name == "fed3r":
        yield from closed_form.ridge_failures()
        return
    rows = identities.rows_of(name)
    assert rows
    for row in rows:
        yield from identities.failures(row)


def _limit(name: str) -> list[str]:
    cell = convergence.check(subject_of(name))
    return [] if cell.passed else [cell.text]


def _said(cell: Any) -> list[str]:
    return [cell.text] if cell.passed is False else []


def _bench(**local: Any) -> Bench:
    return Bench(classifier().working(**local), None)  # type: ignore[arg-type]


def _sensitive(text: str, other: str) -> list[str]:
    """μ-sensitivity: the first round must change with the option."""
    first, second = (path(t, golden_trial(rounds=1))[0] for t in (text, other))
    return [f"{text} and {other} do the same"] if torch.equal(first, second) else []


def _refused(text: str) -> list[str]:
    try:
        run_trial(text, golden_trial(rounds=1).working(momentum=0.9))
    except fr.InputError as error:
        return [] if "momentum" in str(error) else ["the refusal does not name momentum"]
    return [f"{text} runs with local momentum"]


def _raw(name: str) -> list[str]:
    """Option II's control variate is the mean raw gradient, for every client's own steps."""
    a, b = (path(text, uneven_quadratic())[-1] for text in (name, f"{name}:momentum_repair=raw"))
    distance = float((a - b).abs().max())
    return [] if distance < 1e-12 else [f"off by {distance:.1e}"]


CHECKS: dict[str, Callable[..., Iterable[str]]] = {
    "golden": _golden,
    "limit": _limit,
    "identities": _identities,
    "invariants": lambda name: _said(invariants.check(subject_of(name))),
    "payload": lambda name: _said(generic.payload(subject_of(name), _bench())),
    "order": lambda name: _said(generic.order(subject_of(name), _bench())),
    "order-with-momentum": lambda n: _said(generic.order(subject_of(n), _bench(momentum=0.9))),
    "sensitivity": _sensitive,
    "refusal": _refused,
    "raw-gradients": _raw,
}

# The mutants.


def flip(monkeypatch: Patch) -> None:
    monkeypatch.setattr(scaffold_module, "Linear", lambda v: Linear(-v))


def _server_rule(monkeypatch: Patch, factor: Callable[[Any], float]) -> None:
    def wrong(self: Scaffold, s: Any, cohort: Any) -> Any:
        up = cohort.ask(self.train, scaffold_module.Down(w=s.w, c=s.c))
        w, opt = apply(self.outer, s.w, -self.server_lr * up.delta, s.opt)
        return scaffold_module.Server(w=w, c=s.c + factor(cohort) * up.dc, opt=opt)

    monkeypatch.setattr(Scaffold, "round", wrong)


def right_rule(monkeypatch: Patch) -> None:
    """No mistake: c += (M/N) mean(Δc). What the wrong rules are told apart from."""
    _server_rule(monkeypatch, lambda cohort: cohort.replies / cohort.population)


def against_server(monkeypatch: Patch) -> None:
    """Clients send c_i⁺ − c instead of c_i⁺ − c_i; the server adds (1/N)Σ of that."""
    right = Scaffold.train

    @wraps(right)
    def wrong(self: Scaffold, site: Any, down: Any, mine: Any) -> Any:
        up, new = right(self, site, down, mine)
        return replace(up, dc=new.c - down.c), new

    monkeypatch.setattr(Scaffold, "train", wrong)
    right_rule(monkeypatch)


def no_division(monkeypatch: Patch) -> None:
    _server_rule(monkeypatch, lambda cohort: cohort.replies)


def mean_over_n(monkeypatch: Patch) -> None:
    _server_rule(monkeypatch, lambda cohort: 1.0 / cohort.population)


def mean_over_cohort(monkeypatch: Patch) -> None:
    """The same when everybody takes part, too fast with a part of them."""
    _server_rule(monkeypatch, lambda cohort: 1.0)


def one_k_for_all(monkeypatch: Patch) -> None:
    """K of the first client for everyone."""
    right = Scaffold._control

    def wrong(self: Scaffold, site: Any, down: Any, mine: Any, run: Any) -> Any:
        return right(self, site, down, mine, replace(run, span=run.lr * 3))

    monkeypatch.setattr(Scaffold, "_control", wrong)


def dual_sign(monkeypatch: Patch) -> None:
    def wrong(w: Any, h: Any, delta: Any, alpha: float, cohort: Any) -> Any:
        h = h + alpha * (cohort.replies / cohort.population) * delta
        return w + delta - h / alpha, h

    monkeypatch.setattr(feddyn, "server_step", wrong)


def dual_mean(monkeypatch: Patch) -> None:
    def wrong(w: Any, h: Any, delta: Any, alpha: float, cohort: Any) -> Any:
        h = h - alpha / cohort.population * delta
        return w + delta - h / alpha, h

    monkeypatch.setattr(feddyn, "server_step", wrong)


def no_tau_eff(monkeypatch: Patch) -> None:
    right = FedNova.round

    def wrong(self: FedNova, s: Any, cohort: Any) -> Any:
        ask = cohort.ask
        cohort.ask = lambda *args: _one(ask(*args))
        return right(self, s, cohort)

    def _one(up: Any) -> Any:
        object.__setattr__(up, "a", 1.0)
        object.__setattr__(up, "steps", 1.0)
        return up

    monkeypatch.setattr(FedNova, "round", wrong)


def minus(monkeypatch: Patch) -> None:
    def wrong(self: FedAvg, s: Any, cohort: Any) -> Any:
        up = cohort.ask(self.train, fedavg.Down(w=s.w))
        w, opt = apply(self.outer, s.w, up.delta, s.opt)
        return fedavg.Server(w=w, opt=opt)

    monkeypatch.setattr(FedAvg, "round", wrong)


def tau_in_the_root(monkeypatch: Patch) -> None:
    def wrong(self: Adam, g: Any, s: Any, w: Any, freeze: bool = False) -> Any:
        m, v = s.slots
        m.mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        v.mul_(self.beta2).add_(g * g, alpha=1 - self.beta2)
        return m / (v + self.eps**2).sqrt()

    monkeypatch.setattr(Adam, "update_", wrong)


def detached_penalty(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Prox, "__call__", lambda self, g, step: None)


def detached_linear(monkeypatch: Patch) -> None:
    monkeypatch.setattr(feddyn, "Linear", lambda v: Linear(torch.zeros_like(v)))


def decaying_momentum(monkeypatch: Patch) -> None:
    def wrong(self: Blend, g: Any, step: Any) -> None:
        g.mul_(self.alpha).add_(self.m.data.mul_(1.0 - self.alpha))

    monkeypatch.setattr(Blend, "__call__", wrong)


def once_a_round(monkeypatch: Patch) -> None:
    held: dict[str, Any] = {}

    def wrong(self: SAM, step: Any) -> Any:
        if step.k == 0:
            held["e"] = (step.ahead(self.rho, step.grad(step.w)) - step.w).clone()
        else:
            step.grad(step.w)
        return step.grad(step.w + held["e"])

    monkeypatch.setattr(SAM, "__call__", wrong)


def layer_by_layer(monkeypatch: Patch) -> None:
    def wrong(self: SAM, step: Any) -> Any:
        g = step.grad(step.w).clone()
        for part in step.model.layout.views(g):
            part.mul_(self.rho / part.norm().clamp_min(1e-12))
        return step.grad(step.w + g)

    monkeypatch.setattr(SAM, "__call__", wrong)


def _ring(monkeypatch: Patch, momentum: Callable[..., Any]) -> None:
    def wrong(self: ghbm.GHBM, s: Any, cohort: Any) -> Any:
        tau = 2 if self.tau == "auto" else self.tau
        up = cohort.ask(self.train, ghbm.DownWithMomentum(w=s.w, m=s.m))
        w, ring = s.w + up.delta, (*s.ring, s.w)[-tau:]
        return ghbm.RingServer(w=w, m=momentum(ring, w, tau), ring=ring)

    monkeypatch.setattr(ghbm.GHBM, "round", wrong)


def before_full(monkeypatch: Patch) -> None:
    _ring(monkeypatch, lambda ring, w, tau: (ring[0] - w) / tau)


def by_queue_length(monkeypatch: Patch) -> None:
    _ring(monkeypatch, lambda ring, w, tau: (ring[0] - w) / len(ring))


def anchor_received(monkeypatch: Patch) -> None:
    right = ghbm.FedHBM.train

    @wraps(right)
    def wrong(self: Any, site: Any, down: Any, mine: Any) -> Any:
        up, _ = right(self, site, down, mine)
        return up, ghbm.Anchor(w=down.w, round=site.round)

    monkeypatch.setattr(ghbm.FedHBM, "train", wrong)


def frozen_correction(monkeypatch: Patch) -> None:
    class Still:
        def __init__(self, mu: float, anchor: Any) -> None:
            self.mu, self.anchor = mu, anchor

        def __call__(self, g: Any, step: Any) -> None:
            g.add_(step.start - self.anchor, alpha=self.mu)

    monkeypatch.setattr(ghbm, "Prox", Still)


def own_anchor(monkeypatch: Patch) -> None:
    """LocalGHBM with the anchor of FedHBM."""
    right = ghbm.LocalGHBM.train

    @wraps(right)
    def wrong(self: Any, site: Any, down: Any, mine: Any) -> Any:
        up, new = right(self, site, down, mine)
        return up, replace(new, w=down.w + up.delta)

    monkeypatch.setattr(ghbm.LocalGHBM, "train", wrong)


def one_optimizer(monkeypatch: Patch) -> None:
    right, held = SGD.init, dict[Any, Any]()

    def wrong(self: SGD, w: Any) -> Any:
        return held.setdefault((self, w.shape), right(self, w))

    monkeypatch.setattr(SGD, "init", wrong)


def momentum_allowed(monkeypatch: Patch) -> None:
    for module in (fedcm, ghbm, mime, mime):
        monkeypatch.setattr(module, "refuse_memory", lambda *args: None)
    monkeypatch.setattr(Scaffold, "check", lambda self, p: None)


def everyone_alike(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Algorithm, "weighting", lambda self: "uniform")


def mean_span(monkeypatch: Patch) -> None:
    """Δ̄ divided by the first client's rate × steps for all."""
    right = FedCM.train

    @wraps(right)
    def wrong(self: Any, site: Any, down: Any, mine: Any) -> Any:
        up, new = right(self, site, down, mine)
        return replace(up, span=0.3), new

    monkeypatch.setattr(FedCM, "train", wrong)


def state_too_early(monkeypatch: Patch) -> None:
    """Mime whose clients use the momentum that already holds this round's gradient."""

    def wrong(self: mime.Mime, s: Any, cohort: Any) -> Any:
        c = cohort.ask(self.gradient, mime.Down(w=s.w, opt=s.opt)).g
        opt = advance(self.local.optimizer, c, s.opt, s.w)
        cohort.ask(self.gradient, mime.Down(w=s.w, opt=opt))
        up = cohort.ask(self.train, mime.DownMean(c=c))
        return mime.Server(w=s.w + self.server_lr * up.delta, opt=opt)

    monkeypatch.setattr(mime.Mime, "round", wrong)


def trust_reversed(monkeypatch: Patch) -> None:
    right = fedgf.Toward

    def wrong(rho: float, up: Any, c: float) -> Any:
        return right(rho, up, 1.0 - c)

    monkeypatch.setattr(fedgf, "Toward", wrong)


def dual_once(monkeypatch: Patch) -> None:
    """FedSMOO whose μ moves in the first local step only."""
    right = Perturbed.__call__

    def wrong(self: Perturbed, step: Any) -> Any:
        before = self.mu.clone()
        g = right(self, step)
        if step.k:
            self.mu.copy_(before)
        return g

    monkeypatch.setattr(Perturbed, "__call__", wrong)


def first_of_a_cycle(monkeypatch: Patch) -> None:
    monkeypatch.setattr(swa.SWA, "captures", lambda self, since: since % self.cycle == 0)


def moments_reset(monkeypatch: Patch) -> None:
    right = DiLoCo.train

    @wraps(right)
    def wrong(self: Any, site: Any, down: Any, mine: Any) -> Any:
        up, new = right(self, site, down, mine)
        return up, replace(new, opt=self.local.optimizer.init(down.w))

    monkeypatch.setattr(DiLoCo, "train", wrong)


def ridge_every_round(monkeypatch: Patch) -> None:
    right = Fed3R.round

    def wrong(self: Fed3R, s: Any, cohort: Any) -> Any:
        new = right(self, s, cohort)
        return replace(new, a=new.a + self.ridge * torch.eye(len(new.a), dtype=new.a.dtype))

    monkeypatch.setattr(Fed3R, "round", wrong)


def absent_move(monkeypatch: Patch) -> None:
    """FedPer: every client's personal part is that of the last visit of anybody."""
    right, last = Keep.around, list[Any]()

    def wrong(self: Keep, visit: Any, site: Any, received: Any, mine: Any) -> Any:
        up, new = right(
            self, visit, site, received, replace(mine, own=last[-1] if last else mine.own)
        )
        last[:] = [new.own]
        return up, new

    monkeypatch.setattr(Keep, "around", wrong)


def body_first(monkeypatch: Patch) -> None:
    @wraps(HeadThenBody.train)
    def wrong(
        self: HeadThenBody, site: Any, down: fedavg.Down, mine: None
    ) -> tuple[fedavg.Up, None]:
        head = replace(self.local, epochs=None, steps=self.head_steps)
        run = site.train(self.local, down.w, trains="shared")
        site.train(head, run.w, trains="own", purpose="head")
        return fedavg.Up(delta=run.delta), mine

    monkeypatch.setattr(HeadThenBody, "train", wrong)


def heads_together(monkeypatch: Patch) -> None:
    """FedRep that trains both parts at once is FedPer with more steps."""

    @wraps(HeadThenBody.train)
    def wrong(
        self: HeadThenBody, site: Any, down: fedavg.Down, mine: None
    ) -> tuple[fedavg.Up, None]:
        return fedavg.Up(delta=site.train(self.local, down.w).delta), mine

    monkeypatch.setattr(HeadThenBody, "train", wrong)


def trained_anchor(monkeypatch: Patch) -> None:
    """Ditto: the spring is tied to what the client has just trained."""
    right = Ditto.around

    def wrong(self: Ditto, visit: Any, site: Any, received: Any, mine: Any) -> Any:
        said: list[Any] = []

        def noted(own: Any) -> Any:
            said[:] = visit(own)
            object.__setattr__(moved, "w", received.w + said[0].delta)
            return said

        moved = replace(received)
        return right(self, noted, site, moved, mine)

    monkeypatch.setattr(Ditto, "around", wrong)


def no_chain_rule(monkeypatch: Patch) -> None:
    def wrong(self: Any, g: Any, step: Any) -> None:
        mixed = self.v.lerp(step.w, 1.0 - self.alpha)
        self.v.sub_(step.grad(mixed), alpha=step.lr)

    monkeypatch.setattr(apfl.Mixture, "__call__", wrong)


def server_in_the_mixture(monkeypatch: Patch) -> None:
    """APFL: θ mixes in the server's model instead of the client's version of it."""
    monkeypatch.setattr(
        apfl.APFL,
        "personal",
        lambda self, site, shown, mine: replace(shown, w=self.mixed(mine, shown.w)),
    )


def theta_from_w(monkeypatch: Patch) -> None:
    """pFedMe: θ starts from w instead of from where it was left."""
    right = pfedme.Envelope.__call__

    def wrong(self: Any, step: Any) -> Any:
        self.theta.copy_(step.w)
        return right(self, step)

    monkeypatch.setattr(pfedme.Envelope, "__call__", wrong)


def several_minibatches(monkeypatch: Patch) -> None:
    """pFedMe: K local rounds of one inner step each, so a new minibatch for every step."""
    right = pfedme.PFedMe.train

    @wraps(right)
    def wrong(self: Any, site: Any, down: Any, mine: Any) -> Any:
        steps = site.steps(self.local) * self.inner_steps
        local = replace(self.local, epochs=None, steps=steps)
        return right(replace(self, local=local, inner_steps=1), site, down, mine)

    monkeypatch.setattr(pfedme.PFedMe, "train", wrong)


def whole_mean(monkeypatch: Patch) -> None:
    """pFedMe: the server takes the mean, whatever β is."""

    def wrong(self: Any, s: Any, cohort: Any) -> Any:
        return pfedme.Server(w=s.w + cohort.ask(self.train, pfedme.Down(w=s.w)).delta)

    monkeypatch.setattr(pfedme.PFedMe, "round", wrong)


def tuned_for_good(monkeypatch: Patch) -> None:
    """Fine-tuning one step too many."""
    right = FineTuned.personal
    monkeypatch.setattr(
        FineTuned, "personal", lambda self, *a: right(replace(self, steps=self.steps + 1), *a)
    )


def by_clients_out(monkeypatch: Patch) -> None:
    """FedBuff: the buffer is divided by how many are out, instead of by K."""

    def wrong(self: FedBuff, s: Any, cohort: Any) -> Any:
        up, out = cohort.ask(self.train, fedbuff.Down(w=s.w)), cohort.population
        return replace(s, w=s.w + self.server_lr * up.delta * (cohort.weight / out))

    monkeypatch.setattr(FedBuff, "round", wrong)


def by_sum_of_weights(monkeypatch: Patch) -> None:
    def wrong(self: FedBuff, s: Any, cohort: Any) -> Any:
        up = cohort.ask(self.train, fedbuff.Down(w=s.w))
        return replace(s, w=s.w + self.server_lr * up.delta)

    monkeypatch.setattr(FedBuff, "round", wrong)


def never_stale(monkeypatch: Patch) -> None:
    for cls in (FedBuff, FedAsync):
        monkeypatch.setattr(cls, "discount", lambda self, staleness: 1.0)


def replaced_at_once(monkeypatch: Patch) -> None:
    """Whoever arrives is replaced before the others of the same instant are taken in."""
    right = Clock.arrivals

    def wrong(self: Clock, exchange: Any, size: int, population: int, draw: Any, send: Any) -> Any:
        if len(self._out) < size and self._out:
            total = Taken(Fold(exchange).outcome(), [])
            self._depart(exchange, size, population, draw, send, Counter(), total)
        return right(self, exchange, size, population, draw, send)

    monkeypatch.setattr(Clock, "arrivals", wrong)


def newest_model(monkeypatch: Patch) -> None:
    """FedAsync: the difference is added to the newest model instead of mixing the client's."""

    def wrong(self: FedAsync, s: Any, cohort: Any) -> Any:
        up = cohort.ask(self.train, fedasync.Down(w=s.w))
        return replace(s, w=s.w + self.alpha * cohort.weight * up.sent)

    @wraps(FedAsync.train)
    def differences(self: FedAsync, site: Any, down: Any, mine: None) -> Any:
        run = site.train(self.local, down.w, Prox(self.rho))
        return fedasync.Up(sent=run.delta), mine

    monkeypatch.setattr(FedAsync, "round", wrong)
    monkeypatch.setattr(FedAsync, "train", differences)


@dataclass(frozen=True)
class Mutant:
    """What is planted, and what must catch it."""

    name: str
    plant: Callable[[Patch], None]
    killers: tuple[str, ...]


MUTANTS = (
    Mutant("SCAFFOLD: local sign flipped", flip, ("golden scaffold", "limit scaffold")),
    Mutant(
        "SCAFFOLD: c += mean(c_i⁺ − c)",
        against_server,
        ("golden scaffold A", "invariants scaffold"),
    ),
    Mutant("SCAFFOLD: c += ΣΔc, no 1/N", no_division, ("golden scaffold", "invariants scaffold")),
    Mutant(
        "SCAFFOLD, FedGAMMA: c += mean(Δc)/N",
        mean_over_n,
        ("invariants scaffold", "invariants fedgamma", "golden scaffold F"),
    ),
    Mutant(
        "SCAFFOLD: c += mean(Δc) over the cohort",
        mean_over_cohort,
        ("golden scaffold A", "invariants scaffold"),
    ),
    Mutant("SCAFFOLD II: one K for all clients", one_k_for_all, ("raw-gradients scaffold",)),
    Mutant("FedDyn: h with the wrong sign", dual_sign, ("golden feddyn", "invariants feddyn")),
    Mutant(
        "FedDyn: h uses mean_S/N instead of Σ_S/N",
        dual_mean,
        ("invariants feddyn", "invariants fedspeed", "golden feddyn F"),
    ),
    Mutant("FedNova: without τ_eff", no_tau_eff, ("golden fednova", "identities fednova")),
    Mutant("FedOpt: minus sign", minus, ("golden fedadam", "golden fedadagrad", "golden fedavgm")),
    Mutant("FedOpt: τ inside the root", tau_in_the_root, ("golden fedadam", "invariants fedadam")),
    Mutant(
        "penalty from detached tensors",
        detached_penalty,
        ("sensitivity fedprox:mu=1 fedavg", "golden fedprox", "golden feddyn"),
    ),
    Mutant("linear term from detached tensors", detached_linear, ("golden feddyn",)),
    Mutant(
        "MoFedSAM: shared momentum decayed in place",
        decaying_momentum,
        ("payload mofedsam", "order mofedsam", "golden mofedsam"),
    ),
    Mutant("SAM: perturbation once per round", once_a_round, ("golden fedsam", "golden fedgamma")),
    Mutant("SAM: norm layer by layer", layer_by_layer, ("invariants fedsam",)),
    Mutant("GHBM: momentum before the queue is full", before_full, ("golden ghbm",)),
    Mutant("GHBM: divided by the queue's length", by_queue_length, ("golden ghbm",)),
    Mutant("FedHBM: anchor = received model", anchor_received, ("golden fedhbm",)),
    Mutant("FedHBM: correction frozen at step 0", frozen_correction, ("golden fedhbm",)),
    Mutant("LocalGHBM: anchor = own model", own_anchor, ("golden localghbm", "identities ghbm")),
    Mutant("one local optimizer for all clients", one_optimizer, ("order-with-momentum fedavg",)),
    Mutant(
        "local momentum passed through",
        momentum_allowed,
        tuple(
            f"refusal {name}"
            for name in (
                "scaffold fedgamma fedcm mofedsam ghbm localghbm fedhbm mime mimelite mimemom"
            ).split()
        ),
    ),
    Mutant("sample weights ignored", everyone_alike, ("golden fedavg", "identities fedsgd")),
    Mutant("FedCM: one rate × steps for all clients", mean_span, ("invariants fedcm",)),
    Mutant("Mime: momentum moved before its use", state_too_early, ("golden mimemom",)),
    Mutant("FedGF: c multiplies the local point", trust_reversed, ("golden fedgf",)),
    Mutant("FedSMOO: μ moved once per round", dual_once, ("golden fedsmoo",)),
    Mutant("SWA: captured at the highest rate", first_of_a_cycle, ("invariants swa",)),
    Mutant(
        "DiLoCo: moments reset every round", moments_reset, ("golden diloco", "invariants diloco")
    ),
    Mutant(
        "FedBuff: divided by the clients out",
        by_clients_out,
        ("golden fedbuff", "invariants fedbuff"),
    ),
    Mutant(
        "FedBuff: divided by the sum of weights",
        by_sum_of_weights,
        ("golden fedbuff", "invariants fedbuff"),
    ),
    Mutant(
        "FedAsync, FedBuff: stale replies count in full",
        never_stale,
        ("golden fedbuff", "golden fedasync", "invariants fedbuff", "invariants fedasync"),
    ),
    Mutant(
        "asynchrony: replaced before the others of an instant",
        replaced_at_once,
        ("golden fedasync", "golden fedbuff"),
    ),
    Mutant("FedAsync: adds differences", newest_model, ("golden fedasync", "invariants fedasync")),
    Mutant("FedPer: absent clients' part changes", absent_move, ("golden fedper", "order fedper")),
    Mutant("FedRep: body before head", body_first, ("golden fedrep",)),
    Mutant("FedRep: head and body together", heads_together, ("golden fedrep",)),
    Mutant(
        "Ditto: held to the trained model", trained_anchor, ("golden ditto", "invariants ditto")
    ),
    Mutant("APFL: without the factor α", no_chain_rule, ("golden apfl",)),
    Mutant("APFL: mixes in the server's model", server_in_the_mixture, ("golden apfl",)),
    Mutant("pFedMe: θ starts from w", theta_from_w, ("golden pfedme",)),
    Mutant("pFedMe: a new minibatch every step", several_minibatches, ("golden pfedme",)),
    Mutant("pFedMe: β ignored", whole_mean, ("golden pfedme",)),
    Mutant("fine-tuning: a step too many", tuned_for_good, ("golden finetune",)),
    Mutant("Fed3R: λI added every round", ridge_every_round, ("golden fed3r", "identities fed3r")),
)


@cache
def is_silent(killer: str) -> bool:
    return is_right(killer)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(
    mutant: Mutant, monkeypatch: Patch, record_property: Callable[[str, object], None]
) -> None:
    for killer in mutant.killers:
        assert is_silent(killer), f"'{killer}' complains about the right algorithm"
    mutant.plant(monkeypatch)
    for killer in mutant.killers:
        assert not is_right(killer), f"'{killer}' did not notice"
    record_property("mutant", f"{mutant.name} → {', '.join(mutant.killers)}")


def test_the_right_rule_planted_is_not_killed(monkeypatch: Patch) -> None:
    """What kills the rules beside it is the mistake, not the planting."""
    right_rule(monkeypatch)
    for killer in ("golden scaffold F", "golden scaffold A", "invariants scaffold"):
        assert is_right(killer)


def drift_of_c(trial: Trial) -> float:
    """The largest |c − mean c_i| after any round."""
    inside = Inside("scaffold", trial)
    errors: list[float] = []

    def after(report: fr.RoundReport) -> None:
        mean = torch.stack([inside.client(i).c for i in range(len(inside.split))]).mean(0)
        errors.append(float((report.state.c - mean).abs().max()))

    inside.run(after)
    assert len(errors) == trial.rounds == 10
    return max(errors)


@pytest.mark.parametrize(
    ("plant", "trial", "drifts"),
    [
        (right_rule, golden_trial(), False),
        (right_rule, alternating(golden_trial()), False),
        (against_server, alternating(golden_trial()), True),
        (no_division, golden_trial(), True),
        (mean_over_n, golden_trial(), True),
        (mean_over_cohort, alternating(golden_trial()), True),
    ],
)
def test_a_wrong_server_rule_drives_c_away_from_the_mean_of_all_c_i(
    plant: Callable[[Patch], None], trial: Trial, drifts: bool, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    assert drift_of_c(trial) > 0.1 if drifts else drift_of_c(trial) < 1e-12


# Where a mistake leads on the golden problem is known.
EFFECTS: list[tuple[str, Callable[[Patch], None], str, Trial, int, tuple[float, float]]] = [
    ("flip II", flip, "scaffold", golden_trial(), 10, (36.73, 4.39)),
    ("flip I", flip, "scaffold:option=I", golden_trial(rounds=60), 60, (0.8771, 1.4269)),
    ("c − A", against_server, "scaffold", alternating(golden_trial()), 10, (0.0295, 1.2838)),
    ("no 1/N", no_division, "scaffold", golden_trial(), 2, (0.1099, 1.6386)),
    ("no 1/N, N=4", no_division, "scaffold", golden_trial((1,) * 4), 10, (-0.6998, 1.8133)),
    ("mean/N", mean_over_n, "scaffold", golden_trial(), 2, (-0.0371, 0.8046)),
    ("h sign", dual_sign, "feddyn:alpha=1", golden_trial(), 10, (-6.69, -58.69)),
    ("h mean/N", dual_mean, "feddyn:alpha=1", golden_trial(), 2, (0.1210, 1.2475)),
    ("received", anchor_received, "fedhbm", alternating(golden_trial()), 3, (0.673290, 1.537067)),
    ("frozen", frozen_correction, "fedhbm", alternating(golden_trial()), 3, (-0.101275, 1.253554)),
]


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect[0])
def test_a_mistake_leads_where_it_is_known_to(effect: Any, monkeypatch: Patch) -> None:
    _, plant, text, trial, round, expected = effect
    plant(monkeypatch)
    digits = 1e-6 if len(str(expected[0])) > 7 else 6e-3 if abs(expected[0]) > 1 else 6e-5
    assert path(text, trial)[round - 1].tolist() == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (against_server, "scaffold"),
        (mean_over_cohort, "scaffold"),
        (mean_over_n, "scaffold"),
        (dual_mean, "feddyn:alpha=1"),
    ],
)
def test_some_mistakes_hide(plant: Callable[[Patch], None], text: str, monkeypatch: Patch) -> None:
    """Why both modes are in the table: each of these is invisible in one of them."""
    in_full = plant in (against_server, mean_over_cohort)
    trial = golden_trial() if in_full else alternating(golden_trial())
    right = path(text, trial)[-1]
    plant(monkeypatch)
    assert float((path(text, trial)[-1] - right).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("text", "alternates"),
    [("scaffold", True), ("fedcm", False), ("ghbm:tau=1", False), ("fedhbm", True)],
)
def test_why_momentum_is_refused(text: str, alternates: bool, monkeypatch: Patch) -> None:
    """m = 0.9 passed through unchanged: the golden problem diverges."""
    momentum_allowed(monkeypatch)
    trial = golden_trial(rounds=120).working(momentum=0.9)
    result = run_trial(text, alternating(trial) if alternates else trial)
    assert result.status == "diverged" or float(result.weights.abs().max()) > 1e3
