"""Gradient rules and corrections: lengths, zeros and identities, for any vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedrift.core import (
    ASAM,
    SAM,
    SVRG,
    Blend,
    Extra,
    Linear,
    Objective,
    Plain,
    Problem,
    Prox,
    Vec,
    define,
    norm,
)
from fedrift.core.local import LocalStep

WEIGHTS, BIASES = 3, 2


class Point(nn.Module):
    """Nothing but a vector; the loss below makes any wished-for vector its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))
        self.bias = nn.Parameter(torch.zeros(BIASES))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.weight, self.bias]).expand(len(x), -1)


def linear_loss(output: Tensor, slope: Tensor) -> Tensor:
    return (output * slope).sum(-1).mean()


def curved_loss(output: Tensor, slope: Tensor) -> Tensor:
    return (output * slope + torch.cosh(output)).sum(-1).mean()


def task(loss: Any) -> Problem:
    probe = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, 5, dtype=torch.float64)
    how: dict[str, Any] = {"population": 1, "participation": 1.0, "rounds": 1}
    return define(Point, loss, probe, init_seed=0, dtype=torch.float64, classification=False, **how)


LINEAR, CURVED = task(linear_loss), task(curved_loss)


class Watched:
    """A real step that remembers where gradients were taken."""

    def __init__(self, problem: Problem, w: Vec, slope: Vec) -> None:
        self.step: LocalStep = problem.step
        self.step.w.copy_(w)
        self.step.start.copy_(w)
        batch = torch.zeros(1, 1, dtype=torch.float64), slope.unsqueeze(0)
        self.step.begin(0, 0.1, batch)
        self.points: list[Vec] = []
        self.w, self.start = self.step.w, self.step.start
        self.k, self.steps, self.lr = 0, 1, 0.1
        self.ahead, self.buffer, self.is_bias = (
            self.step.ahead,
            self.step.buffer,
            self.step.is_bias,
        )
        self.batch, self.forward = batch, self.step.forward

    def grad(self, at: Vec, objective: Objective | None = None) -> Vec:
        self.points.append(at.clone())
        return self.step.grad(at, objective)


NUMBER = st.floats(-10, 10).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
VECTOR = st.lists(NUMBER, min_size=5, max_size=5).map(
    lambda xs: torch.tensor(xs, dtype=torch.float64)
)
RHO = st.floats(1e-3, 5.0)
often = settings(max_examples=50, deadline=None)


@often
@given(VECTOR, VECTOR, RHO)
def test_sam_looks_exactly_rho_ahead_along_the_gradient(w: Vec, g: Vec, rho: float) -> None:
    assume(float(norm(g)) > 1e-3)
    step = Watched(LINEAR, w, g)
    SAM(rho)(step)
    e = step.points[1] - w
    assert float(norm(e)) == pytest.approx(rho, rel=1e-9)
    torch.testing.assert_close(e, rho * g / norm(g), rtol=1e-9, atol=1e-12)
    assert torch.equal(step.w, w), "w itself stays"


@often
@given(VECTOR, VECTOR, RHO, st.floats(0.01, 1.0))
def test_asam_looks_rho_ahead_in_its_own_coordinates(
    w: Vec, g: Vec, rho: float, eta: float
) -> None:
    assume(float(norm(g)) > 1e-3)
    step = Watched(LINEAR, w, g)
    ASAM(rho, eta)(step)
    t = w.abs() + eta
    t[WEIGHTS:] = 1.0  # a bias is not scaled
    e = step.points[1] - w
    assert float(norm(e / t)) == pytest.approx(rho, rel=1e-9)
    torch.testing.assert_close(e, rho * t * t * g / norm(t * g), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [SAM(0.5), ASAM(0.5, 0.2), Extra(0.5, 0.9)])
