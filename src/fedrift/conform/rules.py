"""The invariants of single algorithms: server rules, what is remembered, ascent points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedrift.algorithms.fed3r_finetune import FineTune
from fedrift.algorithms.swa import SWA
from fedrift.algorithms.wima import WiMA
from fedrift.conform.watched_run import TOLERANCE, Inside, Invariant, Moment, Seen
from fedrift.core.optim import rate
from fedrift.core.pieces import ASAM
from fedrift.core.problem import Problem


def mean_over_all(leaf: str) -> Invariant:
    """The server's vector is the mean of all clients' (c = mean c_i, h = mean h_i)."""

    def invariant(m: Moment) -> Iterator[str]:
        yield from m.differ(getattr(m.new, leaf), m.over_all(leaf), f"{leaf} − mean {leaf}_i")

    return invariant


def moves_by_mean(m: Moment) -> Iterator[str]:
    """w⁺ = w + η_s Σ p_i Δ_i."""
    if not m.is_void:
        server_lr = getattr(m.algorithm, "server_lr", 1.0)
        moved = m.old.w.double() + server_lr * m.mean("delta", "train")
        yield from m.differ(m.new.w, moved, "w")


def sent_its_version(m: Moment) -> Iterator[str]:
    """A client that arrives was sent the model of the round in which it left."""
    for seen, staleness in m.arrived():
        left = m.t - staleness
        versions = [report.weights for report in m.inside.reports]
        w = m.inside.problem.w0 if left == 0 else versions[left - 1]
        if staleness < 0 or not torch.equal(seen.down["w"], w):
            yield f"client {seen.client} left in round {left + 1} with another model"


def adds_buffer(m: Moment) -> Iterator[str]:
    """FedBuff: w⁺ = w + η_g/K Σ Δ_i/√(1 + s_i) over K arrivals."""
    arrived, rule = m.arrived(), m.algorithm
    if not arrived:
        return
    if len(arrived) != rule.buffer and not m.inside.is_drained:
        yield f"{len(arrived)} arrivals make round {m.report.round}, not {rule.buffer}"
    total = sum(seen.up["delta"].double() / (1 + s) ** 0.5 for seen, s in arrived)
    yield from m.differ(m.new.w, m.old.w.double() + rule.server_lr / rule.buffer * total, "w")


def mixes_arrival(m: Moment) -> Iterator[str]:
    """FedAsync: w⁺ = (1 − α_t) w + α_t w_i with α_t = α (s + 1)^−a."""
    arrived, rule = m.arrived(), m.algorithm
    if not arrived:
        return
    [(seen, s)] = arrived
    share = rule.alpha * (s + 1) ** -rule.a
    mixed = (1 - share) * m.old.w.double() + share * seen.up["sent"].double()
    yield from m.differ(m.new.w, mixed, "w")


def moves_by_gradient(m: Moment) -> Iterator[str]:
    """w⁺ = w − η Σ p_i g_i."""
    if not m.is_void:
        eta = rate(m.algorithm.local.lr, m.t)
        yield from m.differ(m.new.w, m.old.w.double() - eta * m.mean("g"), "w")


def moves_by_length(m: Moment) -> Iterator[str]:
    """FedNova: w⁺ = w + (Σ p a) Σ p Δ/a."""
    if not m.is_void:
        yield from m.differ(m.new.w, m.old.w.double() + m.mean("a") * m.mean("d"), "w")


def subtracts_dual(m: Moment) -> Iterator[str]:
    """FedDyn: w⁺ = mean_S w_i − h/α."""
    if not m.is_void:
        strength = getattr(m.algorithm, "alpha", None) or m.algorithm.gamma
        moved = m.old.w.double() + m.mean("delta") - m.new.h.double() / strength
        yield from m.differ(m.new.w, moved, "w")


def momentum(m: Moment) -> Iterator[str]:
    """FedAvgM: v⁺ = βv − D and w⁺ = w − η_s v⁺."""
    if not m.is_void:
        outer = m.algorithm.outer
        v = outer.momentum * m.old.opt.slots[0].double() - m.mean("delta")
        yield from m.differ(m.new.opt.slots[0], v, "v")
        yield from m.differ(m.new.w, m.old.w.double() - outer.lr * v, "w")


def adaptive(m: Moment) -> Iterator[str]:
    """FedAdagrad, FedAdam, FedYogi: the paper's v, then w⁺ = w + η_s m/(√v + τ)."""
    if m.is_void:
        return
    outer: Any = m.algorithm.outer
    change, slots = m.mean("delta"), [s.double() for s in m.old.opt.slots]
    if len(slots) == 1:
        first, second = change, slots[0] + change**2
    else:
        first = (1 - outer.beta1) * change - outer.beta1 * slots[0]  # it was fed −D
        step = (1 - outer.beta2) * change**2
        second = outer.beta2 * slots[1] + step
        if outer.yogi:
            second = slots[1] - step * torch.sign(slots[1] - change**2)
    yield from m.differ(m.new.opt.slots[-1], second, "v")
    moved = m.old.w.double() + outer.lr * first / (second.sqrt() + outer.eps)
    yield from m.differ(m.new.w, moved, "w")


