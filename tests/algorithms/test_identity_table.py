"""Identities: what every algorithm equals in special cases, bit for bit or to 1e-12."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedrift.algorithms import NAMES
from fedrift.conform import closed_form, identities
from fedrift.conform.identities import ROWS, Row
from fedrift.conform.problem import Trial, classifier, pooled, uneven_quadratic
from fedrift.conform.runs import make_task, path

# Left and right of the equivalence matrix of the specification, by name.
MATRIX = [
    ("fedavg", "fedsgd", "≈"),
    ("fedsgd", "fedsgd", "≈"),  # on pooled data
    ("fedavg:weights=uniform", "fedavg", "≈"),
    ("fedavgm:beta=0,server_lr=1", "fedavg", "="),
    ("diloco:inner=sgd,inner_wd=0,server_lr=1,server_momentum=0", "fedavg:weights=uniform", "="),
    ("fedprox:mu=0", "fedavg", "="),
    ("fednova", "fedavg", "≈"),
    ("scaffold:freeze_controls=true", "fedavg:weights=uniform", "="),
    ("scaffold", "fedsgd:weights=uniform", "≈"),
    ("fedsam:rho=0", "fedavg", "="),
    ("fedasam:rho=0", "fedavg", "="),
    ("fedgf:rho=0,threshold=1e9", "fedavg", "="),
    ("fedasam:rho=0.1", "fedsam:rho=0.1", "="),  # T ≡ 1: no parameter is called a weight
    ("fedgf:rho=0.1,rho_g=0.3,threshold=1e9", "fedsam:rho=0.1", "="),
    ("mofedsam:alpha=1,rho=0.1", "fedsam:rho=0.1,weights=uniform", "="),
    ("sam(scaffold:freeze_controls=true):rho=0.1", "fedsam:rho=0.1,weights=uniform", "="),
    ("mofedsam:rho=0", "fedcm", "="),
    ("fedgamma:rho=0", "scaffold:option=II", "="),
    ("fedsmoo:r=0,gamma=0.3", "feddyn:alpha=0.3", "="),
    ("fedspeed:a=0,gamma=0.3", "feddyn:alpha=0.3", "≈"),
    ("fedcm:alpha=1", "fedavg:weights=uniform", "="),
    ("ghbm:beta=0", "fedavg", "="),
    ("localghbm:beta=0", "fedavg", "="),
    ("fedhbm:beta=0", "fedavg", "="),
    ("mimelite", "fedavg", "="),
    ("fedcm:alpha=0.1", "ghbm:tau=1,beta=0.9,weights=uniform", "≈"),
    ("localghbm", "ghbm:tau=1", "="),
    ("localghbm", "ghbm:tau=2", "≈"),
    ("mimemom:beta=0", "mime", "="),
    ("mimelitemom:beta=0", "mimelite", "="),
    ("mime", "fedsgd", "≈"),
    ("swa(fedavg):start=0.2", "fedavg", "="),
    ("fedavg", "fedavg", "="),  # with mixup of alpha = 0
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_identity(row: Row) -> None:
    assert identities.failures(row) == []


def test_the_whole_matrix_is_there() -> None:
    """Each row of the specification; Fed3R's has a test of its own."""
    held = {(row.left, row.right, "=" if row.exact else "≈") for row in ROWS}
    assert [row for row in MATRIX if row not in held] == []


def test_every_name_has_an_identity() -> None:
    assert {name for row in ROWS for name in row.names} == set(NAMES) - {"fed3r", "fed3rft"}


def test_fed3r_is_ridge_regression_on_the_pooled_data() -> None:
    assert closed_form.ridge_failures() == []


