"""Models of the clients' own: closed forms, batch normalisation by hand, what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.conform.problem import PAIR_X, PAIR_Y, pair
from tests.support.product import Inside, Trial, classifier, run_trial

NORM = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")


class Normed(nn.Module):
    """A body with batch normalisation, and a head."""

    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.hidden(x))))


def normed(**changes: Any) -> Trial:
    """Two clients, whole batches, two steps a round."""
    trial = replace(classifier((9, 6)).everyone(), model=Normed, dtype="float64", rounds=3)
    return replace(trial.working(steps=2, batch_size=None), **changes)


def evaluated(text: str, trial: Trial) -> list[dict[str, Tensor]]:
    """The models that clients are evaluated with after the last round, by name."""
    inside, found = Inside(text, trial), list[dict[str, Tensor]]()
    problem = inside.problem

    def look(report: fr.RoundReport) -> None:
        models = [inside.evaluated(client, report) for client in range(len(inside.split))]
        found[:] = [
            {**problem.layout.named(m.w), **dict(zip(problem.moving, m.buffers, strict=True))}
            for m in models
        ]

    inside.run(look)
    return found


def by_hand(trial: Trial, phases: tuple[tuple[str, ...], ...], kept: tuple[str, ...]) -> Any:
    """The same in plain torch: each phase trains the parameters that it names; statistics of what
    is not trained are put back after it; all but `kept` is averaged."""
    start = Inside("fedavg", trial).problem
    common = start.module(start.w0, {}).double()
    clients = [copy.deepcopy(common) for _ in trial.clients]
    sizes = [len(y) for _, y in trial.clients]
    for _ in range(trial.rounds):
        for net, (x, y) in zip(clients, trial.clients, strict=True):
            mine = {n: v.clone() for n, v in net.state_dict().items() if n in kept}
            net.load_state_dict({**common.state_dict(), **mine})
            for trained in phases:
                before = {n: b.clone() for n, b in net.named_buffers()}
                for _ in range(2):
                    net.train()
                    net.zero_grad()
                    nn.functional.cross_entropy(net(x.double()), y).backward()
                    with torch.no_grad():
                        for name, parameter in net.named_parameters():
                            if name in trained and parameter.grad is not None:
                                parameter -= 0.1 * parameter.grad
                if "norm.weight" not in trained:
                    for name, buffer in net.named_buffers():
                        buffer.copy_(before[name])
        mean = {
            name: sum(n * c.state_dict()[name] for n, c in zip(sizes, clients, strict=True))
            / sum(sizes)
            for name, value in common.state_dict().items()
            if name not in kept and value.is_floating_point()
        }
        common.load_state_dict({**common.state_dict(), **mean})
    return [
        {**common.state_dict(), **{n: v for n, v in c.state_dict().items() if n in kept}}
        for c in clients
    ]


EVERYTHING = tuple(name for name, _ in Normed().named_parameters())


def agree(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for mine, other in zip(found, expected, strict=True):
        for name, value in mine.items():
            if value.is_floating_point():
                torch.testing.assert_close(value, other[name].double(), rtol=0, atol=1e-12)


def test_fedbn_keeps_the_whole_layer_and_its_statistics() -> None:
    agree(evaluated("fedbn", normed()), by_hand(normed(), (EVERYTHING,), NORM))


def test_fedbn_sends_no_statistics() -> None:
    result = run_trial("fedbn", normed())
    shared = sum(p.numel() for n, p in Normed().named_parameters() if "norm" not in n)
    for entry in result.ledger.entries:
        assert {name: size.total for name, size in entry.up.items()} == {"delta": 2 * 8 * shared}
        assert "buffers" not in entry.down


def test_fedper_shares_statistics_of_the_body() -> None:
    head = ("out.weight", "out.bias")
    agree(evaluated("fedper", normed()), by_hand(normed(), (EVERYTHING,), head))
    assert "buffers" in run_trial("fedper", normed()).ledger.entries[0].up


def test_fedrep_moves_no_statistics_of_the_body_with_the_head() -> None:
    head = ("out.weight", "out.bias")
    body = tuple(name for name in EVERYTHING if name not in head)
    even = normed(clients=tuple((x[:6], y[:6]) for x, y in normed().clients))
    agree(evaluated("fedrep", even), by_hand(even, (head, body), head))


@pytest.mark.parametrize("text", ["ditto(fedavg)", "ditto(scaffold)"])
def test_statistics_of_dittos_own_models_do_not_travel(text: str) -> None:
    inner = text[6:-1]
    ours, plain = run_trial(text, normed()), run_trial(inner, normed())
    assert torch.equal(ours.weights, plain.weights)
    for name, value in plain.buffers.items():
        assert torch.equal(ours.buffers[name], value)
    one, other = evaluated(text, normed())
    assert not torch.equal(one["norm.running_mean"], other["norm.running_mean"])


def test_pfedme_solves_for_theta() -> None:
    """K → ∞ on least squares: θ = (H + λI)⁻¹ (Xᵀy/n + λw), with one local round."""
    lam = 2.0
    trial = replace(pair(1)).working(steps=1)
    inside = Inside(f"pfedme:lam={lam},inner_steps=2000,inner_lr=0.1", trial)
    inside.run()
    w = torch.tensor([0.5, -0.5], dtype=torch.float64)
    for seen in inside.backend.visits:
        x = torch.tensor(PAIR_X[seen.client], dtype=torch.float64)
        y = torch.tensor(PAIR_Y[seen.client], dtype=torch.float64)
        left = x.T @ x / len(y) + lam * torch.eye(2, dtype=torch.float64)
        theta = torch.linalg.solve(left, x.T @ y / len(y) + lam * w)
        torch.testing.assert_close(seen.new["theta"], theta, rtol=0, atol=1e-12)
        torch.testing.assert_close(seen.up["delta"], -0.1 * lam * (w - theta), rtol=0, atol=1e-12)


def test_a_client_never_visited_has_what_it_began_with() -> None:
    """And the current global part; its row is not there."""
    trial = replace(normed(), rounds=2, per_round=None, participants=((0,), (0,)))
    _, absent = evaluated("fedper", trial)
    start = Inside("fedper", trial).problem
    began = start.layout.named(start.w0)
    assert torch.equal(absent["out.weight"], began["out.weight"])
    assert not torch.equal(absent["hidden.weight"], began["hidden.weight"])


def test_corrections_do_not_touch_what_is_kept() -> None:
    """SCAFFOLD's c_i have the length of the shared part, and a spring leaves the head alone."""
    inside = Inside("keep(scaffold)", classifier())
    inside.run()
    shared = inside.problem.layout.size - (12 * 4 + 4)
    assert {seen.new["inner.c"].numel() for seen in inside.backend.visits} == {shared}
    plain, held = (evaluated(f"keep({a}):what=all", classifier()) for a in ("fedavg", "fedprox"))
    for one, other in zip(plain, held, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("rule", ["sam", "asam"])
def test_there_may_be_nothing_to_correct(rule: str) -> None:
    """Where everything is kept."""
    agree(evaluated(f"{rule}(localonly)", normed()), evaluated("localonly", normed()))


def test_clipping_takes_both_parts_together() -> None:
    """One step: both parts are shortened by the norm of the whole gradient."""
    trial = pair(1).working(steps=1, clip=0.01)
    inside = Inside("fedper:what=own", trial)
    inside.run()
    for seen in inside.backend.visits:
        moved = torch.cat([seen.up["delta"], seen.new["own"] - seen.mine["own"]])
        assert float(moved.norm()) == pytest.approx(0.1 * 0.01)
        assert float(seen.up["delta"].norm()) < 0.1 * 0.01


def test_fedrep_clips_each_phase_by_what_it_trains() -> None:
    """One step a phase: head and body are each shortened by their own norm."""
    trial = pair(1).working(steps=1, clip=0.01)
    inside = Inside("fedrep:what=own,head_steps=1", trial)
    inside.run()
    for seen in inside.backend.visits:
        assert float((seen.new["own"] - seen.mine["own"]).norm()) == pytest.approx(0.1 * 0.01)
        assert float(seen.up["delta"].norm()) == pytest.approx(0.1 * 0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keep(fedavg):what=nothing_like_it", "matches no trained parameter"),
        ("keep(fedavg):what=norm", r"matches no trained.*norm \(BatchNorm; layers of another"),
        ("keep(fedavg):what=out+out.weight", "'out' and 'out.weight' both keep 'out.weight'"),
        ("keep(fedavg):what=head+out.*", "both keep"),
        ("fedper:what=foo", "matches no trained parameter"),
        ("keep(fedsgd)", "FedSGD makes no local steps"),
        ("keep(fed3r)", "no local steps"),
        ("keep(fed3rft(fedavg))", "take turns"),
        ("keep(fedper)", "models of the clients' own already"),
        ("ditto(fedbn)", "models of the clients' own already"),
        ("ditto(fedsgd)", "no local steps"),
        ("fed3rft(fedper)", "models of the clients' own"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(fr.InputError, match=said):
        run_trial(text, classifier())


@pytest.mark.parametrize("text", ["pfedme", "apfl"])
def test_momentum_is_refused(text: str) -> None:
    with pytest.raises(fr.InputError, match="momentum"):
        run_trial(text, classifier().working(momentum=0.9))
