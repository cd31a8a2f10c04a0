"""Training on another device, with the same code on one that this machine has.

Tensors of the `meta` device have no content, so reading a number back fails; a guard refuses every
operation on tensors of two devices. What passes mixes no devices and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedrift import api, models
from fedrift.backends.stacking.chain import chain_of
from fedrift.backends.stacking.scheduler import StackScheduler
from fedrift.core import (
    ASAM,
    SAM,
    SGD,
    SVRG,
    Adagrad,
    Adam,
    Blend,
    Extra,
    Linear,
    Local,
    Momentum,
    OptState,
    Plain,
    Problem,
    Prox,
    Site,
    Vec,
    pack,
)
from fedrift.core.flat import sent
from fedrift.core.messages import placed
from tests.support.problems import blobs, uneven_clients

COPIES = (torch.ops.aten.copy_, torch.ops.aten._to_copy, torch.ops.aten._foreach_copy_)
DROPOUT = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 4))
RULES = [Plain(), SAM(0.1), ASAM(0.1, 0.2), Extra(0.1, 0.5)]
OPTIMIZERS = [SGD(), SGD(momentum=0.9, nesterov=True, weight_decay=0.1), Momentum(0.9), Adam()]


class OneDevice(TorchDispatchMode):
    """Fails where an operation is given tensors of two devices, as a GPU would; copies may be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim()]
        if func.overloadpacket not in COPIES and len({t.device for t in given}) > 1:
            raise RuntimeError(f"{func} is given tensors of several devices")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_device() -> Generator[None]:
    with OneDevice():
        yield


def away(model: Any) -> tuple[Problem, Any]:
    """A task whose model and samples are on the other device."""
    settings = {"model": model, "clients": uneven_clients(), "test": blobs(20), "rounds": 1}
    task = api.task_of("fedavg", {**settings, "lr": 0.1, "batch_size": 16})
    problem = replace(task.problem, device="meta", _bound=[])
    return problem, task.split.with_data(task.split.x.to("meta"), task.split.y.to("meta"))


def site_of(model: Any, is_stacked: bool) -> Site:
    problem, split = away(model)
    meet = None
    if is_stacked:
        chain = chain_of(problem.model.module, problem.layout, problem.loss)
        assert chain is not None
        stacks = StackScheduler(problem, chain)
        stacks._takes = lambda samples: True  # type: ignore[method-assign]
        meet = stacks.alone
    return Site(problem, split.view(1), client=1, round=0, seed=0, meet=meet)


def vector(site: Site) -> Vec:
    return torch.zeros_like(site.problem.w0, device="meta")


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, Adagrad()], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("is_stacked", [False, True])
def test_local_training_stays_on_its_device(is_stacked: bool, rule: Any, optimizer: Any) -> None:
    site = site_of(models.factory("mlp:hidden=6", (8,), 4), is_stacked)
    local = Local(batch_size=64, epochs=2, gradient=rule, optimizer=optimizer, clip=1.0)
    w, v = vector(site), vector(site)
    corrections = (Linear(v), Prox(0.1), Prox(0.1, v), Blend(0.5, v), SVRG(v, v))
    run = site.train(local, w, *corrections, outside=(Linear(v),), mean_grad=True)
    assert run.w.is_meta and run.delta.is_meta and run.mean_grad is not None
    assert site.work.gradients and site.work.steps == run.steps > 1


def test_plain_training_and_gradients_stay_on_their_device() -> None:
    for is_stacked in (False, True):
        site = site_of(models.factory("logistic", (8,), 4), is_stacked)
        assert site.train(Local(batch_size=16), vector(site)).w.is_meta
        assert site.full_grad(vector(site)).is_meta
        assert site.minibatch_grad(vector(site), 16).is_meta


def test_dropout_and_images_stay_on_their_device() -> None:
    site = site_of(DROPOUT, False)
    assert site.train(Local(batch_size=16), vector(site)).w.is_meta
    x, y = torch.randn(20, 1, 16, 16), torch.arange(20) % 4
    settings: dict[str, Any] = {"model": models.factory("cnn", (1, 16, 16), 4)}
    settings |= {"clients": [(x, y)], "rounds": 1, "lr": 0.1}
    task = api.task_of("fedavg", settings)
    problem = replace(task.problem, device="meta", _bound=[])
    split = task.split.with_data(task.split.x.to("meta"), task.split.y.to("meta"))
    site = Site(problem, split.view(0), client=0, round=0, seed=0)
    assert site.train(Local(batch_size=8), vector(site)).w.is_meta


def test_a_mistake_would_be_seen() -> None:
    site = site_of(models.factory("logistic", (8,), 4), True)

    def waits(g: Vec, step: Any) -> None:
        g.mul_(float(g.sum()))

    with pytest.raises(RuntimeError):
        site.train(Local(batch_size=16), vector(site), waits)
    with pytest.raises(RuntimeError):
        site.train(Local(batch_size=16), vector(site), Linear(torch.zeros(36)))


def test_messages_move_with_their_vectors() -> None:
    state = OptState(slots=(torch.ones(3),), count=torch.tensor(4))
    there = pack(placed(state, "meta"))
    assert there["slots.0"].is_meta and not there["count"].is_meta
    assert placed(None, "meta") is None
    moved: Tensor = sent(torch.ones(2), torch.device("meta"))
    assert moved.is_meta
