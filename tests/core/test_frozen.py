"""What must not be written to is not: algorithms, messages, states, and what a client is sent."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.algorithms import fedavg, fedsgd, scaffold
from fedrift.core import (
    SAM,
    SGD,
    Adam,
    Algorithm,
    Cohort,
    Local,
    Mean,
    Problem,
    Prox,
    Site,
    Step,
    Vec,
    message,
    pack,
    state,
)
from fedrift.engine.ledger import Cost
from tests.support.problems import Net, blobs, small_run

W = torch.zeros(3)
OPT = SGD().init(W)
VALUES: list[Any] = [
    fedsgd.FedSGD(),
    fedavg.FedAvg(),
    scaffold.Scaffold(),
    fedavg.Down(w=W),
    fedavg.Up(delta=W),
    fedsgd.Up(g=W),
    scaffold.Down(w=W, c=W),
    scaffold.Server(w=W, c=W, opt=OPT),
    scaffold.Client(c=W),
    OPT,
    Local(),
    SGD(),
    Adam(),
    SAM(0.1),
    Prox(0.1),
    Cost(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{type(v).__module__}.{type(v).__name__}")
def test_values_cannot_be_assigned_to(value: Any) -> None:
    assert is_dataclass(value)
    for name in (*(field.name for field in fields(value)), "something_new"):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, None)


@pytest.mark.parametrize("cls", [fedavg.Down, scaffold.Up, scaffold.Client])
def test_messages_and_states_are_written_with_names(cls: Any) -> None:
    with pytest.raises(TypeError):
        cls(W)


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]


@state
class Server:
    w: Vec


@state
class Client:
    v: Vec


@dataclass(frozen=True)
class Careless(Algorithm[Server, Client]):
    """Writes where it must not, if told to."""

    writes: str = ""
    local: Local = Local()

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Client:
        return Client(v=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + up.delta)

    def train(self, site: Site, down: Down, mine: Client) -> tuple[Up, Client]:
        run = site.train(self.local, down.w)
        if self.writes == "down":
            down.w.data.add_(1.0)  # where no count of writes tells
        if self.writes == "mine":
            mine.v.data.add_(1.0)
        return Up(delta=run.delta), Client(v=mine.v + 1.0)


@pytest.mark.parametrize("writes", ["down", "mine"])
def test_the_wire_catches_who_writes_to_what_it_was_sent(writes: str) -> None:
    with pytest.raises(AssertionError, match="'train' wrote to its message or its old state"):
        small_run(Careless(writes), backend="wire")
    assert small_run(Careless(), backend="wire").status == "done"


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold", "scaffold:option=I"])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_no_algorithm_writes_to_what_it_was_sent(name: str, momentum: float | None) -> None:
    if momentum and name.startswith("scaffold") and "=" not in name:
        name += ":momentum_repair=raw"
    small_run(name, backend="wire", rounds=2, momentum=momentum, weight_decay=0.1, clip=1.0)


def storages(value: Any) -> list[int]:
    leaves = [leaf for leaf in pack(value).values() if isinstance(leaf, torch.Tensor)]
    return [leaf.untyped_storage().data_ptr() for leaf in leaves if leaf.numel()]


@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold"])
def test_states_of_different_rounds_share_no_memory(name: str) -> None:
    """Old states stay what they were: a report may be kept and looked at later."""
    seen: list[tuple[Any, Vec]] = []
    small_run(name, on_round=lambda r: seen.append((r.state, r.state.w.clone())))
    assert all(torch.equal(s.w, w) for s, w in seen)
    pointers = [p for s, _ in seen for p in storages(s)]
    assert len(set(pointers)) == len(pointers)


def test_a_problem_is_not_moved_by_a_run() -> None:
    result = small_run("scaffold")
    again = small_run("scaffold", rounds=1)
    assert torch.equal(result.problem.w0, again.problem.w0)
    assert not torch.equal(result.weights, result.problem.w0)


def test_a_copy_with_changes_leaves_the_original() -> None:
    local = Local()
    changed = replace(local, lr=0.7, optimizer=SGD(momentum=0.9))
    assert local.lr == 0.1 and not local.has_memory and changed.has_memory
    assert replace(changed, lr=0.1, optimizer=SGD()) == local


class Careful(nn.Module):
    """Scales its input in place, as people do to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.mul_(0.5))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_model_that_writes_to_its_input_does_not_spoil_the_data(workers: int) -> None:
    x, y = blobs(200, seed=5)
    result = small_run("fedavg", model=Careful, test=(x, y), workers=workers)
    assert torch.equal(x, blobs(200, seed=5)[0]), "the caller's test data are as they were"
    hits = (result.module().eval()(x.clone()).argmax(1) == y).double().mean().item()
    assert result.accuracy[-1] == pytest.approx(hits)


def test_a_gradient_taken_twice_sees_the_same_batch() -> None:
    """The second pass of a step must not find what the first has written to its input."""
    clients = [blobs(30)]
    problem = small_run("fedavg", model=Careful, clients=clients, per_round=None, rounds=1).problem
    seen: list[Vec] = []

    def twice(step: Step) -> Vec:
        seen.extend(step.grad(step.w).clone() for _ in range(2))
        return step.buffer().zero_()

    data = fr.Split(*clients[0], [np.arange(30)]).view(0)
    site = Site(problem, data, client=0, round=0, seed=0)
    site.train(Local(epochs=None, steps=1, batch_size=8), problem.w0, gradient=twice)
    assert torch.equal(seen[0], seen[1])