# Two settings that a blind identity would also call equal: the option must show.
SENSITIVE = [
    ("fedprox:mu=0.5", "fedprox:mu=0.6"),
    ("feddyn:alpha=0.5", "feddyn:alpha=0.6"),
    ("fedspeed:gamma=0.5", "fedspeed:gamma=0.6"),
    ("fedspeed:a=0.5", "fedspeed:a=0.6"),
    ("fedsmoo:gamma=0.5", "fedsmoo:gamma=0.6"),
    ("fedsmoo:r=0.1", "fedsmoo:r=0.2"),
    ("fedsmoo", "fedsmoo:drop_last_perturbation=true"),
    ("fedsam:rho=0.1", "fedsam:rho=0.2"),
    ("fedasam:eta_a=0.1", "fedasam:eta_a=0.2"),
    ("fedasam:rho=0.1", "fedsam:rho=0.1"),
    ("fedgf:rho_g=0.1", "fedgf:rho_g=0.2"),
    ("fedgf:threshold=-1", "fedgf:threshold=1e9"),
    ("fedcm:alpha=0.5", "fedcm:alpha=0.6"),
    ("mofedsam:rho=0.1", "fedcm"),
    ("ghbm:beta=0.5,tau=1", "ghbm:beta=0.6,tau=1"),
    ("ghbm:tau=1", "ghbm:tau=2"),
    ("localghbm:beta=0.5", "localghbm:beta=0.6"),
    ("localghbm:rate=elapsed", "localghbm"),
    ("fedhbm:beta=0.5", "fedhbm:beta=0.6"),
    ("mime", "mimelite"),
    ("mimemom:beta=0.5", "mimemom:beta=0.6"),
    ("mimemom", "mimemom:form=heavy_ball"),
    ("mimelitemom", "mimelitemom:form=heavy_ball"),
    ("mimelitemom", "fedcm"),
    ("scaffold:option=I", "scaffold:option=II"),
    ("scaffold", "fedavg:weights=uniform"),
    ("fedgamma:rho=0.1", "scaffold"),
    ("fednova", "fedavg"),
    ("fednova:gamma=0.5", "fednova"),
    ("fedavgm", "fedavgm:nesterov=true"),
    ("fedadam", "fedyogi"),
    ("fedadam", "fedadagrad"),
    ("fedadam", "fedadam:bias_correction=true"),
    ("fedadam", "fedadam:v_init=0"),
    ("fedavg", "fedavg:weights=uniform"),
    ("diloco:inner=adamw", "diloco:inner=sgd"),
    ("diloco:server_momentum=0.5", "diloco"),
    ("swa(fedavg):start=1", "fedavg"),
    ("swa(fedavg):start=1,cycle=2", "swa(fedavg):start=1"),
    ("wima(fedavg):window=2", "fedavg"),
]


@pytest.mark.parametrize(("left", "right"), SENSITIVE, ids=" ≠ ".join)
def test_an_option_makes_a_difference(left: str, right: str) -> None:
    trial = replace(uneven_quadratic(), rounds=5)
    ends = [path(text, trial)[-1] for text in (left, right)]
    assert float((ends[0] - ends[1]).abs().max()) > 1e-9


def descent(trial: Trial, rounds: int) -> torch.Tensor:
    """Plain gradient descent on all samples at once, without this package."""
    x, y = pooled(trial).clients[0]
    x = x.double()
    y = y.double() if y.is_floating_point() else y
    task = make_task("fedsgd", trial)
    module = task.problem.module(task.problem.w0, {})
    objective = trial.loss or torch.nn.functional.cross_entropy
    for _ in range(rounds):
        module.zero_grad()
        objective(module(x), y).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter -= trial.local["lr"] * parameter.grad
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("trial", [uneven_quadratic(), classifier()], ids=["quadratic", "net"])
def test_fedsgd_is_gradient_descent_written_out(trial: Trial) -> None:
    everyone = replace(trial.everyone(), dtype="float64").working(batch_size=None)
    end = path("fedsgd", everyone)[-1]
    assert float((end - descent(everyone, everyone.rounds)).abs().max()) <= 1e-12