def average_of_captured(m: Moment) -> Iterator[str]:
    """SWA: the average is the mean of the models captured at the ends of cycles, no others."""
    swa: SWA = m.algorithm
    begins = swa.begins(m.inside.problem)
    ends = range(begins + swa.cycle - 1, m.t + 1, swa.cycle)
    visited = {seen.call.round for seen in m.inside.backend.visits}
    models = [
        swa.inner.model(report.state.inner).double()
        for report in m.inside.reports
        if report.round - 1 in ends and report.round - 1 in visited
    ]
    if models:
        yield from m.differ(m.report.weights, torch.stack(models).mean(0), "w_SWA")


def average_of_last(m: Moment) -> Iterator[str]:
    """WiMA: the evaluated model is the mean of the last W global models."""
    wima: WiMA = m.algorithm
    visited = {seen.call.round for seen in m.inside.backend.visits}
    models = [
        wima.inner.model(report.state.inner).double()
        for report in m.inside.reports
        if report.round - 1 in visited
    ]
    if models:
        expected = torch.stack(models[-wima.window :]).mean(0)
        yield from m.differ(m.report.weights, expected, "the mean of the last models")


def counted_once(m: Moment) -> Iterator[str]:
    """Fed3R: A is symmetric and positive semi-definite, and holds every client's samples once."""
    a: Tensor = m.new.a
    counted = {seen.client for seen in m.inside.backend.visits if seen.call.phase == "statistics"}
    n = sum(int(m.inside.split.sizes[c]) for c in counted)
    if not torch.equal(a, a.T):
        yield "A is not symmetric"
    if float(torch.linalg.eigvalsh(a).min()) < -1e-9 * max(1.0, float(a.abs().max())):
        yield "A has a negative eigenvalue"
    if round(float(a[-1, -1])) != n or round(float(m.new.b[-1].sum())) != n:
        yield f"A counts {float(a[-1, -1]):.0f} samples, not {n}, after round {m.report.round}"


def leaves_the_rest(m: Moment) -> Iterator[str]:
    """Fed3R+FT: in the second stage only the trained part moves, the rest keeps its bits."""
    tuned: FineTune = m.algorithm
    if not m.new.is_tuning:
        return
    names = m.inside.problem.layout
    before = names.named(tuned.first.model(m.new.first))
    trained = tuned.view("second", m.inside.problem).layout.names
    for name, value in names.named(m.report.weights).items():
        if name not in trained and not torch.equal(value, before[name]):
            yield f"'{name}' is frozen but has moved after round {m.report.round}"


# Models of the clients' own.


def inner_moves_by_mean(m: Moment) -> Iterator[str]:
    """The algorithm inside, where it has a model of its own: w⁺ = w + Σ p_i Δ_i."""
    if not m.is_void and hasattr(m.old.inner, "w"):
        moved = m.old.inner.w.double() + m.mean("delta", "inner.train")
        yield from m.differ(m.new.inner.w, moved, "w")


def kept_start(m: Moment) -> Iterator[str]:
    """The server never learns what is kept: there its model has the bits it began with."""
    problem, names = m.inside.problem, m.algorithm.names
    start, now = (problem.layout.named(w) for w in (problem.w0, m.report.weights))
    for name in names:
        if name in start and not torch.equal(start[name], now[name]):
            yield f"the server's '{name}', which is kept, has moved after round {m.report.round}"
    shared = problem.layout.size - sum(start[n].numel() for n in names if n in start)
    for seen in m.visits():
        for path, leaf in {**seen.down, **seen.up}.items():
            if isinstance(leaf, Tensor) and leaf.dim() and leaf.numel() != shared:
                yield f"'{path}' travels with {leaf.numel()} numbers, {shared} are shared"


def sends_nothing(m: Moment) -> Iterator[str]:
    """Local training alone: no message holds a number."""
    for seen in m.visits():
        for path, leaf in {**seen.down, **seen.up}.items():
            if not isinstance(leaf, Tensor) or leaf.numel():
                yield f"'{path}' is sent"


