"""Targets that are no class labels: refused where labels are needed, welcome elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from tests.support.problems import Net, blobs, small_run

X, Y = blobs(120)
TARGETS: dict[str, Tensor] = {
    "regression": (X @ torch.arange(8.0)).unsqueeze(1),
    "several labels": torch.stack([Y == 0, Y > 1], dim=1),
    "pixels": Y[:, None, None].expand(-1, 4, 4).contiguous(),
}


def clients(y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(X[i::4], y[i::4]) for i in range(4)]


@pytest.mark.parametrize("kind", ["regression", "several labels"])
def test_float_targets_need_a_loss(kind: str) -> None:
    y = TARGETS[kind]
    model = nn.Linear(8, y.shape[1])
    with pytest.raises(
        fr.InputError, match=r"clients: targets are floating point.*loss=.*mse_loss"
    ):
        small_run("fedavg", model=model, clients=clients(y), test=None)
    with pytest.raises(fr.InputError, match="test: targets are floating point"):
        small_run("fedavg", clients=clients(Y), test=(X, X))
    same: Any = lambda o, t: F.mse_loss(o, t)  # noqa: E731
    assert small_run("fedavg", model=model, loss=same, clients=clients(y), test=None).weights.any()


@pytest.mark.parametrize(
    ("name", "loss"),
    [("mse", F.mse_loss), ("l1", F.l1_loss), ("bce", F.binary_cross_entropy_with_logits)],
)
def test_a_loss_may_be_named_as_on_the_command_line(name: str, loss: Any) -> None:
    y = TARGETS["several labels"]
    how: dict[str, Any] = {"model": nn.Linear(8, y.shape[1]), "clients": clients(y), "test": None}
    by_name, given = (small_run("fedavg", loss=one, **how) for one in (name, loss))
    assert by_name.fingerprint == given.fingerprint


def test_one_output_has_no_cross_entropy() -> None:
    with pytest.raises(fr.InputError, match="one output"):
        small_run("fedavg", model=lambda: Net(8, 1), clients=clients(Y * 0), test=None)


@pytest.mark.parametrize("scheme", ["dirichlet:0.5", "classes:1", "shards:2", "hsu:1"])
@pytest.mark.parametrize("kind", TARGETS)
def test_no_labels_to_skew_by(kind: str, scheme: str) -> None:
    y = TARGETS[kind]
    with pytest.raises(fr.InputError, match=rf"y must be .* of shape \({len(y)},.*labels="):
        fr.split(X, y, scheme, clients=4)
    by = fr.split(X, y, scheme, clients=4, labels=Y)
    plain = fr.split(X, Y, scheme, clients=4)
    assert all(np.array_equal(a, b) for a, b in zip(by.parts, plain.parts, strict=True))
    assert by[0][1].shape[1:] == y.shape[1:]
    assert len(fr.split(X, y, "iid", clients=4)) == 4, "needs no labels"


@pytest.mark.parametrize("labels", [Y[:-1], Y.float(), TARGETS["pixels"]])
def test_labels_are_one_whole_number_per_sample(labels: Tensor) -> None:
    with pytest.raises(fr.InputError, match="labels must be 120 whole numbers"):
        fr.split(X, TARGETS["regression"], "dirichlet:1", clients=4, labels=labels)


def test_a_tree_of_targets_has_no_labels() -> None:
    y = {"a": Y, "b": X}
    with pytest.raises(fr.InputError, match="labels="):
        fr.split(X, y, "dirichlet:1", clients=4)
    assert len(fr.split(X, y, "lognormal:1", clients=4)) == 4


def test_a_label_that_the_model_has_no_output_for() -> None:
    x, y = blobs(20, seed=5)
    wrong = y.clone()
    wrong[3] = 9
    how: dict[str, Any] = {"model": nn.Linear(x[0].numel(), 4), "rounds": 1, "workers": 0}
    held = [(x.flatten(1), y), (x.flatten(1), wrong)]
    with pytest.raises(fr.InputError, match=r"clients\[1\]: label 9 .*4 classes.*10 outputs"):
        fr.run("fedavg", clients=held, **how)
    with pytest.raises(fr.InputError, match=r"test: label -1 .*count from 0$"):
        fr.run("fedavg", clients=held[:1], test=(x.flatten(1), y - 1), **how)


@pytest.mark.parametrize("gives", [lambda o, y: (o - y[:, None]).abs(), lambda o, y: "low"])
def test_a_metric_is_one_number(gives: Any) -> None:
    with pytest.raises(fr.InputError, match=r"metrics\['mae'\] gave a .*one number is wanted"):
        small_run("fedavg", metrics={"mae": gives})


class Lazy(nn.Module):
    """Takes all its shapes from the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.parametrize("model", [Lazy, Lazy()])
def test_lazy_batch_norm(model: Any) -> None:
    result = small_run("fedavg", model=model, clients=clients(Y), per_round=None)
    assert result.accuracy[-1] > 0.4
    x, y = blobs(200, seed=5)
    module = result.module().eval()
    assert (module(x).argmax(1) == y).double().mean().item() == pytest.approx(result.accuracy[-1])


class Masked(nn.Module):
    """Mean of the vectors that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        assert padding.dtype is torch.bool
        seen = self.embed(tokens).masked_fill(padding.unsqueeze(-1), 0.0)
        return self.out(seen.sum(1) / (~padding).sum(1, keepdim=True).clamp_min(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mask_beside_other_inputs_stays_a_mask(workers: int) -> None:
    tokens, y = torch.randint(0, 9, (40, 6)), torch.arange(40) % 3
    padding = torch.arange(6) >= torch.randint(2, 7, (40, 1))
    named = fr.split({"tokens": tokens, "padding": padding}, y, "iid", clients=4)
    listed = [((tokens[i::4], padding[i::4]), y[i::4]) for i in range(4)]
    for clients in (named, listed):
        test = clients[0]
        made = fr.run("fedavg", model=Masked, clients=clients, test=test, rounds=2, workers=workers)
        assert made.status == "done"


def test_truth_values_alone_are_numbers() -> None:
    x, y = torch.rand(30, 5) > 0.5, torch.arange(30) % 2
    made = fr.run("fedavg", model=lambda: nn.Linear(5, 2), clients=[(x, y)], rounds=1, workers=0)
    assert made.status == "done"
