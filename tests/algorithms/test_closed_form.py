"""Fed3R, its random features and its fine-tuning: oracles on small classifiers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.algorithms.fed3r import RandomFeatures
from fedrift.conform.closed_form import Given, golden_trial, head_of, ridge, splits
from tests.support.product import Inside, Trial, classifier, pooled, run_trial


def test_statistics_of_two_clients_are_those_of_their_union() -> None:
    states: list[Any] = []
    for about in ("the given split", "one client", "another order", "another split"):
        inside = Inside("fed3r", splits()[about])
        inside.run()
        states.append(inside.reports[-1].state)
    for state in states[1:]:
        assert float((state.a - states[0].a).abs().max()) < 1e-10
        assert float((state.b - states[0].b).abs().max()) < 1e-10
    assert torch.equal(states[0].a, states[0].a.T)
    assert float(torch.linalg.eigvalsh(states[0].a).min()) > -1e-10


def test_a_heavy_penalty_leaves_b_over_lambda() -> None:
    inside = Inside("fed3r:ridge=1e9,normalise=false", splits()["the given split"])
    inside.run()
    state: Any = inside.reports[-1].state
    named = inside.problem.layout.named(state.w)
    head = torch.cat([named["out.weight"], named["out.bias"][:, None]], dim=1)
    assert float((head.T * 1e9 - state.b).abs().max()) < 1e-5


def test_who_comes_twice_is_counted_once() -> None:
    trial = golden_trial()
    twice = replace(trial, rounds=4, per_round=None, participants=((0,), (0, 1), (1,), (0, 1)))
    assert torch.equal(run_trial("fed3r", twice).weights, run_trial("fed3r", trial).weights)


def test_normalised_weights_have_unit_length() -> None:
    head = head_of(run_trial("fed3r", splits()["the given split"]))
    assert head[:, :-1].norm(dim=1).tolist() == pytest.approx([1.0] * 4)
    plain = head_of(run_trial("fed3r:normalise=false", splits()["the given split"]))
    assert float((head * plain[:, :-1].norm(dim=1, keepdim=True) - plain).abs().max()) < 1e-12


def test_without_a_bias_column() -> None:
    trial = splits()["the given split"]
    result = run_trial("fed3r:bias=false,normalise=false", trial)
    x, y = pooled(trial).clients[0]
    phi = torch.tanh(result.module().get_submodule("hidden")(x.double())).detach()
    targets = torch.nn.functional.one_hot(y, 4).double()
    expected = torch.linalg.solve(phi.T @ phi + 0.01 * torch.eye(12).double(), phi.T @ targets)
    assert float((head_of(result)[:, :-1] - expected.T).abs().max()) < 1e-10
    assert torch.equal(head_of(result)[:, -1], torch.zeros(4).double())


def test_a_class_nobody_has_is_never_predicted() -> None:
    """Its logit is 0, which would beat negative ones; it is masked."""
    base = classifier()
    clients = tuple((x[y != 3], y[y != 3]) for x, y in base.clients)
    x = -pooled(replace(base, clients=clients)).clients[0][0]  # opposite of all that is known
    trial = replace(base, clients=clients, test=(x, torch.full((len(x),), 3)), rounds=3)
    result = run_trial("fed3r:bias=false", trial)
    assert result.accuracy[-1] == 0.0
    free = result.module()(x).argmax(1)
    assert bool((free == 3).any())  # without the mask it would have been


def test_random_features_approach_the_gaussian_kernel() -> None:
    """z(x)ᵀz(y) → exp(−‖x−y‖²/(2σ²)), the error falling as R^{-1/2}."""
    sigma, x = 1.7, torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    kernel = torch.exp(-(torch.cdist(x, x) ** 2) / (2 * sigma**2))
    errors: list[float] = []
    for number in (100, 10_000):
        with torch.random.fork_rng():
            torch.manual_seed(2)
            layer = RandomFeatures(5, number)
        layer.scale.fill_(1 / sigma)
        z = layer(x)
        errors.append(float((z @ z.T - kernel).pow(2).mean().sqrt()))
    assert errors[1] < 2 / math.sqrt(10_000)
    assert 3 < errors[0] / errors[1] < 30


def test_random_features_are_ridge_regression_on_them() -> None:
    trial = splits()["another split"]
    result = run_trial("fed3r:features=64,sigma=2,normalise=false", trial)
    x, y = pooled(trial).clients[0]
    module: Any = result.module()
    z = module.out[0](torch.tanh(module.hidden(x.double()))).detach()
    assert z.shape == (len(x), 64)
    assert float(module.out[0].scale) == 0.5
    assert float((head_of(result) - ridge(z, y, 4)).abs().max()) < 1e-10


def tuning(text: str, rounds: int = 5) -> Inside:
    inside = Inside(text, replace(classifier(), rounds=rounds))
    inside.run()
    return inside


@pytest.mark.parametrize("part", ["all", "head", "features"])
@pytest.mark.parametrize("temperature", ["0.05", "0.1", "1", "auto"])
def test_fine_tuning_starts_from_fed3r(part: str, temperature: str) -> None:
    """Before its first round the model is Fed3R's, so its accuracy is too, at any temperature."""
    inside = tuning(f"fed3rft(fedavg):train={part},temperature={temperature}", 2)
    algorithm, done = inside.algorithm, inside.reports[-1].state
    assert not done.is_tuning
    start = algorithm.exhausted(done, inside.problem)
    assert start.is_tuning
    closed = run_trial("fed3r", replace(classifier(), rounds=2))
    assert torch.equal(algorithm.model(start), closed.weights)
    x, _ = pooled(classifier()).clients[0]
    logits = closed.module()(x)
    assert torch.equal(logits.argmax(1), (logits / 0.05).argmax(1))


