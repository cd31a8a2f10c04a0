"""Flat vectors: layouts, gradients, norms; a bound model that neither copies nor pickles."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.core import Layout, Problem, Vec, cosine, define, dot, norm, unit
from fedrift.core.flat import add_each, is_finite
from fedrift.core.flat_model import CHUNK, FlatModel
from tests.support.problems import Net, blobs


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.out = nn.Linear(3 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x)).flatten(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Frozen(nn.Module):
    """A random body that is not trained: every process must hold the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16).requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(16, 4)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * torch.tanh(self.body(x)) + self.get_buffer("shift"))


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.LazyLinear(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.first(x)))


def images(n: int = 12, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return blobs(8 * n)[0].reshape(n, 1, 8, 8).to(dtype), torch.arange(n) % 4


def samples(n: int = 12, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x, y = blobs(n)
    return x.to(dtype), y


def task(
    make: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], dtype: torch.dtype = torch.float32
) -> Problem:
    probe = batch[0][:2], batch[1][:2]
    how: dict[str, Any] = {"population": 1, "participation": 1.0, "rounds": 1, "dtype": dtype}
    return define(make, F.cross_entropy, probe, init_seed=7, **how)


def bound(problem: Problem) -> FlatModel:
    problem.model.w.copy_(problem.w0)
    problem.model.module.train()
    return problem.model


@torch.no_grad()
def descend(model: FlatModel, batch: tuple[Tensor, Tensor]) -> None:
    add_each(model.parameters, model.gradients(batch), -0.5)


def by_autograd(problem: Problem, batch: tuple[Tensor, Tensor]) -> Vec:
    module = problem.module(problem.w0, {})
    F.cross_entropy(module(batch[0]), batch[1]).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "data"), [(Net, samples), (Conv, images), (Tied, samples)])
def test_gradient_is_that_of_autograd(make: Any, data: Any, dtype: torch.dtype) -> None:
    batch = data(dtype=dtype)
    problem = task(make, batch, dtype)
    g = bound(problem).grad(batch)
    assert g.dtype == dtype
    torch.testing.assert_close(g, by_autograd(problem, batch), rtol=0, atol=TOLERANCE[dtype])


def test_a_tied_parameter_stands_in_the_vector_once() -> None:
    problem = task(Tied, samples())
    assert problem.layout.names == ("first.weight", "first.bias", "second.bias")
    module = problem.module(problem.w0 + 1.0, {})
    assert module.get_parameter("second.weight") is module.get_parameter("first.weight")


def test_the_vector_and_the_module_are_the_same_memory() -> None:
    batch = samples()
    model = bound(task(Net, batch))
    before = model.output(batch[0])
    model.w.mul_(2.0)
    assert not torch.equal(model.output(batch[0]), before)
    with torch.no_grad():
        model.module.get_parameter("out.bias").fill_(3.0)
        assert torch.equal(model.w[-4:], torch.full((4,), 3.0))
        add_each(model.parameters, [torch.ones_like(p) for p in model.parameters], 1.0)
    assert torch.equal(model.w[-4:], torch.full((4,), 4.0))


@pytest.mark.parametrize("n", [CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 452])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_batch_in_chunks_is_the_mean_over_all_of_it(n: int, dtype: torch.dtype) -> None:
    batch = samples(n, dtype)
    problem = task(Net, batch, dtype)
    g = bound(problem).grad(batch)
    torch.testing.assert_close(g, by_autograd(problem, batch), rtol=0, atol=TOLERANCE[dtype])


def test_chunks_weigh_by_the_labels_that_count() -> None:
    """−100 marks a sample without label: the mean is over the others, in chunks as at once."""
    x, y = samples(2 * CHUNK, torch.float64)
    y[: CHUNK - 10] = -100
    problem = task(Net, (x[CHUNK:], y[CHUNK:]), torch.float64)
    torch.testing.assert_close(
        bound(problem).grad((x, y)), by_autograd(problem, (x, y)), rtol=0, atol=1e-12
    )