def controls_inside(m: Moment) -> Iterator[str]:
    """SCAFFOLD inside another: c is the mean of the c_i that the wrapper keeps for it."""
    states = [m.inside.client(i).inner for i in range(len(m.inside.split))]
    if all(hasattr(state, "c") for state in states):
        mean = torch.stack([state.c.double() for state in states]).mean(0)
        yield from m.differ(m.new.inner.c, mean, "c − mean c_i")


def own_step(m: Moment) -> Iterator[str]:
    """Ditto: with one step, v⁺ = v − η (∇F_i(v) + λ (v − wᵗ)), held to the model received."""
    for seen in m.visits("inner.train"):
        pulled = _ditto_again(m, seen)
        if pulled is not None:
            yield from m.differ(seen.new["v"], pulled, f"client {seen.client}'s own model")


def _ditto_again(m: Moment, seen: Seen) -> Tensor | None:
    """v after the visit, by plain steps on the whole client; None where it trains minibatches."""
    local, problem = m.algorithm.local(), m.inside.problem
    data = m.inside.split.view(seen.client)
    if local.batch_size is not None and local.batch_size < len(data):
        return None
    model, v = problem.model, seen.mine["v"].clone()
    received, batch, eta = seen.down["w"], data.batch(None), rate(local.lr, m.t)
    model.module.train()
    for _ in range(local.steps_for(len(data), m.inside.trial.seed, m.t, seen.client)):
        v = v - eta * (model.grad_at(v, batch) + m.algorithm.lam * (v - received))
    return v


def moves_by_beta(m: Moment) -> Iterator[str]:
    """pFedMe: w⁺ = (1 − β) w + β mean w_i."""
    if not m.is_void:
        moved = m.old.w.double() + m.algorithm.beta * m.mean("delta", "train")
        yield from m.differ(m.new.w, moved, "w")


def envelope(m: Moment) -> Iterator[str]:
    """pFedMe: w_i moves only along w_i − θ: with one local round Δ_i = −ηλ (w − θ)."""
    local = m.algorithm.local
    for seen in m.visits():
        n = int(m.inside.split.sizes[seen.client])
        if local.steps_for(n, m.inside.trial.seed, m.t, seen.client) == 1:
            step = rate(local.lr, m.t) * m.algorithm.lam
            moved = -step * (seen.down["w"].double() - seen.new["theta"].double())
            yield from m.differ(seen.up["delta"], moved, f"Δ of client {seen.client}")


def mixture(m: Moment) -> Iterator[str]:
    """APFL: a client keeps its own version of w as it sent it, and α stays a weight."""
    for seen in m.visits():
        own = seen.down["w"] + seen.up["delta"]
        yield from m.differ(seen.new["w"], own, f"client {seen.client}'s version of w")
        if not 0.0 <= seen.new["alpha"] <= 1.0:
            yield f"client {seen.client}'s α is {seen.new['alpha']}"


# What is remembered: rings, anchors, momenta, step counts; and ascent points.


def _sent(m: Moment) -> list[Tensor]:
    """The models sent so far, one for each round that was not void."""
    seen = {visit.call.round: visit.down["w"] for visit in m.inside.backend.visits}
    return [seen[t] for t in sorted(seen)]


def ring(m: Moment) -> Iterator[str]:
    """GHBM: m̃ = (w^{t+1−τ} − w^{t+1})/τ once τ models were sent, 0 before."""
    tau = m.algorithm.tau
    tau = max(1, round(1 / m.inside.problem.participation)) if tau == "auto" else tau
    sent = _sent(m)
    expected = (sent[-tau] - m.new.w) / tau if len(sent) >= tau else torch.zeros_like(m.new.w)
    yield from m.differ(m.new.m, expected, "m̃")


def anchor_received(m: Moment) -> Iterator[str]:
    """LocalGHBM: the anchor is the model the client was sent at its last visit."""
    for seen in m.visits():
        if not torch.equal(m.inside.client(seen.client).w, seen.down["w"]):
            yield f"client {seen.client}'s anchor is not the model it received"


def anchor_own(m: Moment) -> Iterator[str]:
    """FedHBM: the anchor is the client's own last model."""
    for seen in m.visits():
        own = seen.down["w"] + seen.up["delta"]
        yield from m.differ(m.inside.client(seen.client).w, own, f"client {seen.client}'s anchor")


def direction(m: Moment) -> Iterator[str]:
    """FedCM: Δ̄ = −Σ p_i Δ_i/(K_i η)."""
    visits = m.visits()
    if not visits:
        return
    local = m.algorithm.local
    rates: list[Tensor] = []
    for seen in visits:
        n = int(m.inside.split.sizes[seen.client])
        steps = local.steps_for(n, m.inside.trial.seed, m.t, seen.client)
        rates.append(seen.up["delta"].double() / (steps * local.lr))
    yield from m.differ(m.new.m, -torch.stack(rates).mean(0), "Δ̄")


