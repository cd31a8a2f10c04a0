"""Identities of centred kernel alignment, and which layers of a model are compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrift.analysis import linear_cka
from fedrift.analysis.cka import alike, grams, layers
from tests.support.curved import net, problem_of


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("width", [3, 200])
def test_a_representation_is_like_itself(width: int) -> None:
    x = normal(50, width)
    assert linear_cka(x, x) == pytest.approx(1.0)


@pytest.mark.parametrize("width", [5, 120])
def test_orthogonal_maps_shifts_and_isotropic_scaling_change_nothing(width: int) -> None:
    x, y = normal(60, width), normal(60, 7, seed=1) + normal(60, width)[:, :1]
    q, _ = torch.linalg.qr(normal(width, width, seed=2))
    before = linear_cka(x, y)
    assert linear_cka(x @ q, y) == pytest.approx(before)
    assert linear_cka(1e6 * x + 3.0, y) == pytest.approx(before)
    stretched = x * torch.linspace(0.1, 5, width)
    assert linear_cka(stretched, y) != pytest.approx(before, rel=1e-3)


def test_it_is_the_formula_with_features() -> None:
    x, y = normal(40, 6), normal(40, 9, seed=3)
    a, b = x - x.mean(0), y - y.mean(0)
    wanted = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert linear_cka(x, y) == pytest.approx(float(wanted))


def test_independent_representations_are_less_alike_the_more_samples() -> None:
    found = [linear_cka(normal(n, 10), normal(n, 10, seed=5)) for n in (20, 200, 2000)]
    assert 0 < found[2] < found[1] < found[0] < 1


def test_a_constant_layer_is_like_nothing() -> None:
    assert linear_cka(torch.ones(20, 4), normal(20, 4)) == 0.0


def test_every_layer_with_parameters_is_compared() -> None:
    problem, data = net()
    model = problem.model
    assert layers(model) == ["hidden", "out"]
    first = grams(model, problem.w0, data[0], layers(model))
    other = problem.w0.clone()
    problem.layout.named(other)["out.weight"].mul_(-2.0)  # a scaling: only the bias changes
    problem.layout.named(other)["out.bias"].zero_()
    second = grams(model, other, data[0], layers(model))
    between, to_first = alike([first, second], first, "out")
    assert to_first == pytest.approx([1.0, 1.0])
    assert np.array(between) == pytest.approx(np.ones((2, 2)))
    problem.layout.named(other)["hidden.weight"].copy_(normal(16, 8, seed=9))
    third = grams(model, other, data[0], layers(model))
    assert alike([first, third], first, "hidden")[1][1] < 0.95


def test_outputs_do_not_depend_on_how_inputs_are_cut() -> None:
    problem, data = net(600)
    model = problem.model
    whole = {}
    hook = model.module.get_submodule("hidden").register_forward_hook(
        lambda m, x, out: whole.setdefault("hidden", out.detach())
    )
    model.logits(problem.w0, data[0])
    hook.remove()
    cut = grams(model, problem.w0, data[0], ["hidden"])["hidden"]
    flat = whole["hidden"] - whole["hidden"].mean(0)
    k = flat @ flat.T
    assert torch.allclose(cut, k / k.norm(), atol=1e-12)


class Twice(nn.Module):
    """Uses one layer twice, so that it has no one output."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(8, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.same(self.same(x)))


def test_a_layer_used_twice_is_left_out() -> None:
    _, data = net()
    problem = problem_of(
        Twice, nn.functional.cross_entropy, (data[0][:2], data[1][:2]), torch.float64
    )
    assert list(grams(problem.model, problem.w0, data[0], layers(problem.model))) == ["out"]
