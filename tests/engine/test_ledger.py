"""The ledger itself: what it counts, when, and where it is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.core.messages import Size
from fedrift.engine.ledger import Cost, Entry, Ledger
from tests.support.problems import Net, blobs, small_run

P = 212  # parameters of problems.Net
M, ROUNDS = 3, 5


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