def frozen_state(m: Moment) -> Iterator[str]:
    """Mime: s moves once a round, by the mean full gradient, and stays with the server."""
    if m.is_void or not m.new.opt.slots:
        return
    base = m.algorithm.local.optimizer
    phase = "gradient" if m.visits("gradient") else "train"
    fresh = (1 - base.beta) if base.ema else 1.0
    moved = fresh * m.mean("g", phase) + base.beta * m.old.opt.slots[0].double()
    yield from m.differ(m.new.opt.slots[0], moved, "s")
    for seen in m.visits("gradient"):
        mine = m.inside.client(seen.client)
        if mine.w is not None or mine.s is not None:
            yield f"client {seen.client} keeps what it was sent between rounds"


def inner_steps(m: Moment) -> Iterator[str]:
    """DiLoCo: a client's step count grows by its local steps and by nothing else."""
    for client in range(len(m.inside.split)):
        rounds = {v.call.round for v in m.inside.backend.visits if v.client == client}
        n = int(m.inside.split.sizes[client])
        seed = m.inside.trial.seed
        expected = sum(m.algorithm.local.steps_for(n, seed, t, client) for t in rounds)
        if int(m.inside.client(client).opt.count) != expected:
            counted = int(m.inside.client(client).opt.count)
            yield f"client {client} counts {counted} inner steps, not {expected}"


def window(m: Moment) -> Iterator[str]:
    """FedGF: c is the share of drifted rounds in the window, 0 without one, ‖w̃ − w‖ = ρ_g."""
    if m.is_void:
        return
    if m.new.c != sum(m.new.window) / max(1, len(m.new.window)):
        yield f"c = {m.new.c} is not the mean of the window"
    drifts = [float(seen.up["delta"].double().norm()) for seen in m.visits()]
    limit = m.algorithm.limit(m.old.early)
    if limit is None:
        if m.new.window or m.new.early[-1] != m.new.dist:
            yield f"round {m.report.round}, which T_D is taken from, has a bit or no distance"
    elif m.new.window[-1] != int(sum(drifts) / len(drifts) > limit):
        yield f"the bit of round {m.report.round} is not 1[mean ‖Δ_i‖ > T_D]"
    length = (m.new.up.double() - m.new.w.double()).norm()[None]
    yield from m.differ(length, torch.tensor([m.algorithm.rho_g], dtype=length.dtype), "‖w̃ − w‖")


def perturbation(m: Moment) -> Iterator[str]:
    """FedSMOO: ‖s‖ is r, or 0 before the first round."""
    if not m.is_void:
        length = m.new.s.double().norm()[None]
        yield from m.differ(length, torch.tensor([m.algorithm.r], dtype=length.dtype), "‖s‖")


class Ascents:
    """Watches the points at which a model is asked for gradients, two for each step."""

    def __init__(self, inside: Inside) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        """The local model, and the point of the step's second gradient."""
        self._second = False
        model: Any = inside.problem.model
        model.grad_at = self._watched(model, model.grad_at)
        model.gradients_at = self._watched(model, model.gradients_at)

    def _watched(self, model: Any, asked: Callable[..., Any]) -> Callable[..., Any]:
        def watched(at: Tensor, *rest: Any) -> Any:
            if self._second:
                self.pairs.append((model.w.clone(), at.clone()))
            self._second = not self._second
            return asked(at, *rest)

        return watched

    def lengths(self, problem: Problem, rule: Any) -> Tensor:
        """‖e‖ of every step, for ASAM ‖e/T‖."""
        w, at = (torch.stack(side).double() for side in zip(*self.pairs, strict=True))
        if not isinstance(rule, ASAM):
            return (at - w).norm(dim=-1)
        t = w.abs() + rule.eta
        for name, place in problem.layout.named(t).items():
            if "weight" not in name:
                place.fill_(1.0)
        return ((at - w) / t).norm(dim=-1)

    def failures(self, problem: Problem, rule: Any, rho: float) -> list[str]:
        """One sentence if a step's ascent has another length than rho."""
        if not self.pairs:
            return ["no second gradient was taken"]
        # e = (w + e) − w loses digits of w, not of e
        allowed = 30 * TOLERANCE[problem.w0.dtype]
        wrong = float((self.lengths(problem, rule) - rho).abs().max())
        return [] if wrong <= allowed else [f"the ascent's length is off by {wrong:.1e}"]
