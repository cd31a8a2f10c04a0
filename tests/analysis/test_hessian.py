"""Curvature against matrices with a known spectrum and against dense Hessians of a small net."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrift.analysis import Objective, hessian
from fedrift.analysis.case import NotMeasured
from fedrift.analysis.hessian import (
    dense_matrix,
    expected_products,
    spectral_density,
    top_eigenvalues,
    trace,
)
from fedrift.errors import InputError
from tests.support.curved import Counting, dense_hessian, net, problem_of, quadratic, symmetric


def far(size: int) -> torch.Tensor:
    return torch.linspace(-1, 1, size, dtype=torch.float64)


def test_top_eigenvalues_of_a_quadratic_keep_their_sign() -> None:
    spectrum = np.concatenate([[9.0, -7.0, 5.0, 3.0, -2.0], np.linspace(-1, 1, 75)])
    problem, data = quadratic(symmetric(spectrum))
    watch = Counting()
    found = top_eigenvalues(Objective(problem, data), far(80), 5, watch)
    assert found == pytest.approx([9.0, -7.0, 5.0, 3.0, -2.0], rel=1e-3)
    assert 20 <= watch.steps <= 2 * expected_products(5)


def test_a_problem_smaller_than_the_krylov_space_is_solved_densely() -> None:
    problem, data = quadratic(np.diag([2.0, -3.0]))
    assert top_eigenvalues(Objective(problem, data), far(2), 5) == pytest.approx([-3.0, 2.0])


def test_eigenvalues_of_a_net_are_those_of_its_dense_hessian() -> None:
    problem, data = net()
    w = problem.w0 + 0.1 * far(problem.layout.size)
    whole = dense_hessian(problem, w, data).numpy()
    values = np.linalg.eigvalsh(whole)
    wanted = values[np.argsort(-np.abs(values))][:5]
    objective = Objective(problem, data)
    assert top_eigenvalues(objective, w, 5) == pytest.approx(wanted.tolist(), rel=1e-3)
    assert dense_matrix(lambda v: objective.product(w, v), w) == pytest.approx(whole, abs=1e-12)


def test_products_are_finite_differences_of_gradients() -> None:
    problem, data = net()
    objective, w = Objective(problem, data), problem.w0
    v = far(problem.layout.size)
    ahead, behind = objective.grad(w + 1e-5 * v), objective.grad(w - 1e-5 * v)
    assert torch.allclose(objective.product(w, v), (ahead - behind) / 2e-5, atol=1e-8)


def test_a_short_last_chunk_counts_for_its_size() -> None:
    problem, data = net(150)  # 64 + 64 + 22
    whole = Objective(problem, data, chunk=150)
    parts = Objective(problem, data, chunk=64)
    v = far(problem.layout.size)
    assert torch.allclose(parts.product(problem.w0, v), whole.product(problem.w0, v), atol=1e-12)
    assert torch.allclose(parts.grad(problem.w0), whole.grad(problem.w0), atol=1e-12)
    assert parts.loss(problem.w0) == pytest.approx(whole.loss(problem.w0), abs=1e-12)


def test_the_density_has_the_moments_of_the_matrix_seen_by_its_probe() -> None:
    """Exactly those of its probes, which on average are those of the matrix."""
    spectrum = np.concatenate([[6.0, -2.0], np.linspace(0, 1, 38)])
    matrix = symmetric(spectrum)
    problem, data = quadratic(matrix)
    density = spectral_density(Objective(problem, data), far(40), steps=20, probes=10)
    for weights in density.weights:
        assert weights.sum() == pytest.approx(1.0)
    drawn = np.array([hessian._rademacher(40, probe, far(40)).numpy() for probe in range(400)])
    for power in (1, 2, 3):
        raised = np.linalg.matrix_power(matrix, power)
        seen = ((drawn @ raised) * drawn).sum(1) / 40
        assert density.moment(power) == pytest.approx(seen[:10].mean(), rel=1e-9), power
        assert seen.mean() == pytest.approx(np.trace(raised) / 40, rel=0.1), power


def test_enough_steps_find_the_whole_spectrum() -> None:
    spectrum = np.array([5.0, 3.0, 1.0, 0.5, -1.0, -4.0])
    problem, data = quadratic(symmetric(spectrum))
    density = spectral_density(Objective(problem, data), far(6), steps=100)
    assert density.nodes[0] == pytest.approx(np.sort(spectrum))
    grid, curve = density.curve()
    assert np.trapezoid(curve, grid) == pytest.approx(1.0, abs=1e-3)


def test_an_exhausted_space_ends_the_recursion() -> None:
    problem, data = quadratic(np.eye(30) * 2.0)  # every vector is an eigenvector
    density = spectral_density(Objective(problem, data), far(30), steps=10)
    assert density.nodes[0] == pytest.approx([2.0])
    assert density.weights[0] == pytest.approx([1.0])


def test_many_steps_in_single_precision_invent_no_copies() -> None:
    problem, data = net(dtype=torch.float32)
    w = problem.w0
    values = np.linalg.eigvalsh(dense_hessian(problem, w, data).numpy())
    density = spectral_density(Objective(problem, data), w, steps=100)
    largest = np.sort(density.nodes[0])[-3:]
    assert largest == pytest.approx(np.sort(values)[-3:], rel=1e-3)


def test_the_trace_of_a_diagonal_is_exact_and_of_others_within_its_error() -> None:
    problem, data = quadratic(np.diag(np.arange(1.0, 31.0)))
    assert trace(Objective(problem, data), far(30), 2) == pytest.approx((465.0, 0.0))
    problem, data = quadratic(symmetric(np.linspace(-1, 4, 60)))
    found, error = trace(Objective(problem, data), far(60), 200)
    assert 0 < error < 3
    assert abs(found - 90.0) < 4 * error


class Noisy(nn.Module):
    """Drops and normalises in training, which would make its loss depend on chance and batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.out = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.norm(x)))


