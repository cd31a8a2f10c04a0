"""The ledger: bytes per field and phase as the literature counts them, and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.core import SGD
from fedrift.core.messages import Size
from fedrift.engine.ledger import Cost, Entry, Ledger
from tests.support.problems import Net, blobs, small_run, uneven_clients

P = 212  # parameters of problems.Net
M, ROUNDS = 3, 5
SIZES = uneven_clients().sizes

VECTORS = [
    ("fedsgd", {"w": 1}, {"g": 1}),
    ("fedavg", {"w": 1}, {"delta": 1}),
    ("fedavg:weights=uniform", {"w": 1}, {"delta": 1}),
    ("scaffold", {"w": 1, "c": 1}, {"delta": 1, "dc": 1}),
    ("scaffold:option=I", {"w": 1, "c": 1}, {"delta": 1, "dc": 1}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "down", "up"), VECTORS)
def test_bytes_are_vectors_times_clients(
    name: str, down: dict[str, int], up: dict[str, int], dtype: str
) -> None:
    """Per client and round: FedSGD and FedAvg 1 + 1 vectors, SCAFFOLD 2 + 2."""
    one = P * (4 if dtype == "float32" else 8) * M
    result = small_run(name, dtype=dtype)
    assert len(result.ledger.entries) == ROUNDS
    for t, entry in enumerate(result.ledger.entries):
        assert entry.round == t + 1 and len(entry.asked) == M
        assert entry.asked == entry.replied and entry.nonfinite == ()
        assert entry.down == {field: Size(tensors=k * one) for field, k in down.items()}
        assert entry.up == {field: Size(tensors=k * one) for field, k in up.items()}
    assert result.ledger.bytes_down == ROUNDS * one * sum(down.values())
    assert result.ledger.bytes_up == ROUNDS * one * sum(up.values())


WORK: list[tuple[str, dict[str, Any], int, int]] = [
    ("fedsgd", {"batch_size": None}, 1, 0),
    ("fedavg", {}, 1, 1),
    ("fedavg", {"epochs": 3}, 3, 3),
    ("scaffold", {"epochs": 2}, 2, 2),
    ("scaffold:option=I", {"epochs": 2}, 3, 2),  # and the full gradient at the received model
]


@pytest.mark.parametrize(("name", "how", "passes", "epochs"), WORK)
def test_gradients_are_examples_differentiated(
    name: str, how: dict[str, Any], passes: int, epochs: int
) -> None:
    result = small_run(name, **how)
    for entry in result.ledger.entries:
        asked = SIZES[list(entry.asked)]
        assert entry.gradients == passes * asked.sum()
        assert entry.steps == epochs * (-(-asked // 16)).sum()
        assert entry.forwards == 0
    assert result.ledger.gradients == sum(e.gradients for e in result.ledger.entries)


def test_a_stochastic_fedsgd_differentiates_one_batch_each() -> None:
    result = small_run("fedsgd", batch_size=16)
    for entry in result.ledger.entries:
        assert entry.gradients == sum(min(16, int(n)) for n in SIZES[list(entry.asked)])


def test_metrics_carry_running_totals() -> None:
    result = small_run("scaffold", eval_every=2)
    for row in result.metrics:
        so_far = [e.cost for e in result.ledger.entries if e.round <= row["round"]]
        assert row["bytes_up"] == sum(c.bytes_up for c in so_far)
        assert row["bytes_down"] == sum(c.bytes_down for c in so_far)
        assert row["gradients"] == sum(c.gradients for c in so_far)
    assert [row["round"] for row in result.metrics] == [2, 4, 5]


@pytest.mark.parametrize("name", ["round", "seconds", "cohort", "bytes_up"])
def test_a_metric_cannot_take_the_place_of_a_column(name: str) -> None:
    with pytest.raises(fr.InputError, match=f"metrics.*{name}"):
        small_run("fedavg", rounds=1, metrics={name: lambda output, target: 0.5})


class Both(nn.Module):
    """Gives its logits and something beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.net(x), {"twice": 2 * self.net(x)}


@pytest.mark.parametrize("workers", [0, 2])
def test_metrics_see_outputs_of_any_form(workers: int) -> None:
    result = small_run(
        "fedavg",
        model=Both,
        loss=lambda output, y: nn.functional.cross_entropy(output[0], y),
        metrics={"twice": lambda output, y: output[1]["twice"].mean() + len(output[0])},
        test=blobs(300),
        rounds=1,
        workers=workers,
    )
    logits = result.module()(blobs(300)[0])[0]
    assert result.metrics[0]["twice"] == pytest.approx(300 + 2 * logits.mean().item(), rel=1e-5)


def test_reports_carry_the_cost_of_their_round() -> None:
    costs: list[Cost] = []
    result = small_run("scaffold", on_round=lambda r: costs.append(r.cost))
    assert costs == [result.ledger.of_round(t + 1) for t in range(ROUNDS)]
    assert sum(costs, Cost()) == result.ledger.total


def test_void_rounds_cost_nothing() -> None:
    schedule = [[0, 1], [], [2]]
    result = small_run("fedavg", rounds=3, per_round=None, participants=schedule)
    assert [e.round for e in result.ledger.entries] == [1, 3]
    assert result.ledger.of_round(2) == Cost()


def test_server_optimizers_cost_no_bytes() -> None:
    from fedrift.algorithms.fedavg import FedAvg

    heavy = small_run(FedAvg(outer=SGD(momentum=0.9)))
    assert heavy.ledger.bytes_up == small_run("fedavg").ledger.bytes_up


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.norm(self.first(x))))


def test_running_statistics_are_counted_under_their_own_name() -> None:
    """Mean and variance of six channels in float32 and one int64 counter: 56 bytes a client."""
    for entry in small_run("fedavg", model=Normed, rounds=2).ledger.entries:
        assert entry.down["buffers"] == entry.up["buffers"] == Size(tensors=M * 56)


def test_a_dropped_reply_was_sent_all_the_same() -> None:
    def poisoned(output: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, y)
        return loss * float("nan") if output.requires_grad and len(y) == 7 else loss

    x = torch.randn(27, 8)
    sevens = [(x[:10], torch.arange(10) % 4), (x[10:17], torch.arange(7) % 4)]
    result = small_run(
        "fedavg", loss=poisoned, clients=sevens, rounds=1, per_round=None, batch_size=None
    )
    (entry,) = result.ledger.entries
    assert (entry.asked, entry.replied, entry.nonfinite) == ((0, 1), (0,), (1,))
    assert entry.up == {"delta": Size(tensors=2 * P * 4)}
    assert entry.gradients == 17


def test_rows_come_back_as_entries() -> None:
    ledger = small_run("scaffold").ledger
    assert [Entry.of(row) for row in ledger.rows()] == ledger.entries
    assert Ledger([Entry.of(row) for row in ledger.rows()]).total == ledger.total


def test_costs_add_up() -> None:
    one = Cost(1, 2, 3, 4, 5)
    assert one + one == Cost(2, 4, 6, 8, 10)
    assert Ledger().total == Cost()


def test_wire_and_process_count_the_same() -> None:
    rows = [small_run("scaffold", **how).ledger.rows() for how in ({}, {"backend": "wire"})]
    assert rows[0] == rows[1]


def test_summary_repeats_the_totals() -> None:
    result: fr.Result = small_run("fedavg")
    summary = result.summary()
    assert summary["bytes_up"] == summary["bytes_down"] == ROUNDS * M * P * 4
    assert summary["gradient_evaluations"] == result.ledger.gradients
