"""Sharpness of quadratics in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrift.analysis import Objective, sharpness
from fedrift.analysis.sharpness import rises, scale_of
from fedrift.core import Layout
from tests.support.curved import Counting, net, quadratic, symmetric


def test_one_step_on_a_quadratic() -> None:
    a, b = np.diag([4.0, 1.0]), np.array([1.0, 2.0])
    problem, data = quadratic(a, b)
    w = torch.tensor([0.5, -1.0], dtype=torch.float64)
    g = a @ w.numpy() + b  # (3, 1)
    e = 0.3 * g / np.linalg.norm(g)
    base, one, ascent = rises(Objective(problem, data), w, 0.3)
    assert base == pytest.approx(0.5 * w.numpy() @ a @ w.numpy() + b @ w.numpy())
    assert one == pytest.approx(g @ e + 0.5 * e @ a @ e)
    assert ascent >= one


def test_ascent_finds_the_sharpest_direction_of_a_minimum() -> None:
    matrix = symmetric(np.array([8.0, 1.0, 0.5, 0.25]))
    problem, data = quadratic(matrix)
    _, one, ascent = rises(Objective(problem, data), torch.zeros(4, dtype=torch.float64), 0.2)
    assert ascent == pytest.approx(0.5 * 0.2**2 * 8.0, rel=1e-3)  # ½ρ²λ₁
    assert 0 < one < ascent  # a random direction is not the sharpest


def test_ascent_goes_in_fifths_of_the_radius_twenty_times() -> None:
    # ½·0.2² is the highest point, 0.2 away: the first of five steps to the edge ends there
    problem, data = quadratic(np.array([[-1.0]]), np.array([0.2]))
    origin = torch.zeros(1, dtype=torch.float64)
    _, _, ascent = rises(Objective(problem, data), origin, 1.0)
    assert ascent == pytest.approx(0.02, abs=1e-12)
    taken = Counting()
    rises(Objective(problem, data), origin, 1.0, watch=taken)
    assert taken.steps == 1 + 1 + 20  # where it begins, one step, the ascent


def test_a_linear_loss_rises_by_rho_times_its_slope() -> None:
    problem, data = quadratic(np.zeros((3, 3)), np.array([2.0, -1.0, 2.0]))
    _, one, ascent = rises(Objective(problem, data), torch.ones(3, dtype=torch.float64), 0.1)
    assert (one, ascent) == pytest.approx((0.3, 0.3))


def test_the_best_point_counts_not_the_last() -> None:
    problem, data = quadratic(np.diag([-1.0, -1.0]))
    w = torch.tensor([0.01, 0.0], dtype=torch.float64)  # downhill everywhere but a little way
    _, one, ascent = rises(Objective(problem, data), w, 1.0)
    assert one < 0
    assert ascent >= 0


def test_adaptive_steps_are_measured_in_weights() -> None:
    problem, data = quadratic(np.zeros((2, 2)), np.array([3.0, 4.0]))
    w = torch.tensor([2.0, -0.5], dtype=torch.float64)
    found = sharpness(Objective(problem, data), w, 0.1, rho_a=0.1, eta_a=0.0)
    # e = ρ T² g / ‖T g‖ with T = |w|: rise ρ ‖T g‖
    assert found.adaptive_one_step == pytest.approx(0.1 * np.hypot(6.0, 2.0))
    assert found.adaptive_ascent == pytest.approx(0.1 * np.hypot(6.0, 2.0))
    assert found.one_step == pytest.approx(0.5)


def test_adaptive_sharpness_does_not_change_when_weights_are_rescaled() -> None:
    matrix, slope = symmetric(np.array([3.0, 1.0, 0.3])), np.array([1.0, -2.0, 0.5])
    w = torch.tensor([1.0, -0.4, 2.0], dtype=torch.float64)
    units = np.diag([10.0, 0.1, 3.0])  # w = units · v
    found = []
    for a, b, point in (
        (matrix, slope, w),
        (units @ matrix @ units, units @ slope, torch.from_numpy(np.linalg.inv(units) @ w.numpy())),
    ):
        problem, data = quadratic(a, b)
        found.append(sharpness(Objective(problem, data), point, rho_a=0.2, eta_a=0.0))
    assert found[0].adaptive_ascent == pytest.approx(found[1].adaptive_ascent)
    assert found[0].ascent != pytest.approx(found[1].ascent, rel=0.1)


def test_biases_are_not_scaled() -> None:
    layout = Layout(("a.weight", "a.bias"), ((2,), (1,)))
    w = torch.tensor([-3.0, 0.5, 7.0])
    assert scale_of(w, layout, 0.25).tolist() == [3.25, 0.75, 1.0]


def test_the_weights_of_the_model_are_only_borrowed() -> None:
    problem, data = net()
    w = problem.w0.clone()
    first = sharpness(Objective(problem, data), w)
    assert torch.equal(w, problem.w0)
    assert sharpness(Objective(problem, data), w) == first