def test_the_model_is_taken_as_it_is_evaluated() -> None:
    _, (x, y) = net()
    loss = nn.functional.cross_entropy
    problem = problem_of(Noisy, loss, (x[:2], y[:2]), torch.float64)
    mean, spread = x.mean(0), x.var(0)
    moved = {"norm.running_mean": mean, "norm.running_var": spread}
    objective, w = Objective(problem, (x, y), moved=moved), problem.w0
    named = problem.layout.named(w)
    scaled = (x - mean) / (spread + 1e-5).sqrt() * named["norm.weight"] + named["norm.bias"]
    wanted = loss(scaled @ named["out.weight"].T + named["out.bias"], y)
    assert objective.loss(w) == pytest.approx(float(wanted))
    v = far(problem.layout.size)
    assert torch.equal(objective.product(w, v), objective.product(w, v))
    assert torch.equal(objective.grad(w), objective.grad(w))


def test_a_loss_without_curvature_has_eigenvalues_of_zero() -> None:
    problem, data = quadratic(np.zeros((40, 40)), np.ones(40))
    assert top_eigenvalues(Objective(problem, data), far(40), 3) == [0.0, 0.0, 0.0]


def test_what_does_not_converge_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian, "RESTARTS", 1)
    problem, data = quadratic(symmetric(np.linspace(1, 2, 300)))
    assert len(top_eigenvalues(Objective(problem, data), far(300), 5)) < 5


def test_infinite_curvature_is_no_number() -> None:
    problem, data = quadratic(np.full((30, 30), np.inf))
    with pytest.raises(NotMeasured, match="infinite"):
        top_eigenvalues(Objective(problem, data), far(30), 2)


def test_no_data_is_refused() -> None:
    problem, data = net()
    with pytest.raises(InputError, match="no sample"):
        Objective(problem, (data[0][:0], data[1][:0]))
