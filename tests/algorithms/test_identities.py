"""Algebraic equalities between algorithms, one row each, and SCAFFOLD's invariant.

"Exact" rows agree in every bit: the same seeds give the same minibatches, updates are summed in
the same order, and a correction of zero is exactly zero. The others agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedrift as fr
from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.scaffold import Scaffold
from fedrift.core import SGD, Local, flatten
from fedrift.engine.callbacks import RoundReport
from tests.support.problems import blobs, quadratic_clients, small_run, trajectory, uneven_clients

Row = tuple[Any, dict[str, Any], Any, dict[str, Any]]
EVEN = fr.split(*blobs(140), "iid", clients=7, seed=3)
ALL: dict[str, Any] = {"per_round": None}
ONE_STEP: dict[str, Any] = {"steps": 1, "batch_size": None}
FULL: dict[str, Any] = {"batch_size": None}
LOCAL = Local(lr=0.1, batch_size=16)

EXACT: dict[str, Row] = {
    "scaffold, c_i ≡ c = fedavg": (
        "scaffold:freeze_controls=true",
        {"epochs": 2},
        "fedavg:weights=uniform",
        {"epochs": 2},
    ),
    "scaffold's first round = fedavg's": (
        "scaffold",
        {"rounds": 1},
        "fedavg:weights=uniform",
        {"rounds": 1},
    ),
    "scaffold I's first round = fedavg's": (
        "scaffold:option=I",
        {"rounds": 1},
        "fedavg:weights=uniform",
        {"rounds": 1},
    ),
    "server sgd at rate 1 = fedavg": (FedAvg(LOCAL, outer=SGD(lr=1.0)), {}, "fedavg", {}),
    "server momentum 0 = fedavg": (FedAvg(LOCAL, outer=SGD(momentum=0.0)), {}, "fedavg", {}),
    "steps are epochs of equal clients": (
        "fedavg",
        {"clients": EVEN, "epochs": 3},
        "fedavg",
        {"clients": EVEN, "steps": 6},
    ),
    "a list of equal amounts = the amount": (
        "scaffold",
        {"epochs": [2] * 7},
        "scaffold",
        {"epochs": 2},
    ),
    "everybody on a schedule = everybody": (
        "scaffold",
        ALL | {"participants": [list(range(7))] * 5},
        "scaffold",
        ALL,
    ),
    "a constant schedule = no schedule": ("fedavg", {"schedule": "exp:1"}, "fedavg", {}),
    "no decay, no momentum = plain": (
        "fedavg",
        {"momentum": 0.0, "weight_decay": 0.0},
        "fedavg",
        {},
    ),
    "batches as large as a client = full": ("fedavg", {"batch_size": 10_000}, "fedavg", FULL),
}

CLOSE: dict[str, Row] = {
    "fedavg, one full step = fedsgd": ("fedavg", ONE_STEP, "fedsgd", FULL),
    "scaffold, one full step, all = fedsgd": (
        "scaffold",
        ALL | ONE_STEP,
        "fedsgd:weights=uniform",
        ALL | FULL,
    ),
    "equal clients: uniform = samples": (
        "fedavg:weights=uniform",
        {"clients": EVEN},
        "fedavg",
        {"clients": EVEN},
    ),
    "equal clients: scaffold's objectives agree": (
        "scaffold:objective=samples",
        ALL | {"clients": EVEN},
        "scaffold",
        ALL | {"clients": EVEN},
    ),
    "without momentum, raw gradients are option II": (
        "scaffold:momentum_repair=raw",
        {},
        "scaffold",
        {},
    ),
    "without momentum, outside is inside": ("scaffold:momentum_repair=outside", {}, "scaffold", {}),
    "decay once, at the client": (
        "fedavg",
        ONE_STEP | {"weight_decay": 0.1},
        "fedsgd",
        FULL | {"weight_decay": 0.1},
    ),
}


def weights_of(name: Any, options: dict[str, Any], dtype: str) -> Tensor:
    return small_run(name, **({"test": None, "rounds": 3, "dtype": dtype} | options)).weights


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("row", EXACT)
def test_equal_in_every_bit(row: str, dtype: str) -> None:
    left, with_left, right, with_right = EXACT[row]
    assert torch.equal(weights_of(left, with_left, dtype), weights_of(right, with_right, dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("row", CLOSE)
def test_equal_up_to_rounding(row: str, dtype: str, tolerance: float) -> None:
    left, with_left, right, with_right = CLOSE[row]
    one, other = weights_of(left, with_left, dtype), weights_of(right, with_right, dtype)
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_fedsgd_with_everybody_is_gradient_descent_on_the_pooled_data(
    dtype: str, tolerance: float
) -> None:
    clients = uneven_clients()
    result = small_run("fedsgd", clients=clients, per_round=None, batch_size=None, dtype=dtype)
    module = result.problem.module(result.problem.w0, {})
    order = [i for part in clients.parts for i in part]
    x, y = clients.x[order].to(result.weights.dtype), clients.y[order]
    descent = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        descent.zero_grad()
        F.cross_entropy(module(x), y).backward()
        descent.step()
    pooled = flatten(list(module.parameters()))
    torch.testing.assert_close(result.weights, pooled, rtol=0, atol=tolerance)


def test_algorithms_do_differ() -> None:
    """Without this, equal weights everywhere could be a run that does nothing."""
    names = ("fedsgd", "fedavg", "fedavg:weights=uniform", "scaffold", "scaffold:option=I")
    assert len({small_run(name, batch_size=16).fingerprint for name in names}) == 5


def watch_controls(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tensor]:
    """Every client's c_i as its last visit returned it; who never came still has zero."""
    held: dict[int, Tensor] = {}
    train: Callable[..., Any] = Scaffold.train

    @wraps(train)
    def watched(self: Any, site: Any, down: Any, mine: Any) -> Any:
        if site.client in held:
            assert torch.equal(mine.c, held[site.client]), "the state it left is the state it finds"
        up, new = train(self, site, down, mine)
        held[site.client] = new.c.clone()
        return up, new

    monkeypatch.setattr(Scaffold, "train", watched)
    return held


