"""Invariants of what is remembered: rings, anchors, momenta, step counts; and of ascent points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedrift.conform.inside import Inside
from fedrift.conform.moment import TOLERANCE, Moment
from fedrift.pieces import ASAM
from fedrift.problem import Problem


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
            found = int(m.inside.client(client).opt.count)
            yield f"client {client} counts {found} inner steps, not {expected}"


def window(m: Moment) -> Iterator[str]:
    """FedGF: c is the share of drifted rounds in the window, ‖w̃ − w‖ = ρ_g."""
    if m.is_void:
        return
    if not 0.0 <= m.new.c <= 1.0 or m.new.c != sum(m.new.window) / len(m.new.window):
        yield f"c = {m.new.c} is not the mean of the window"
    drifts = [float(seen.up["delta"].double().norm()) for seen in m.visits()]
    if m.new.window[-1] != int(sum(drifts) / len(drifts) > m.algorithm.threshold):
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
        asked = model.grad_at

        def watched(at: Tensor, *rest: Any) -> Tensor:
            if self._second:
                self.pairs.append((model.w.clone(), at.clone()))
            self._second = not self._second
            return asked(at, *rest)

        model.grad_at = watched

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
