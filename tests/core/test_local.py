"""Local training: the same bits as a plain PyTorch loop, and how much of it is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from fedrift.core import (
    SAM,
    SGD,
    Adam,
    Draw,
    Exponential,
    Linear,
    Local,
    Problem,
    Prox,
    Run,
    Site,
    Step,
    Vec,
    define,
    flatten,
)
from fedrift.core.local import batches
from tests.support.problems import Net, blobs, small_run
from tests.support.product import generator

N, SEED, ROUND, CLIENT = 37, 5, 2, 1


class Wet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.out = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.hidden(x))))


def task(make: Any = Net, dtype: torch.dtype = torch.float32) -> tuple[Problem, fr.Split]:
    x, y = blobs(N)
    x = x.to(dtype)
    how: dict[str, Any] = {"population": 2, "participation": 1.0, "rounds": 1, "dtype": dtype}
    problem = define(make, F.cross_entropy, (x[:2], y[:2]), init_seed=0, **how)
    return problem, fr.Split(x, y, [np.arange(3), np.arange(3, N)])


def site_of(problem: Problem, split: fr.Split, round: int = ROUND, client: int = CLIENT) -> Site:
    return Site(problem, split.view(client), client=client, round=round, seed=SEED)


def train(local: Local, *correct: Any, make: Any = Net, **how: Any) -> Run:
    dtype = how.pop("dtype", torch.float32)
    problem, split = task(make, dtype)
    return site_of(problem, split).train(local, problem.w0, *correct, **how)


def torch_loop(local: Local, steps: int, dtype: torch.dtype, clip: float | None = None) -> Vec:
    """The same minibatches in a loop anybody would write."""
    problem, split = task(Net, dtype)
    assert isinstance(local.optimizer, SGD) and isinstance(local.lr, float)
    opt, module = local.optimizer, problem.module(problem.w0, {})
    order = generator(SEED, "order", ROUND, CLIENT)
    descent = torch.optim.SGD(
        module.parameters(),
        lr=local.lr,
        momentum=opt.momentum,
        weight_decay=opt.weight_decay,
        nesterov=opt.nesterov,
    )
    for chosen in batches(N - 3, local.batch_size, steps, order):
        x, y = split.view(CLIENT).batch(chosen)
        descent.zero_grad()
        F.cross_entropy(module(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        descent.step()
    return flatten(list(module.parameters()))


FORMS = {
    "plain": SGD(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.9, nesterov=True),
    "decay": SGD(weight_decay=0.1),
    "both": SGD(momentum=0.5, weight_decay=0.01),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [8, None])
@pytest.mark.parametrize("form", FORMS)
def test_training_is_torchs_loop_bit_for_bit(
    form: str, size: int | None, dtype: torch.dtype
) -> None:
    local = Local(lr=0.2, epochs=2, batch_size=size, optimizer=FORMS[form])
    run = train(local, dtype=dtype)
    assert run.steps == (10 if size else 2)
    assert torch.equal(run.w, torch_loop(local, run.steps, dtype))


@pytest.mark.parametrize("size", [8, None])
def test_the_flat_path_gives_the_bits_of_the_plain_path(size: int | None) -> None:
    local = Local(lr=0.3, epochs=3, batch_size=size)
    zero = torch.zeros_like(task()[0].w0)
    plain = train(local)
    for other in (
        train(local, Linear(zero)),
        train(local, outside=(Linear(zero),)),
        train(local, mean_grad=True),
        train(replace(local, correct=(Prox(0.0),))),
        train(replace(local, clip=1e9)),
        train(replace(local, gradient=SAM(0.0))),
    ):
        assert torch.equal(plain.w, other.w) and torch.equal(plain.delta, other.delta)


def test_clipping_is_torchs_up_to_rounding() -> None:
    local = Local(lr=0.2, epochs=2, batch_size=8, clip=0.3, optimizer=SGD(weight_decay=0.1))
    expected = torch_loop(replace(local, clip=None), 10, torch.float64, clip=0.3)
    given = train(local, dtype=torch.float64)
    torch.testing.assert_close(given.w, expected, rtol=0, atol=1e-5)  # torch adds 1e-6 to the norm
    assert not torch.equal(given.w, train(replace(local, clip=None), dtype=torch.float64).w)


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        (Local(epochs=1, batch_size=8), 5),
        (Local(epochs=3, batch_size=8), 15),
        (Local(epochs=2, batch_size=34), 2),
        (Local(epochs=2, batch_size=None), 2),
        (Local(epochs=None, steps=7, batch_size=8), 7),
        (Local(epochs=(9, 2), batch_size=8), 10),
        (Local(epochs=None, steps=(9, 3), batch_size=8), 3),
    ],
)
def test_how_many_steps(local: Local, steps: int) -> None:
    problem, split = task()
    site = site_of(problem, split)
    assert site.span(local) == pytest.approx(0.1 * steps)
    run = site.train(local, problem.w0)
    assert (run.steps, run.lr, run.span) == (steps, 0.1, 0.1 * steps)
    assert site.work.steps == steps
    torch.testing.assert_close(run.delta, run.w - problem.w0)


def test_drawn_work_lies_between_its_bounds_and_depends_on_client_and_round() -> None:
    draw = Draw(2, 5)
    seen = [draw.at(0, t, c) for t in range(20) for c in range(20)]
    assert set(seen) == {2, 3, 4, 5}
    assert seen == [draw.at(0, t, c) for t in range(20) for c in range(20)]
    assert seen != [draw.at(1, t, c) for t in range(20) for c in range(20)]


@pytest.mark.parametrize("how", [{"epochs": "uniform:2,5"}, {"steps": [1, 2, 3, 4, 5, 6, 7]}])
def test_amounts_reach_the_clients(how: dict[str, Any]) -> None:
    result = small_run("fedavg", rounds=4, per_round=1, batch_size=None, test=None, **how)
    for t, entry in enumerate(result.ledger.entries):
        (client,) = entry.asked
        expected = how["steps"][client] if "steps" in how else Draw(2, 5).at(0, t, client)
        assert entry.steps == expected


def test_a_rate_falls_with_the_rounds() -> None:
    local = Local(lr=Exponential(0.4, 0.5), batch_size=8)
    run = train(local)
    assert run.lr == pytest.approx(0.1) and run.span == pytest.approx(0.5)
    assert torch.equal(run.w, train(Local(lr=0.4 * 0.5**2, batch_size=8)).w)


def test_dropout_has_one_mask_within_a_step() -> None:
    seen: list[Vec] = []

    def twice(step: Step) -> Vec:
        first = step.grad(step.w).clone()
        assert torch.equal(step.grad(step.w), first)
        seen.append(first)
        return step.buffer().zero_()

    train(Local(epochs=None, steps=3, batch_size=None), make=Wet, gradient=twice)
    assert not torch.equal(seen[0], seen[1]), "another step, another mask"


def test_dropout_is_the_same_in_every_process() -> None:
    runs = [small_run("fedavg", model=Wet, rounds=2, workers=n) for n in (0, 2)]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert runs[0].fingerprint != small_run("fedavg", model=Wet, rounds=2, seed=1).fingerprint


def test_mean_grad_is_the_displacement_over_the_span() -> None:
    run = train(Local(lr=0.2, epochs=2, batch_size=8), mean_grad=True, dtype=torch.float64)
    assert run.mean_grad is not None
    torch.testing.assert_close(run.mean_grad, -run.delta / run.span, rtol=0, atol=1e-12)


def test_mean_grad_is_raw() -> None:
    nine = Linear(torch.full_like(task()[0].w0, 9.0))
    raw = train(Local(epochs=None, steps=1), mean_grad=True).mean_grad
    corrected = train(Local(epochs=None, steps=1, clip=0.1), nine, mean_grad=True).mean_grad
    assert raw is not None and corrected is not None and torch.equal(raw, corrected)


def test_an_outside_correction_stays_out_of_the_momentum() -> None:
    """Three steps, gradient g, m = ½, c outside: Δ = −lr·(g(1 + 1½ + 1¾) + 3c)."""
    g, c = torch.full((212,), 2.0), torch.full((212,), 0.5)
    local = Local(lr=0.1, epochs=None, steps=3, optimizer=SGD(momentum=0.5))
    how: dict[str, Any] = {"gradient": lambda step: step.buffer().copy_(g)}
    outside = train(local, outside=(Linear(c),), **how)
    torch.testing.assert_close(outside.delta, -0.1 * (g * 4.25 + 3 * c))
    inside = train(local, Linear(c), **how)
    torch.testing.assert_close(inside.delta, -0.1 * (g + c) * 4.25)


def test_corrections_of_the_settings_come_before_those_of_the_visit() -> None:
    ask: list[str] = []
    local = Local(epochs=None, steps=1, correct=(lambda g, step: ask.append("settings"),))
    train(local, lambda g, step: ask.append("visit"))
    assert ask == ["settings", "visit"]


def test_a_given_optimizer_state_is_not_written_to() -> None:
    w0 = task()[0].w0
    adam = Adam(bias_correction=True)
    local, state = Local(lr=0.01, batch_size=8, optimizer=adam), adam.init(w0)
    once = train(local, opt=state)
    assert int(once.opt.count) == 5 and int(state.count) == 0
    assert all(bool((slot == 0).all()) for slot in state.slots)
    frozen = train(local, opt=once.opt, freeze=True)
    assert int(frozen.opt.count) == 5
    for a, b in zip(frozen.opt.slots, once.opt.slots, strict=True):
        assert torch.equal(a, b)


def test_work_is_counted_in_examples() -> None:
    problem, split = task()
    site = site_of(problem, split)
    site.train(Local(epochs=2, batch_size=8), problem.w0)
    assert (site.work.gradients, site.work.forwards) == (68, 0)
    site.train(Local(epochs=1, batch_size=8, gradient=SAM(0.1)), problem.w0, purpose="again")
    assert site.work.gradients == 68 + 2 * 34
    site.full_grad(problem.w0)
    assert site.work.gradients == 68 + 3 * 34
    assert sum(len(y) for _, y in site.features(problem.w0)) == 34
    assert site.work.forwards == 34


def test_momentum_is_not_carried_to_the_next_client() -> None:
    problem, split = task()
    local = Local(lr=0.1, batch_size=8, optimizer=SGD(momentum=0.9))
    alone = site_of(problem, split).train(local, problem.w0).w
    site_of(problem, split, client=0).train(local, problem.w0)
    assert torch.equal(site_of(problem, split).train(local, problem.w0).w, alone)
