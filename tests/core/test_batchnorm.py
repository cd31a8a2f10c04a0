"""Batch normalisation: running statistics travel beside w, are averaged, and nothing breaks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from fedrift.algorithms.fedavg import Up
from fedrift.backends.backend import Fold
from fedrift.backends.visit import Reply
from fedrift.core import SAM, SVRG, Local, Problem, Site, Weights, define
from fedrift.core.exchange import Exchange, signature
from fedrift.core.site import Work
from tests.support.problems import blobs, small_run
from tests.support.product import FedAvg


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


NAMES = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


def task(n: int = 20) -> tuple[Problem, fr.Split]:
    x, y = blobs(n)
    how: dict[str, Any] = {"population": 1, "participation": 1.0, "rounds": 1}
    problem = define(Normed, F.cross_entropy, (x[:2], y[:2]), init_seed=0, **how)
    return problem, fr.Split(x, y, [np.arange(n)])


def site_of(problem: Problem, split: fr.Split) -> Site:
    problem.model.load_buffers([problem.rest[name] for name in problem.moving])
    return Site(problem, split.view(0), client=0, round=0, seed=0)


def test_running_statistics_are_not_in_w() -> None:
    problem, _ = task()
    assert problem.moving == NAMES
    assert problem.layout.size == 8 * 6 + 6 + 6 + 6 + 6 * 4 + 4
    assert torch.equal(problem.rest["1.running_mean"], torch.zeros(6)), "looking moved nothing"
    assert problem.rest["1.num_batches_tracked"] == 0


def reply(mean: float, batches: int) -> Reply:
    buffers = torch.full((6,), mean), torch.full((6,), 2 * mean), torch.tensor(batches)
    return Reply(Up(delta=torch.zeros(3)), None, buffers, Work(), True)


def exchange(weights: Weights, buffers: tuple[Tensor, ...]) -> Exchange:
    return Exchange(
        phase="train",
        signature=signature(FedAvg().train),
        round=0,
        seed=0,
        down=None,
        private={},
        buffers=buffers,
        weights=weights,
    )


@pytest.mark.parametrize(("weights", "mean"), [("samples", 4.0), ("uniform", 3.0)])
def test_statistics_are_averaged_by_weight_and_counters_take_the_largest(
    weights: Weights, mean: float
) -> None:
    before = torch.zeros(6), torch.ones(6), torch.tensor(0)
    fold = Fold(exchange(weights, before))
    fold.add(0, 10, reply(1.0, 7))
    fold.add(1, 30, reply(5.0, 3))
    buffers = fold.outcome().buffers
    assert torch.equal(buffers[0], torch.full((6,), mean))
    assert torch.equal(buffers[1], torch.full((6,), 2 * mean))
    assert buffers[0].dtype == torch.float32
    assert buffers[2] == 7 and buffers[2].dtype == torch.int64


def test_without_an_answer_the_statistics_stay() -> None:
    before = torch.zeros(6), torch.ones(6), torch.tensor(0)
    assert Fold(exchange("samples", before)).outcome().buffers == before


def test_one_client_alone_moves_them_as_torch_does() -> None:
    problem, split = task()
    result = small_run(
        "fedavg", model=Normed, clients=split, per_round=None, rounds=1, batch_size=None
    )
    module = result.problem.module(result.problem.w0, {}).train()
    module(split.x)
    expected, given = dict(module.named_buffers()), dict(result.module().named_buffers())
    for name in NAMES:
        torch.testing.assert_close(given[name], expected[name])
    assert problem.layout == result.problem.layout


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold"])
def test_the_module_of_a_result_is_the_model_that_was_measured(name: str) -> None:
    result = small_run(name, model=Normed)
    x, y = blobs(200, seed=5)
    module = result.module().eval()
    accuracy = (module(x).argmax(1) == y).double().mean().item()
    assert accuracy == result.accuracy[-1]
    assert F.cross_entropy(module(x), y).item() == pytest.approx(result.loss[-1], rel=1e-5)


def test_a_result_read_from_its_folder_has_the_statistics_too(tmp_path: Path) -> None:
    runs = [small_run("fedavg", model=Normed, out=tmp_path / "run") for _ in range(2)]
    first, again = (r.module().state_dict() for r in runs)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_statistics_are_the_same_in_workers() -> None:
    runs = [small_run("scaffold", model=Normed, rounds=2, **how) for how in ({}, {"workers": 2})]
    first, again = (r.module().state_dict() for r in runs)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert runs[0].fingerprint == runs[1].fingerprint


def test_a_round_that_is_taken_back_takes_its_statistics_along() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(output, y)
        if not torch.is_grad_enabled():
            seen.append(0)
            return value * (math.inf if len(seen) > 2 else 1.0)
        return value

    seen: list[int] = []
    how: dict[str, Any] = {"model": Normed, "test": blobs(50)}
    broken = small_run("fedavg", loss=loss, **how)
    assert (broken.status, broken.diverged_at) == ("diverged", 3)
    two = small_run("fedavg", rounds=2, **how)
    assert torch.equal(broken.weights, two.weights)
    first, again = broken.module().state_dict(), two.module().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("size", [4, 7, 19, None])
def test_a_last_batch_of_one_joins_the_one_before(size: int | None) -> None:
    """29 = 7·4 + 1 = 4·7 + 1: torch refuses to normalise the lonely one."""
    n = 20 if size == 19 else 29
    x, y = blobs(n)
    result = small_run(
        "fedavg", model=Normed, clients=[(x, y)], per_round=None, rounds=2, batch_size=size
    )
    steps = 1 if size in (19, None) else n // (size or n)
    assert [e.steps for e in result.ledger.entries] == [steps, steps]
    assert result.ledger.gradients == 2 * n, "nobody is left out"


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold:option=I"])
def test_a_client_with_one_sample_trains(name: str) -> None:
    x, y = blobs(30)
    clients = [(x[:1], y[:1]), (x[1:], y[1:])]
    how: dict[str, Any] = {"model": Normed, "clients": clients, "per_round": None, "rounds": 2}
    only: list[list[int]] = [[0], [0]]
    alone = small_run(name, **how, participants=only)
    assert not torch.equal(alone.weights, alone.problem.w0)
    given = dict(alone.module().named_buffers())
    assert torch.equal(given["1.running_mean"], torch.zeros(6)), "one sample is no statistic"
    assert small_run(name, **how).status == "done"


@pytest.mark.parametrize("size", [6, None])
def test_a_second_pass_does_not_move_statistics(size: int | None) -> None:
    problem, split = task()
    w = problem.w0
    local = Local(lr=0.0, epochs=2, batch_size=size)
    site_of(problem, split).train(local, w)
    once = problem.model.buffers()
    assert once[2] == 2 * (4 if size else 1)
    ways: list[dict[str, Any]] = [
        {"gradient": SAM(0.5)},
        {"outside": (SVRG(at=w * 0.5, mean=torch.zeros_like(w)),)},
    ]
    for twice in ways:
        site_of(problem, split).train(local, w, **twice)
        for a, b in zip(problem.model.buffers(), once, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
            assert a.dtype == b.dtype


def test_a_full_gradient_for_its_own_sake_moves_nothing() -> None:
    problem, split = task()
    site = site_of(problem, split)
    before = problem.model.buffers()
    site.full_grad(problem.w0)
    assert all(torch.equal(a, b) for a, b in zip(problem.model.buffers(), before, strict=True))
    assert not site.has_trained


def test_statistics_of_a_broken_client_are_dropped_with_it() -> None:
    x, y = blobs(40)
    far = torch.full_like(x[20:], 1e30)  # finite, but its variance is not
    how: dict[str, Any] = {"model": Normed, "rounds": 1, "per_round": None, "batch_size": None}
    result = small_run("fedavg", clients=[(x[:20], y[:20]), (far, y[20:])], **how)
    if result.ledger.entries[0].nonfinite == (1,):
        alone = small_run("fedavg", clients=[(x[:20], y[:20])], **how)
        first, again = result.module().state_dict(), alone.module().state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(bool(torch.isfinite(b).all()) for b in result.module().buffers())


def test_batches_of_one_are_refused_or_trained_but_do_not_crash_inside_torch() -> None:
    try:
        assert small_run("fedavg", model=Normed, batch_size=1, rounds=1).status == "done"
    except fr.InputError as error:
        assert "batch_size" in str(error)


def test_one_test_sample_is_enough() -> None:
    """Evaluation uses the running statistics, which one sample does not disturb."""
    x, y = blobs(1)
    assert len(small_run("fedavg", model=Normed, test=(x, y), rounds=2).loss) == 2
