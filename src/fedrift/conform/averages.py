"""Invariants of server rules: means over the cohort, means over everybody, averaged models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedrift.algorithms.finetune import FineTune
from fedrift.algorithms.swa import SWA
from fedrift.algorithms.wima import WiMA
from fedrift.conform.moment import Invariant, Moment
from fedrift.optim import rate


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
