"""Optimizers on flat vectors against torch.optim; purity; schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrift.core import (
    SGD,
    Adagrad,
    Adam,
    Cosine,
    Exponential,
    Momentum,
    Optimizer,
    OptState,
    Staircase,
    Vec,
    advance,
    apply,
    rate,
)
from fedrift.core.optim import ADAPTIVE, PerStep, rates_of

D = 6
STEPS = 12


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A start, and the gradient of a curved function with steep and flat directions."""
    g = torch.Generator().manual_seed(3)
    a = torch.logspace(-2, 1, D, dtype=torch.float64).to(dtype)
    b = torch.randn(D, generator=g, dtype=torch.float64).to(dtype)
    start = torch.randn(D, generator=g, dtype=torch.float64).to(dtype)
    return start, lambda w: a * (w - b) + torch.sin(3 * w)


def ours(opt: Optimizer, dtype: torch.dtype = torch.float64) -> Vec:
    w, grad = problem(dtype)
    s = opt.init(w)
    for _ in range(STEPS):
        w, s = apply(opt, w, grad(w), s)
    return w


def theirs(
    make: Callable[[list[Tensor]], torch.optim.Optimizer], dtype: torch.dtype = torch.float64
) -> Tensor:
    start, grad = problem(dtype)
    w = start.clone().requires_grad_(True)
    opt = make([w])
    for _ in range(STEPS):
        w.grad = grad(w.detach())
        opt.step()
    return w.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_torchs_bit_for_bit(
    momentum: float, nesterov: bool, decay: float, dtype: torch.dtype
) -> None:
    how: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    given = ours(SGD(lr=0.05, **how), dtype)
    assert torch.equal(given, theirs(lambda p: torch.optim.SGD(p, lr=0.05, **how), dtype))


TORCH: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "adam": (torch.optim.Adam, [{}, {"betas": (0.8, 0.95), "eps": 1e-4}]),
    "adamw": (torch.optim.AdamW, [{}, {"betas": (0.8, 0.95), "eps": 1e-4}]),
    "adagrad": (torch.optim.Adagrad, [{}, {"initial_accumulator_value": 0.1, "eps": 1e-4}]),
    "rmsprop": (
        torch.optim.RMSprop,
        [
            {},
            {"alpha": 0.9, "momentum": 0.5},
            {"centered": True},
            {"centered": True, "momentum": 0.9},
        ],
    ),
}


@pytest.mark.parametrize("decay", [None, 0.0, 0.1])
@pytest.mark.parametrize(("name", "how"), [(n, h) for n, (_, hows) in TORCH.items() for h in hows])
def test_by_torchs_name_it_is_torchs_optimizer(
    name: str, how: dict[str, Any], decay: float | None
) -> None:
    how = how if decay is None else {**how, "weight_decay": decay}
    kind = TORCH[name][0]
    opt = ADAPTIVE[name](**how)
    expected = theirs(lambda p: kind(p, **how))
    assert opt.lr == kind([torch.zeros(1)]).defaults["lr"]
    torch.testing.assert_close(ours(opt), expected, rtol=0, atol=1e-12)
    w, grad = problem()
    before = opt.init(w)
    after = advance(opt, grad(w), before, w)
    assert all(not s.any() or name == "adagrad" for s in before.slots)
    opt.update_(grad(w), after, w, freeze=True)
    again = advance(opt, grad(w), opt.init(w), w)
    assert all(torch.equal(a, b) for a, b in zip(after.slots, again.slots, strict=True))