@pytest.mark.parametrize(
    "how",
    [
        {"dtype": "float32"},
        {"dtype": "float32", "batch_size": None},
        {},
        {"epochs": "uniform:1,4"},
        {"weight_decay": 0.01},
        {"schedule": "exp:0.7"},
        {"sampling": "bernoulli"},
        {"sampling": "cyclic", "per_round": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_c_is_the_mean_of_all_c_i(
    option: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every round, with a part of unequal clients taking part: c = (1/N) Σ_i c_i."""
    held, errors = watch_controls(monkeypatch), list[float]()

    def check(r: RoundReport) -> None:
        mean = sum(held.values(), torch.zeros_like(r.state.c)) / 7
        errors.append(float((r.state.c - mean).abs().max() / mean.abs().max()))

    how = {"dtype": "float64", "rounds": 6, "test": None} | how
    small_run(f"scaffold:option={option}", on_round=check, **how)
    assert len(errors) == 6 and len(held) > 3
    assert max(errors) < (1e-5 if how["dtype"] == "float32" else 1e-13)


def test_scaffolds_c_with_a_weighted_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    """c = Σ p_i c_i with everybody in every round."""
    held, clients = watch_controls(monkeypatch), uneven_clients()
    last: list[Any] = []
    small_run("scaffold:objective=samples", dtype="float64", per_round=None, on_round=last.append)
    p = torch.tensor(clients.sizes / clients.sizes.sum())
    mean = sum((p[c] * v for c, v in held.items()), torch.zeros_like(last[-1].state.c))
    torch.testing.assert_close(last[-1].state.c, mean, rtol=0, atol=1e-12)


def test_empty_clients_count_in_scaffolds_population() -> None:
    """The golden problem among four clients, two of them without data: N = 4 in c += Σ Δc/N."""
    a, b = quadratic_clients()
    nobody = a[0][:0], a[1][:0]
    states: list[Any] = []
    trajectory("scaffold", rounds=1, clients=[a, nobody, b, nobody], on_round=states.append)
    there: list[Any] = []
    trajectory("scaffold", rounds=1, on_round=there.append)
    torch.testing.assert_close(2 * states[0].state.c, there[0].state.c)