@pytest.mark.parametrize("zero", [True, False])
def test_no_gradient_or_no_radius_means_no_perturbation(rule: Any, zero: bool) -> None:
    w = torch.tensor([1.0, -2.0, 0.3, 0.0, 5.0], dtype=torch.float64)
    g = torch.zeros_like(w) if zero else torch.ones_like(w)
    if not zero:
        rule = {SAM: SAM(0.0), ASAM: ASAM(0.0, 0.2), Extra: Extra(0.0, 0.9)}[type(rule)]
    step = Watched(LINEAR, w, g)
    assert torch.equal(rule(step), g)
    assert torch.equal(step.points[1], w), "bit for bit"


@often
@given(VECTOR, VECTOR, st.floats(0, 1))
def test_extra_blends_here_and_ahead(w: Vec, g: Vec, alpha: float) -> None:
    w = w / 10  # cosh stays small
    here = Plain()(Watched(CURVED, w, g)).clone()
    assume(float(norm(here)) > 1e-3)
    ahead = SAM(0.1)(Watched(CURVED, w, g)).clone()
    blend = Extra(0.1, alpha)(Watched(CURVED, w, g))
    torch.testing.assert_close(blend, (1 - alpha) * here + alpha * ahead, rtol=1e-9, atol=1e-12)


@often
@given(VECTOR, VECTOR, VECTOR)
def test_a_correction_of_no_strength_does_nothing(w: Vec, g: Vec, m: Vec) -> None:
    step = Watched(LINEAR, w, g)
    step.start.copy_(m)
    for nothing in (Prox(0.0), Prox(0.0, anchor=m), Blend(1.0, m), Linear(torch.zeros(5))):
        d = g.clone()
        nothing(d, step)
        assert torch.equal(d, g), nothing


@often
@given(VECTOR, VECTOR, VECTOR, st.floats(-2, 2))
def test_prox_pulls_to_the_start_or_to_the_anchor(w: Vec, g: Vec, to: Vec, mu: float) -> None:
    step = Watched(LINEAR, w, g)
    d = g.clone()
    Prox(mu)(d, step)
    assert torch.equal(d, g), "at the start the pull is exactly zero"
    Prox(mu, anchor=to)(d, step)
    torch.testing.assert_close(d, g + mu * (w - to), rtol=1e-12, atol=1e-12)
    step.start.copy_(to)
    started = g.clone()
    Prox(mu)(started, step)
    assert torch.equal(started, d)


@often
@given(VECTOR, VECTOR, VECTOR)
def test_svrg_at_its_own_point_is_the_mean_exactly(w: Vec, slope: Vec, mean: Vec) -> None:
    w = w / 10
    step = Watched(CURVED, w, slope)
    g = Plain()(step)
    SVRG(at=w.clone(), mean=mean)(g, step)
    assert torch.equal(g, mean)


@often
@given(VECTOR, VECTOR, st.floats(0, 1))
def test_blend_and_linear_are_what_they_say(g: Vec, m: Vec, alpha: float) -> None:
    step = Watched(LINEAR, m, g)
    d, sum_ = g.clone(), g.clone()
    Blend(alpha, m)(d, step)
    torch.testing.assert_close(d, alpha * g + (1 - alpha) * m, rtol=1e-12, atol=1e-12)
    Linear(m)(sum_, step)
    assert torch.equal(sum_, g + m)


def test_pieces_leave_one_anothers_buffers_alone() -> None:
    """Two rules and two corrections in one step: every gradient keeps its own memory."""
    w = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.5], dtype=torch.float64)
    slope = torch.ones_like(w)
    at_zero = Plain()(Watched(CURVED, torch.zeros_like(w), slope)).clone()
    step = Watched(CURVED, w, slope)
    plain = Plain()(step)
    kept = plain.clone()
    ahead = ASAM(0.3, 0.1)(step)
    before = ahead.clone()
    SVRG(at=torch.zeros_like(w), mean=slope)(plain, step)
    assert torch.equal(ahead, before)
    torch.testing.assert_close(plain, kept - at_zero + slope, rtol=1e-12, atol=1e-12)