def test_a_model_that_is_its_head_has_no_features_to_train() -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    with pytest.raises(fr.InputError, match="train=features: nothing of the model is trained"):
        fr.run("fed3rft(fedavg):train=features", model="logistic", clients=[(x, y)], rounds=2)


@pytest.mark.parametrize(
    ("part", "still"), [("features", ["out.weight", "out.bias"]), ("head", ["hidden.weight"])]
)
def test_the_frozen_part_keeps_its_bits(part: str, still: list[str]) -> None:
    inside = tuning(f"fed3rft(fedavg):train={part}")
    named = inside.problem.layout.named
    before, after = named(inside.reports[1].weights), named(inside.reports[-1].weights)
    for name in before:
        frozen = name in still or (part == "head" and name.startswith("hidden"))
        assert torch.equal(before[name], after[name]) == frozen, name


def test_the_temperature_divides_logits_in_training() -> None:
    """One step at temperature ϑ is the step on CE(logits/ϑ), worked out without this package."""
    theta = 0.2
    base = classifier()
    trial = replace(base, rounds=3, per_round=None, dtype="float64")
    trial = trial.working(steps=1, batch_size=None, lr=0.01)
    result = run_trial(f"fed3rft(fedavg):train=head,temperature={theta}", replace(trial, rounds=2))
    closed = run_trial("fed3r", replace(trial, rounds=1))
    module: Any = closed.module()
    weight, bias = module.out.weight, module.out.bias
    total = sum(len(y) for _, y in trial.clients)
    steps: list[tuple[Tensor, ...]] = []
    for x, y in trial.clients:
        loss = torch.nn.functional.cross_entropy(module(x.double()) / theta, y)
        gradients = torch.autograd.grad(loss, [weight, bias])
        steps.append(tuple(len(y) / total * g for g in gradients))
    expected = torch.cat(
        [
            weight.detach() - 0.01 * sum(s[0] for s in steps),
            (bias.detach() - 0.01 * sum(s[1] for s in steps))[:, None],
        ],
        dim=1,
    )
    assert float((head_of(result) - expected).abs().max()) < 1e-10


def test_the_grid_of_temperatures_takes_the_least_loss() -> None:
    inside = tuning("fed3rft(fedavg):temperature=auto", 3)
    chosen = inside.reports[-1].state.temperature
    grid = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
    assert chosen in grid
    cohort = inside.reports[-1].cohort
    module = run_trial("fed3r", replace(classifier(), rounds=2)).module()
    losses: list[float] = []
    module.requires_grad_(False)
    for theta in grid:
        total = sum(
            float(torch.nn.functional.cross_entropy(module(x) / theta, y, reduction="sum"))
            for x, y in (classifier().clients[c] for c in cohort)
        )
        losses.append(total)
    assert grid[losses.index(min(losses))] == chosen


def test_given_features_are_the_samples() -> None:
    trial: Trial = golden_trial()
    assert trial.model is Given
    inside = Inside("fed3r", trial)
    assert inside.problem.feature_dim == 2
