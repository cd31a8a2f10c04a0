"""Experts: the router against a direct calculation, what is computed, and one more later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.cli import code_of
from fedrift.errors import InputError


class Net(nn.Module):
    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def task(place: int) -> tuple[Tensor, Tensor]:
    """Inputs in a region of their own; what is class 0 here is another class elsewhere."""
    random = torch.Generator().manual_seed(place)
    x = torch.randn(80, 6, generator=random)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    x[:, 3 + place] += 6.0
    return x, (y + place) % 3


TASKS = [task(place) for place in range(3)]
LOCAL: dict[str, Any] = {"rounds": 30, "lr": 0.3, "workers": 0, "batch_size": 20}


@pytest.fixture(scope="module")
def specialists() -> list[fr.Result]:
    return [fr.run("fedavg", model=Net, clients=[t], test=t, **LOCAL) for t in TASKS]


def features(one: fr.Result, x: Tensor) -> np.ndarray:
    start = one.problem.module(one.problem.w0, {})
    phi = torch.tanh(start.hidden(x)).detach().double().numpy()  # type: ignore[operator]
    return np.c_[phi, np.ones(len(x))]


def test_the_ridge_gate_is_the_regression_on_all_inputs(specialists: list[fr.Result]) -> None:
    made = fr.experts(specialists, data=TASKS, tests=TASKS)
    phi = np.concatenate([features(specialists[0], x) for x, _ in TASKS])
    whose = np.eye(3)[np.repeat(np.arange(3), 80)]
    gate = np.linalg.solve(phi.T @ phi + 0.01 * np.eye(13), phi.T @ whose)
    np.testing.assert_allclose(made.module().gate, gate, rtol=1e-6, atol=1e-8)  # type: ignore[arg-type]
    best = (phi @ gate).argmax(1).reshape(3, 80)
    shares = [[np.mean(best[t] == e) for e in range(3)] for t in range(3)]
    np.testing.assert_allclose(made.routed, shares)


def test_prototypes_are_means(specialists: list[fr.Result]) -> None:
    made = fr.experts(specialists, "prototype", data=TASKS, tests=TASKS)
    means = [features(specialists[0], x)[:, :-1].mean(0) for x, _ in TASKS]
    np.testing.assert_allclose(made.module().gate, means, rtol=1e-6)  # type: ignore[arg-type]
    assert np.diagonal(made.routed).min() > 0.9


@pytest.mark.parametrize("router", ["ridge", "prototype"])
def test_together_they_do_what_each_does(specialists: list[fr.Result], router: str) -> None:
    made = fr.experts(specialists, router, data=TASKS, tests=TASKS)
    own = np.diagonal(made.scores[:3])
    assert (own == [one.accuracy[-1] for one in specialists]).all()
    assert (made.scores[-1] >= own - 0.1).all() and own.min() > 0.7
    assert fr.merge(specialists, tests=TASKS).scores[-1].mean() < made.scores[-1].mean() - 0.2


@pytest.mark.parametrize(("mix", "passes"), [("top-1", 1.0), ("soft", 3.0)])
def test_what_is_computed_is_counted(specialists: list[fr.Result], mix: str, passes: float) -> None:
    made = fr.experts(specialists, mix=mix, data=TASKS, tests=TASKS)
    assert made.passes == passes
    assert made.parameters_used == passes * specialists[0].weights.numel()
    module, given = made.module(), list[int]()
    for expert in module.experts:
        expert.register_forward_pre_hook(lambda _, x: given.append(len(x[0])))
    module(TASKS[0][0])
    assert sum(given) == passes * 80 == module.passes
    each = specialists[0].weights.nbytes
    statistics = 8 * (13 * 14 // 2 + 13 + 1)
    assert made.ledger.bytes_up == 3 * (each + statistics)


def test_soft_is_the_mean_of_probabilities(specialists: list[fr.Result]) -> None:
    module = fr.experts(specialists, mix="soft", data=TASKS).module()
    x = TASKS[1][0]
    weights = torch.softmax(module.scores(x), 1)
    shares = torch.stack([torch.softmax(one.module()(x), 1) for one in specialists], 1)
    expected = (weights[..., None] * shares).sum(1)
    torch.testing.assert_close(module(x).exp().double(), expected.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("router", ["ridge", "prototype"])
def test_another_expert_leaves_the_others_as_they_are(
    specialists: list[fr.Result], router: str
) -> None:
    before = fr.experts(specialists[:2], router, data=TASKS[:2], tests=TASKS[:2])
    later = before.add(specialists[2], data=TASKS[2], test=TASKS[2])
    assert later.sums[:2] == before.sums and later.specialists[:2] == before.specialists
    at_once = fr.experts(specialists, router, data=TASKS, tests=TASKS)
    assert torch.equal(later.module().gate, at_once.module().gate)  # type: ignore[arg-type]
    np.testing.assert_array_equal(later.scores, at_once.scores)


def test_one_expert_is_itself(specialists: list[fr.Result]) -> None:
    made = fr.experts(specialists[:1], data=TASKS[:1], tests=TASKS[:1])
    x = TASKS[0][0]
    assert torch.equal(made.module()(x), specialists[0].module()(x))


def test_what_cannot_be_routed_is_refused(specialists: list[fr.Result]) -> None:
    with pytest.raises(InputError, match="router must be ridge or prototype, not 'nearest'"):
        fr.experts(specialists, "nearest")
    with pytest.raises(InputError, match="mix must be top-1 or soft, not 'hard'"):
        fr.experts(specialists, mix="hard")
    with pytest.raises(InputError, match="has no data for the router"):
        fr.experts(specialists)
    x, y = TASKS[0]
    other = fr.run("fedavg", model=Net, clients=[(x, y)], seed=3, rounds=1, workers=0)
    with pytest.raises(InputError, match="needs a common start"):
        fr.experts([specialists[0], other], data=TASKS[:2])
    small = fr.run("fedavg", model=nn.Linear(6, 3), clients=[(x, y)], rounds=1, workers=0)
    with pytest.raises(InputError, match="different architectures"):
        fr.experts([specialists[0], small], data=TASKS[:2])


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "mlp:hidden=8,depth=1", "--rounds", "2", "--workers", "0", "--quiet"]
    runs = [str(tmp_path / name) for name in ("one", "two")]
    for run, lr in zip(runs, ("0.1", "0.2"), strict=True):
        assert code_of(["run", "fedavg", *small, "--lr", lr, "--out", run]) == 0
    capsys.readouterr()
    assert code_of(["experts", *runs, "--mix", "soft", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["passes"] == 2.0 and len(made["scores"]) == 3
    assert code_of(["experts", *runs]) == 0
    assert "1.00 of 2 experts compute" in capsys.readouterr().out
    assert code_of(["experts", *runs, "--router", "x"]) == 2


def test_texts_are_routed_by_their_tokens(tmp_path: Path) -> None:
    x = [torch.randint(low, low + 4, (30, 8), generator=torch.Generator().manual_seed(low))
         for low in (0, 4)]  # fmt: skip
    tasks = [(one, one.roll(-1, 1)) for one in x]

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.fc = nn.Embedding(8, 6), nn.Linear(6, 8)

        def forward(self, given: Tensor) -> Tensor:
            return self.fc(self.tokens(given)).transpose(1, 2)

    runs = [fr.run("fedavg", model=Reader, clients=[t], rounds=3, workers=0) for t in tasks]
    made = fr.experts(runs, data=tasks, tests=tasks)
    np.testing.assert_array_equal(made.routed, np.eye(2))
    assert made.module()(x[0]).shape == (30, 8, 8)


@pytest.mark.parametrize("mix", ["top-1", "soft"])
def test_inputs_by_name_and_several_inputs_are_routed(
    mix: str, specialists: list[fr.Result]
) -> None:
    class Two(nn.Module):
        head = "out"

        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(6, 12), nn.Linear(12, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.out(torch.tanh(self.hidden(torch.cat((left, right), 1))))

    plain = fr.experts(specialists, mix=mix, data=TASKS, tests=TASKS)
    for named in (True, False):
        tasks: list[Any] = []
        for x, y in TASKS:
            parts = x[:, :2], x[:, 2:]
            tasks.append((dict(zip(("left", "right"), parts, strict=True)) if named else parts, y))
        runs = [fr.run("fedavg", model=Two, clients=[t], test=t, **LOCAL) for t in tasks]
        made = fr.experts(runs, mix=mix, data=tasks, tests=tasks)
        np.testing.assert_allclose(made.scores, plain.scores, atol=0.02)
        assert made.module()(tasks[0][0]).shape == (80, 3) and made.passes == plain.passes
