"""Local training: the same bits as a plain PyTorch loop, and how much of it is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from fedrift.core import (
    ASAM,
    SAM,
    SGD,
    SVRG,
    Adam,
    Addition,
    Blend,
    Draw,
    Exponential,
    Extra,
    Linear,
    Local,
    Plain,
    Problem,
    Prox,
    Run,
    Site,
    Step,
    Vec,
    define,
    flatten,
)
from fedrift.core.local import PlainStep, batches
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
        train(local, Prox(0.0), Linear(zero), Blend(1.0, zero)),
        train(replace(local, clip=1e9)),
        train(replace(local, gradient=SAM(0.0))),
        train(replace(local, gradient=SAM(0.0)), Linear(zero), mean_grad=True),
    ):
        assert torch.equal(plain.w, other.w) and torch.equal(plain.delta, other.delta)


V = torch.linspace(-0.1, 0.1, 212, dtype=torch.float64)
CORRECTED: dict[str, tuple[Any, ...]] = {
    "none": (),
    "linear": (Linear(V),),
    "prox": (Prox(0.7),),
    "anchor": (Prox(0.7, V),),
    "away": (Prox(-0.3, V),),
    "blend": (Blend(0.3, V),),
    "feddyn": (Linear(V), Prox(0.4)),
    "blended last": (Linear(V), Prox(0.4), Blend(0.3, -V)),
    "blended first": (Blend(0.3, -V), Prox(0.4), Linear(V)),
    "two blends": (Blend(0.3, -V), Linear(V), Blend(0.6, V), Linear(V)),
    "two springs": (Prox(0.4), Prox(0.7, V)),
    "variance": (SVRG(V, V), Linear(V)),
}
RULES: dict[str, Any] = {
    "plain": Plain(),
    "sam": SAM(0.3),
    "asam": ASAM(0.3, 0.1),
    "extra": Extra(0.3, 0.5),
    "own": lambda step: step.grad(step.w),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("corrected", CORRECTED)
def test_part_by_part_or_summed_up_a_step_is_the_same(rule: str, corrected: str) -> None:
    pieces = CORRECTED[corrected]
    local = Local(lr=0.2, epochs=2, batch_size=8, gradient=RULES[rule])
    is_parted = corrected not in ("two springs", "variance") and rule not in ("extra", "own")
    assert (PlainStep.of(local, local.gradient, pieces) is not None) == is_parted
    given = train(local, *pieces, dtype=torch.float64)
    summed = train(replace(local, clip=1e9), *pieces, dtype=torch.float64)
    torch.testing.assert_close(given.w, summed.w, rtol=0, atol=1e-14)
    torch.testing.assert_close(given.delta, summed.delta, rtol=0, atol=1e-14)
    assert not pieces or not torch.equal(given.w, train(local, dtype=torch.float64).w)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": SGD(momentum=0.1)},
        {"optimizer": SGD(weight_decay=0.1)},
        {"optimizer": Adam()},
        {"clip": 1.0},
    ],
    ids=str,
)
def test_momentum_decay_and_clipping_need_the_sum(change: dict[str, Any]) -> None:
    local = Local()
    assert PlainStep.of(local, Plain(), (Prox(1.0),)) is not None
    assert PlainStep.of(replace(local, **change), Plain(), (Prox(1.0),)) is None


def test_a_part_of_ones_own_follows_the_uncorrected_gradient() -> None:
    local = Local()
    assert PlainStep.of(local, Plain(), (), has_own=True) is not None
    assert PlainStep.of(local, Plain(), (Prox(1.0),), has_own=True) is None
    assert PlainStep.of(local, SAM(0.1), (), has_own=True) is None


def test_what_a_piece_says_it_does_is_what_it_does() -> None:
    """A class of one's own made of one of ours, with another formula."""

    class Half(Linear):
        def __call__(self, g: Vec, step: Step) -> None:
            g.add_(self.v, alpha=0.5)

    class Back(SAM):
        def __call__(self, step: Step) -> Vec:
            return step.grad(step.ahead(-self.rho, step.grad(step.w)))

    local = Local(lr=0.2, batch_size=8)
    half = train(local, Half(V), dtype=torch.float64)
    torch.testing.assert_close(half.w, train(local, Linear(0.5 * V), dtype=torch.float64).w)
    back = train(replace(local, gradient=Back(0.3)), dtype=torch.float64)
    assert torch.equal(back.w, train(replace(local, gradient=SAM(-0.3)), dtype=torch.float64).w)


@dataclass(frozen=True)
class Elsewhere(Addition):
    """g += the gradient at another point, written into a buffer."""

    at: Vec

    def vector(self, step: Step) -> Vec:
        return step.grad(self.at)


def test_an_addition_may_look_at_other_gradients_and_at_w() -> None:
    """Its gradient is not the step's first, whose loss is reported; w is where the step began."""
    pieces = Elsewhere(9.0 * V), Linear(V)
    local, reports = Local(lr=0.1, epochs=2, batch_size=8, gradient=SAM(0.3)), list[Any]()
    for how in (local, replace(local, clip=1e9)):
        problem, split = task(dtype=torch.float64)
        site = site_of(problem, split)
        run = site.train(how, problem.w0, *pieces)
        assert site.work.gradients == 3 * 2 * (N - 3)
        reports.append((run, site.training()))
    torch.testing.assert_close(reports[0][0].w, reports[1][0].w, rtol=0, atol=1e-14)
    assert reports[0][1].loss == pytest.approx(reports[1][1].loss, rel=1e-12)


class Normal(Wet):
    """Dropout, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.hidden(x)))))


@pytest.mark.parametrize(
    "rule", [Plain(), SAM(0.3), ASAM(0.3, 0.1)], ids=lambda r: type(r).__name__
)
def test_masks_statistics_and_reports_are_those_of_the_first_pass(rule: Any) -> None:
    """As one vector or part by part: the same bits where nothing is added."""
    local, seen = Local(lr=0.1, epochs=2, batch_size=8, gradient=rule), list[Any]()
    for asks in (False, True):
        problem, split = task(Normal)
        site = site_of(problem, split)
        run = site.train(local, problem.w0, mean_grad=asks)
        report = torch.tensor(site.training(), dtype=torch.float64)
        seen.append((run.w, *site.statistics(), report))
        assert site.work.gradients == (1 if rule == Plain() else 2) * 2 * (N - 3)
    for given, summed in zip(*seen, strict=True):
        assert torch.equal(given, summed)


@pytest.mark.parametrize("how", [{}, {"clip": 1e9}, {"gradient": SAM(0.1)}], ids=str)
def test_a_frozen_optimizer_counts_no_steps(how: dict[str, Any]) -> None:
    local = Local(lr=0.1, epochs=2, batch_size=8, **how)
    begun = train(local).opt
    assert int(begun.count) == 10
    assert int(train(local, opt=begun).opt.count) == 20
    assert int(train(local, opt=begun, freeze=True).opt.count) == int(begun.count) == 10


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
