"""Models of the clients' own: who makes them, from what, and that nothing else feels it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedrift as fr
from fedrift.algorithms import NAMES
from fedrift.backends.visit import Call, Visitor
from fedrift.core import (
    Algorithm,
    Cohort,
    EvaluatedModel,
    Local,
    Mean,
    Problem,
    Site,
    Vec,
    define,
    message,
    state,
)
from fedrift.core.composition import personal_path
from fedrift.errors import InputError
from tests.support.problems import Net, blobs


@message
class Down:
    w: Vec


@message
class Up:
    w: Mean[Vec]


@state
class Server:
    w: Vec


@state
class Own:
    v: Vec


@dataclass(frozen=True)
class Tuned(Algorithm[Server, Own]):
    """FedAvg whose clients add what they keep to the model and train it before it is evaluated."""

    local: Local = Local(lr=0.1, batch_size=4)

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Own:
        return Own(v=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=cohort.ask(self.train, Down(w=s.w)).w)

    def train(self, site: Site, down: Down, mine: Own) -> tuple[Up, Own]:
        w = site.train(self.local, down.w).w
        return Up(w=w), Own(v=w - down.w)

    def personal(self, site: Site, shown: EvaluatedModel, mine: Own) -> EvaluatedModel:
        return replace(shown, w=site.train(self.local, shown.w + mine.v).w)


def task(root: Algorithm[Any, Any], stack: Any = "off") -> tuple[Problem, Visitor]:
    x, y = blobs(40)
    how: dict[str, Any] = {"population": 2, "participation": 1.0, "rounds": 1, "stack": stack}
    make = Net if stack == "off" else partial(nn.Linear, 8, 4)
    problem = define(make, F.cross_entropy, (x[:2], y[:2]), init_seed=0, **how)
    return problem, Visitor(root, problem, fr.Split(x, y, [np.arange(15), np.arange(15, 40)]))


def test_who_makes_personal_models_is_found_inside_wrappers() -> None:
    tuned = Tuned()
    problem, _ = task(tuned)
    assert personal_path(NAMES["fedavg"](), problem) is None
    assert personal_path(tuned, problem) == ""
    assert personal_path(NAMES["swa"](inner=tuned), problem) == "inner"
    assert personal_path(NAMES["fed3rft"](inner=tuned), problem) == "second"


def test_a_part_of_the_model_is_no_personal_model() -> None:
    tuned = NAMES["fed3rft"](inner=Tuned(), train="head")
    problem, _ = task(tuned)
    with pytest.raises(InputError, match="Tuned has models of the clients' own"):
        personal_path(tuned, problem)


def test_it_gets_the_servers_model_and_the_clients_state() -> None:
    tuned = replace(Tuned(), local=Local(lr=0.1, steps=0))
    problem, visitor = task(tuned)
    shown, own = EvaluatedModel(problem.w0), Own(v=torch.ones_like(problem.w0))
    made = visitor.personal(Call("", 3, 5), 1, shown, own)
    assert torch.equal(made.w, problem.w0 + 1)
    plain = NAMES["fedavg"]()
    assert task(plain)[1].personal(Call("", 3, 5), 1, shown, None) is shown


@pytest.mark.parametrize("stack", ["off", "on"])
def test_its_random_numbers_are_its_own_and_the_same_again(stack: Any) -> None:
    tuned = Tuned()
    problem, visitor = task(tuned, stack)
    call, zero = Call("train", 3, 5), tuned.client(problem)
    trained = visitor.visit(call, 1, Down(w=problem.w0), None, zero, (), {}).up.w
    once, again = (
        visitor.personal(replace(call, phase=""), 1, EvaluatedModel(problem.w0), zero).w
        for _ in range(2)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, trained)
    assert torch.equal(visitor.visit(call, 1, Down(w=problem.w0), None, zero, (), {}).up.w, trained)
