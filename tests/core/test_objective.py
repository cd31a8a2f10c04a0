"""Own local objectives: the forward pass in a step, frozen models beside it, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedrift as fr
from fedrift.algorithms.fedavg import Down, FedAvg, Up
from fedrift.core import (
    Algorithm,
    Cohort,
    Forward,
    InputError,
    Local,
    Problem,
    Site,
    Step,
    Vec,
    state,
)
from fedrift.core.flat_model import FlatModel
from fedrift.core.local import LocalStep
from tests.support.problems import Net, blobs

X, Y = blobs(24, seed=4)


class Rich(nn.Module):
    """Dropout, batch normalisation and a head: all that a pass could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.relu(self.norm(self.body(x)))))


def step_of(model: type[nn.Module] = Rich) -> tuple[LocalStep, FlatModel, Problem]:
    problem = fr.run("fedavg", model=model, clients=[(X, Y)], rounds=1, workers=0).problem
    step, bound = problem.step, problem.model
    bound.module.train()
    bound.w.copy_(problem.w0)
    step.dropout_seed, step.examples, step.forwards = 7, 0, 0
    step.begin(0, 0.1, (X, Y))
    return step, bound, problem


@torch.no_grad()
def test_the_loss_alone_is_the_plain_gradient_to_the_bit() -> None:
    step, bound, problem = step_of()
    statistics = bound.all_buffers()
    plain = step.grad(step.w).clone()
    bound.load_all_buffers(statistics)
    step.begin(0, 0.1, (X, Y))
    own = step.grad(step.w, lambda here: here.loss)
    assert torch.equal(own, plain)
    step.begin(0, 0.1, (X, Y))
    elsewhere = step.grad(problem.w0 + 1, lambda here: 2 * here.loss).clone()
    assert torch.equal(elsewhere, 2 * step.grad(problem.w0 + 1))
    assert torch.equal(step.w, problem.w0)


@torch.no_grad()
def test_an_objective_of_features_has_the_gradient_of_autograd() -> None:
    step, _, problem = step_of(Net)
    got = step.grad(step.w, lambda here: here.features.square().sum() + here.output.sum())
    module = problem.module(problem.w0, {})
    caught: list[Tensor] = []
    head = module.get_submodule(problem.head or "")
    head.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.enable_grad():
        value = module(X).sum() + caught[0].square().sum()
        value.backward()
    wanted = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    torch.testing.assert_close(got, wanted)


@torch.no_grad()
def test_a_frozen_model_is_seen_in_evaluation_mode_and_leaves_nothing() -> None:
    step, bound, problem = step_of()
    at = problem.w0 + 0.1
    bound.module.get_submodule("norm").eval()  # as for a client of one sample
    modes = [m.training for m in bound.module.modules()]
    before = [b.clone() for b in bound.all_buffers()]
    seen = step.forward(at)
    module = problem.module(at, dict(zip(problem.moving, before, strict=True))).eval()
    assert torch.equal(seen.output, module(X)) and not seen.output.requires_grad
    assert torch.equal(seen.loss, F.cross_entropy(module(X), Y))
    assert seen.features.shape == (24, 6) and step.forwards == 24 and step.examples == 0
    assert torch.equal(step.w, problem.w0)
    assert [m.training for m in bound.module.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(before, bound.all_buffers(), strict=True))
    assert step.batch[0] is X and torch.equal(step.batch[1], Y)


@torch.no_grad()
def test_it_may_have_running_statistics_of_its_own() -> None:
    step, bound, _ = step_of()
    other = tuple(b + 1 for b in bound.buffers())
    here, there = step.forward(step.w), step.forward(step.w, other)
    assert not torch.equal(here.output, there.output)
    assert torch.equal(step.forward(step.w).output, here.output)


@torch.no_grad()
def test_looking_between_two_gradients_changes_neither() -> None:
    def gradients(looks: bool) -> list[Tensor]:
        step, _, problem = step_of()
        first = step.grad(step.w).clone()

        def objective(here: Forward) -> Tensor:
            if looks:
                step.forward(problem.w0 * 2)
            return here.loss

        return [first, step.grad(step.w, objective).clone(), step.grad(step.w).clone()]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_a_gradient_elsewhere_may_look_at_a_frozen_model() -> None:
    """As SAM's second pass does with such an objective: the weights are what they were."""
    step, _, problem = step_of(Net)
    elsewhere, behind = problem.w0 + 1, problem.w0 * 2
    wanted = 3 * step.grad(elsewhere)
    teacher = step.forward(behind).output
    seen: list[Tensor] = []

    def objective(here: Forward) -> Tensor:
        seen.append(step.forward(behind).output)
        return 3 * here.loss

    got = step.grad(elsewhere, objective)
    assert torch.equal(step.w, problem.w0)
    torch.testing.assert_close(got, wanted)
    assert torch.equal(seen[0], teacher)


def test_a_model_without_a_head_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * 2

    step, _, _ = step_of(Odd)
    with torch.no_grad(), pytest.raises(InputError, match="names no head"):
        _ = step.forward(step.w).features
    assert step.forward(step.w).output.shape == (24, 4)


# In a run.


@state
class Server:
    w: Vec


@dataclass(frozen=True)
class Distilled:
    """The task's loss and the outputs of the received model."""

    weight: float
    received: Vec

    def __call__(self, step: Step) -> Vec:
        teacher = F.softmax(step.forward(self.received).output, 1)

        def objective(here: Forward) -> Tensor:
            own = F.log_softmax(here.output, 1)
            return here.loss + self.weight * F.kl_div(own, teacher, reduction="batchmean")

        return step.grad(step.w, objective)


@dataclass(frozen=True)
class Rowwise(Distilled):
    """Wrong: it says that it holds for rows."""

    rowwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Distilling(Algorithm[Server, None]):
    local: Local = Local()
    weight: float = 1.0
    piece: Any = Distilled

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        rule = self.piece(self.weight, down.w)
        return Up(delta=site.train(self.local, down.w, gradient=rule).delta), mine


def run(algorithm: Any, **more: Any) -> Any:
    x, y = blobs(120, seed=3)
    clients = fr.split(x, y, "dirichlet:0.5", clients=5, seed=1)
    given: dict[str, Any] = {"model": Net, "clients": clients, "test": (x, y), "rounds": 3}
    given |= {"workers": 0, "per_round": 3}
    return fr.run(algorithm, **(given | more))


LOCAL = Local(lr=0.1, batch_size=16)


def test_it_leaves_the_stack_by_itself_and_has_the_same_bits_everywhere() -> None:
    here = run(Distilling(LOCAL))
    for how in ({"workers": 2}, {"backend": "wire"}, {"stack": "off"}):
        assert run(Distilling(LOCAL), **how).fingerprint == here.fingerprint
    assert here.ledger.total.forwards == here.ledger.total.gradients
    other = run(Distilling(LOCAL, weight=0.0))
    assert not torch.equal(here.weights, other.weights)
    plain = run(FedAvg(LOCAL), stack="off")
    assert torch.equal(other.weights, plain.weights)


def test_a_rowwise_piece_that_looks_at_samples_is_told() -> None:
    with pytest.raises(InputError, match="looks at samples is for one client"):
        run(Distilling(LOCAL, piece=Rowwise), stack="on", model="mlp")


def test_kept_parameters_follow_the_objective() -> None:
    from fedrift.algorithms.keep import keep

    one, other = (run(keep(Distilling(LOCAL, weight=w))) for w in (0.0, 5.0))
    assert not torch.equal(one.weights, other.weights)
    assert torch.equal(one.weights, run(keep(FedAvg(LOCAL))).weights)
