"""Identities: what every algorithm equals in special cases, bit for bit or up to rounding.

The table of `fedrift conform` has the algebra of the algorithms; `OPTIONS` has what needs options
of a run, through the front door. "Exact" rows agree in every bit: the same seeds give the same
minibatches, updates are summed in the same order, and a correction of zero is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.algorithms import NAMES
from fedrift.conform import closed_form, identities
from fedrift.conform.identities import ROWS, Row
from fedrift.conform.runs import make_task
from fedrift.core import SGD, Local
from tests.support.problems import blobs, small_run
from tests.support.product import FedAvg, Trial, classifier, path, pooled, uneven_quadratic

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
    ("fedgf:rho=0.1,rho_g=0.3,threshold=auto,window=1000", "fedsam:rho=0.1", "="),
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


EVEN = fr.split(*blobs(140), "iid", clients=7, seed=3)
ALL: dict[str, Any] = {"per_round": None}
ONE_STEP: dict[str, Any] = {"steps": 1, "batch_size": None}
FULL: dict[str, Any] = {"batch_size": None}
LOCAL = Local(lr=0.1, batch_size=16)


@dataclass(frozen=True)
class Same:
    """Two runs that end with the same weights."""

    name: str
    left: tuple[Any, dict[str, Any]]
    right: tuple[Any, dict[str, Any]]
    exact: bool = True

    def ends(self, dtype: str) -> list[Tensor]:
        usual = {"test": None, "rounds": 3, "dtype": dtype}
        sides = (self.left, self.right)
        return [small_run(text, **(usual | options)).weights for text, options in sides]


OPTIONS = (
    Same(
        "scaffold, c_i ≡ c = fedavg",
        ("scaffold:freeze_controls=true", {"epochs": 2}),
        ("fedavg:weights=uniform", {"epochs": 2}),
    ),
    Same(
        "scaffold's first round = fedavg's",
        ("scaffold", {"rounds": 1}),
        ("fedavg:weights=uniform", {"rounds": 1}),
    ),
    Same(
        "scaffold I's first round = fedavg's",
        ("scaffold:option=I", {"rounds": 1}),
        ("fedavg:weights=uniform", {"rounds": 1}),
    ),
    Same("server sgd at rate 1 = fedavg", (FedAvg(LOCAL, outer=SGD(lr=1.0)), {}), ("fedavg", {})),
    Same(
        "server momentum 0 = fedavg", (FedAvg(LOCAL, outer=SGD(momentum=0.0)), {}), ("fedavg", {})
    ),
    Same(
        "steps are epochs of equal clients",
        ("fedavg", {"clients": EVEN, "epochs": 3}),
        ("fedavg", {"clients": EVEN, "steps": 6}),
    ),
    Same(
        "a list of equal amounts = the amount",
        ("scaffold", {"epochs": [2] * 7}),
        ("scaffold", {"epochs": 2}),
    ),
    Same(
        "everybody on a schedule = everybody",
        ("scaffold", ALL | {"participants": [list(range(7))] * 5}),
        ("scaffold", ALL),
    ),
    Same("a constant schedule = no schedule", ("fedavg", {"schedule": "exp:1"}), ("fedavg", {})),
    Same(
        "no decay, no momentum = plain",
        ("fedavg", {"momentum": 0.0, "weight_decay": 0.0}),
        ("fedavg", {}),
    ),
    Same(
        "batches as large as a client = full", ("fedavg", {"batch_size": 10_000}), ("fedavg", FULL)
    ),
    Same("fedavg, one full step = fedsgd", ("fedavg", ONE_STEP), ("fedsgd", FULL), exact=False),
    Same(
        "scaffold, one full step, all = fedsgd",
        ("scaffold", ALL | ONE_STEP),
        ("fedsgd:weights=uniform", ALL | FULL),
        exact=False,
    ),
    Same(
        "equal clients: uniform = samples",
        ("fedavg:weights=uniform", {"clients": EVEN}),
        ("fedavg", {"clients": EVEN}),
        exact=False,
    ),
    Same(
        "equal clients: scaffold's objectives agree",
        ("scaffold:objective=samples", ALL | {"clients": EVEN}),
        ("scaffold", ALL | {"clients": EVEN}),
        exact=False,
    ),
    Same(
        "without momentum, raw gradients are option II",
        ("scaffold:momentum_repair=raw", {}),
        ("scaffold", {}),
        exact=False,
    ),
    Same(
        "without momentum, outside is inside",
        ("scaffold:momentum_repair=outside", {}),
        ("scaffold", {}),
        exact=False,
    ),
    Same(
        "decay once, at the client",
        ("fedavg", ONE_STEP | {"weight_decay": 0.1}),
        ("fedsgd", FULL | {"weight_decay": 0.1}),
        exact=False,
    ),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", [row for row in OPTIONS if row.exact], ids=lambda row: row.name)
def test_equal_in_every_bit(row: Same, dtype: str) -> None:
    left, right = row.ends(dtype)
    assert torch.equal(left, right)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("row", [row for row in OPTIONS if not row.exact], ids=lambda row: row.name)
def test_equal_up_to_rounding(row: Same, dtype: str, tolerance: float) -> None:
    left, right = row.ends(dtype)
    torch.testing.assert_close(left, right, rtol=0, atol=tolerance)


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


def test_algorithms_do_differ() -> None:
    """Without this, equal weights everywhere could be a run that does nothing."""
    names = ("fedsgd", "fedavg", "fedavg:weights=uniform", "scaffold", "scaffold:option=I")
    assert len({small_run(name, batch_size=16).fingerprint for name in names}) == 5


def descent(trial: Trial, rounds: int) -> Tensor:
    """Plain gradient descent on all samples at once, without this package."""
    x, y = pooled(trial).clients[0]
    dtype = getattr(torch, trial.dtype)
    x = x.to(dtype)
    y = y.to(dtype) if y.is_floating_point() else y
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


@pytest.mark.parametrize(
    ("trial", "tolerance"),
    [
        (uneven_quadratic(), 1e-12),
        (replace(classifier(), dtype="float64"), 1e-12),
        (classifier(), 1e-6),
    ],
    ids=["quadratic", "net", "net float32"],
)
def test_fedsgd_with_everybody_is_gradient_descent_on_the_pooled_data(
    trial: Trial, tolerance: float
) -> None:
    everyone = trial.everyone().working(batch_size=None)
    end = path("fedsgd", everyone)[-1]
    assert float((end - descent(everyone, everyone.rounds)).abs().max()) <= tolerance
