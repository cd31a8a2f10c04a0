"""What a visit is given is not its own: who writes into it is told so, on every backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fedrift as fr
from fedrift.core import (
    Algorithm,
    Cohort,
    EvaluatedModel,
    Local,
    Mean,
    Problem,
    Site,
    Vec,
    message,
    state,
)
from tests.support.problems import Net, blobs


@message
class Down:
    w: Vec
    pair: tuple[Vec, Vec]


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
class Writes(Algorithm[Server, Own]):
    """FedAvg that writes into what it is given."""

    where: str = ""
    local: Local = Local(lr=0.1, steps=2, batch_size=4)

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Own:
        return Own(v=torch.zeros_like(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=cohort.ask(self.train, Down(w=s.w, pair=(s.w, s.w + 1))).w)

    def train(self, site: Site, down: Down, mine: Own) -> tuple[Up, Own]:
        found = site.train(self.local, down.w).w
        if self.where == "w":
            down.w.add_(0.01)
        elif self.where == "view":
            down.pair[1][:3] = 0.0
        elif self.where == "mine":
            mine.v.copy_(found)
        return Up(w=found), replace(mine, v=found - down.w)

    def personal(self, site: Site, shown: EvaluatedModel, mine: Own) -> EvaluatedModel:
        if self.where == "personal":
            shown.w.add_(mine.v)
        return replace(shown, w=shown.w + mine.v)


def run(where: str, **how: Any) -> fr.Result:
    x, y = blobs(40)
    clients = [(x[i::3], y[i::3]) for i in range(3)]
    given: dict[str, Any] = {"eval_clients": 1, "rounds": 2, "workers": 0, "stack": "off"}
    given |= {"client_test": 0.3}
    model = partial(nn.Linear, 8, 4) if how.get("stack") == "on" else Net
    return fr.run(Writes(where), model=model, clients=clients, **(given | how))


WAYS: dict[str, dict[str, Any]] = {
    "in process": {},
    "stacked": {"stack": "on"},
    "workers": {"workers": 1},
    "wire": {"backend": "wire"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("where", "field"),
    [("w", "down.w"), ("view", r"down.pair.1"), ("mine", "mine.v"), ("personal", "shown.w")],
)
def test_who_writes_into_what_it_was_given_is_refused(where: str, field: str, way: str) -> None:
    with pytest.raises(fr.InputError, match=f"writes into '{field}'.*clone"):
        run(where, **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_is_not(way: str) -> None:
    assert run("", **WAYS[way]).status == "done"