def test_a_schedule_over_the_steps_of_a_visit() -> None:
    assert rates_of(PerStep(Exponential(0.4, 0.5)), 7, 3, 3) == [0.4, 0.2, 0.1]
    assert rates_of(PerStep(Staircase(0.4, 2, 0.5)), 0, 0, 4) == [0.4, 0.4, 0.2, 0.2]
    for steps in (1, 4, 9):
        rates = rates_of(PerStep(Cosine(0.4, 99, 0.1)), 2, 0, steps)
        assert rates == [Cosine(0.4, steps, 0.1).at(k, 0) for k in range(steps)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_with_bias_correction_is_torchs_adamw(decay: float) -> None:
    given = ours(
        Adam(lr=0.02, beta1=0.9, beta2=0.95, eps=1e-8, bias_correction=True, weight_decay=decay)
    )
    expected = theirs(
        lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    )
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


def test_adam_without_bias_correction_is_the_plain_recursion() -> None:
    w, grad = problem()
    m, v, first = torch.zeros(D, dtype=w.dtype), torch.full((D,), 1e-6, dtype=w.dtype), w
    for _ in range(STEPS):
        g = grad(w)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        w = w - 0.1 * m / (v.sqrt() + 1e-3)
    given = ours(Adam(lr=0.1, v_init=1e-6))
    assert not torch.equal(given, first)
    torch.testing.assert_close(given, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("v_init", [0.0, 0.3])
def test_adagrad_is_torchs(v_init: float) -> None:
    given = ours(Adagrad(lr=0.3, eps=1e-10, v_init=v_init))
    expected = theirs(
        lambda p: torch.optim.Adagrad(p, lr=0.3, eps=1e-10, initial_accumulator_value=v_init)
    )
    torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)


NUMBERS = st.lists(st.floats(-10, 10), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(NUMBERS, NUMBERS, st.floats(0.5, 0.999))
def test_yogis_v_moves_by_g_squared_towards_it(
    g: list[float], v: list[float], beta2: float
) -> None:
    gradient = torch.tensor(g, dtype=torch.float64)
    before = torch.tensor(v, dtype=torch.float64).abs()
    opt = Adam(beta2=beta2, yogi=True)
    s = OptState(slots=(torch.zeros_like(before), before), count=torch.tensor(0))
    after = advance(opt, gradient, s, torch.zeros_like(before)).slots[1]
    square = gradient**2
    moved = torch.where(before == square, 0.0, (1 - beta2) * square)
    torch.testing.assert_close((after - before).abs(), moved, rtol=1e-9, atol=1e-12)
    assert bool(((square - before) * (after - before) >= 0).all())


ALL: list[Optimizer] = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.1),
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Momentum(beta=0.9, lr=0.1, weight_decay=0.1),
    Momentum(beta=0.9, ema=False, lr=0.1),
    Adam(lr=0.1, bias_correction=True, weight_decay=0.1),
    Adam(lr=0.1, yogi=True),
    Adagrad(lr=0.1),
]
each = pytest.mark.parametrize("opt", ALL, ids=repr)


def warm(opt: Optimizer) -> tuple[Vec, Vec, OptState]:
    """A point, a gradient and a state that is no longer the initial one."""
    w, grad = problem()
    s = opt.init(w)
    w, s = apply(opt, w, grad(w), s)
    return w, grad(w), s


def frozen_copy(s: OptState) -> list[Tensor]:
    return [*(slot.clone() for slot in s.slots), s.count.clone()]


def is_unchanged(s: OptState, before: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip((*s.slots, s.count), before, strict=True))


@each
def test_apply_changes_nothing_in_place(opt: Optimizer) -> None:
    w, g, s = warm(opt)
    copies, before = (w.clone(), g.clone()), frozen_copy(s)
    new_w, new_s = apply(opt, w, g, s)
    assert torch.equal(w, copies[0]) and torch.equal(g, copies[1]) and is_unchanged(s, before)
    assert not torch.equal(new_w, w)
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(new_s.slots, s.slots, strict=True))


@each
def test_advance_is_the_state_of_apply(opt: Optimizer) -> None:
    w, g, s = warm(opt)
    assert is_unchanged(advance(opt, g, s, w), frozen_copy(apply(opt, w, g, s)[1]))


@each
def test_a_frozen_state_gives_the_same_step_and_stays(opt: Optimizer) -> None:
    w, g, s = warm(opt)
    before = frozen_copy(s)
    direction = opt.update_(g.clone(), s, w, freeze=True)
    assert is_unchanged(s, before)
    assert torch.equal(direction, opt.update_(g.clone(), s.copy(), w))


@pytest.mark.parametrize(("ema", "factor"), [(True, 0.1), (False, 1.0)])
def test_mimes_momentum_keeps_decay_out_of_its_state(ema: bool, factor: float) -> None:
    opt = Momentum(beta=0.9, ema=ema, lr=1.0, weight_decay=0.5)
    w, g, m = torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([4.0])
    s = OptState(slots=(m,), count=torch.tensor(0))
    new, after = apply(opt, w, g, s)
    v = 0.9 * m + factor * g
    torch.testing.assert_close(after.slots[0], v)
    torch.testing.assert_close(new, w - (v + 0.5 * w))


def test_rates_over_rounds() -> None:
    exponential = Exponential(0.5, 0.9)
    assert [rate(exponential, t) for t in range(3)] == pytest.approx([0.5, 0.45, 0.405])
    stairs = Staircase(1.0, every=3, factor=0.1)
    assert [rate(stairs, t) for t in (0, 2, 3, 5, 6)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = Cosine(2.0, total=4, floor=0.1)
    assert [rate(cosine, t) for t in (0, 2, 9)] == pytest.approx([2.0, 1.1, 0.2])
    assert all(rate(Cosine(2.0, total=5), t) > 0 for t in range(5)), "formulas divide by it"
    assert rate(Cosine(2.0, total=1), 0) == 2.0
    assert rate(0.3, 17) == 0.3 and isinstance(rate(1, 0), float)


def test_plain_means_the_direction_is_the_gradient() -> None:
    assert SGD().is_plain and SGD(lr=3.0, nesterov=True).is_plain
    assert not SGD(momentum=0.1).is_plain and not SGD(weight_decay=0.1).is_plain