def test_many_samples_without_a_label_are_as_few() -> None:
    x, y = samples(CHUNK + 1, torch.float64)
    y.fill_(-100)
    problem = task(Net, (x, y.clamp_min(0)), torch.float64)
    model = problem.model
    many, few = model.gradients((x, y)), model.gradients((x[:9], y[:9]))
    for a, b in zip(many, few, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_a_gradient_elsewhere_leaves_the_model_where_it_was() -> None:
    batch = samples()
    problem = task(Net, batch)
    model = bound(problem)
    model.w.div_(3.0)
    here = model.w.clone()
    elsewhere = model.grad_at(problem.w0, batch).clone()
    assert torch.equal(model.w, here)
    assert torch.equal(elsewhere, bound(problem).grad(batch))
    with pytest.raises(RuntimeError):
        model.grad_at(here, (batch[0][:, :3], batch[1]))
    assert torch.equal(model.w, problem.w0), "also after a failure"


def test_norm_and_dot_keep_their_digits_in_float32() -> None:
    x, y = torch.rand(2, 3_000_001, generator=torch.Generator().manual_seed(0))
    exact_norm = torch.linalg.vector_norm(x.double())
    exact_dot = (x.double() * y.double()).sum()
    assert norm(x).shape == (1,) and norm(x).dtype == torch.float64
    torch.testing.assert_close(norm(x)[0], exact_norm, rtol=2e-7, atol=0)
    torch.testing.assert_close(dot(x, y)[0], exact_dot, rtol=2e-7, atol=0)


@pytest.mark.parametrize("d", [1, 2, 4096, 4099])
def test_norms_of_a_stack_are_those_of_its_rows(d: int) -> None:
    x = torch.randn(3, d, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert norm(x).shape == (3, 1)
    torch.testing.assert_close(norm(x)[:, 0], torch.stack([norm(row)[0] for row in x]))
    torch.testing.assert_close(norm(unit(x)), torch.ones(3, 1, dtype=torch.float64))
    torch.testing.assert_close(cosine(x, -2 * x), -torch.ones(3, 1, dtype=torch.float64))


def test_the_zero_vector_has_no_direction() -> None:
    zero = torch.zeros(5)
    assert torch.equal(unit(zero), zero)
    assert cosine(zero, torch.ones(5)) == 0


def test_is_finite_is_not_fooled_by_the_sum() -> None:
    assert is_finite(torch.full((10,), 3e38)), "the sum overflows, no element does"
    assert not is_finite(torch.tensor([float("inf"), -float("inf")]))
    assert not is_finite(torch.tensor([1.0, float("nan")]))
    assert is_finite(torch.tensor([1, 2]))


def test_a_bound_model_refuses_to_be_copied() -> None:
    problem = task(Net, samples())
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="Problem"):
            copied(bound(problem))


def test_a_pickled_problem_still_trains() -> None:
    batch = samples()
    problem = task(Net, batch)
    bound(problem)
    again: Problem = pickle.loads(pickle.dumps(problem))
    model = bound(again)
    descend(model, batch)
    assert not torch.equal(model.w, problem.w0)
    assert float(model.loss(model.w.clone(), batch)) < float(model.loss(problem.w0, batch))


def test_frozen_parameters_are_not_in_the_vector_but_everywhere_the_same() -> None:
    batch = samples()
    problem = task(Frozen, batch)
    assert problem.layout.names == ("scale", "head.weight", "head.bias")
    assert set(problem.rest) == {"body.weight", "body.bias", "shift"}
    again: Problem = pickle.loads(pickle.dumps(problem))
    assert torch.equal(bound(problem).output(batch[0]), bound(again).output(batch[0]))
    assert torch.equal(problem.module(problem.w0, {})(batch[0]), bound(again).output(batch[0]))
    body = problem.rest["body.weight"].clone()
    descend(problem.model, batch)
    assert torch.equal(problem.model.module.get_parameter("body.weight"), body)


def test_a_lazy_module_takes_its_shapes_from_the_data() -> None:
    batch = samples()
    problem = task(Lazy, batch)
    assert problem.layout.sizes == (48, 6, 24, 4)
    g = bound(problem).grad(batch)
    torch.testing.assert_close(g, by_autograd(problem, batch), rtol=0, atol=1e-6)


def test_a_module_may_be_its_own_head() -> None:
    batch = samples()
    problem = task(lambda: nn.Linear(8, 4), batch)
    assert problem.layout.names == ("weight", "bias")
    assert (problem.head, problem.feature_dim, problem.classes) == ("", 8, 4)
    assert torch.equal(problem.model.features(problem.w0, batch[0]), batch[0])
    head = torch.arange(36.0).reshape(9, 4)
    w = problem.put_head(problem.w0, head)
    assert torch.equal(problem.layout.named(w)["weight"], head[:8].T)
    assert torch.equal(problem.layout.named(w)["bias"], head[8])


def test_a_layout_cuts_vectors_and_stacks_alike() -> None:
    layout, w = Layout(("a", "b", "c"), ((2, 3), (), (4,))), torch.arange(11.0)
    assert [tuple(v.shape) for v in layout.views(w)] == [(2, 3), (), (4,)]
    assert [tuple(v.shape) for v in layout.views(w.repeat(5, 1))] == [(5, 2, 3), (5,), (5, 4)]
    assert layout.select(lambda name: name != "a").size == 5
