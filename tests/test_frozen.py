"""What must not be written to is not: algorithms, messages, states, and what a client is sent."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from fedrift.algorithm import Algorithm, Cohort
from fedrift.algorithms import fedavg, fedsgd, scaffold
from fedrift.flat import Vec
from fedrift.ledger import Cost
from fedrift.local import Local
from fedrift.messages import Mean, message, pack, state
from fedrift.optim import SGD, Adam
from fedrift.pieces import SAM, Prox
from fedrift.problem import Problem
from fedrift.site import Site
from problems import small_run

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
            down.w.add_(1.0)
        if self.writes == "mine":
            mine.v.add_(1.0)
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
