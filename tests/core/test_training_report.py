"""What training reports of itself, against a plain loop that measures every minibatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.core.local import batches
from fedrift.core.training_report import COLUMNS, Training
from fedrift.engine.result import fingerprint
from fedrift.report.saved import SavedRun
from fedrift.rng import generator
from tests.support.problems import Net, blobs, small_run, uneven_clients

LR, BATCH, EPOCHS, SEED = 0.1, 16, 2, 3


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))


def measured(
    client: int,
    samples: tuple[Tensor, Tensor],
    w: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
) -> dict[str, float]:
    """One visit of FedAvg in the first round: every minibatch before the step on it."""
    x, y = samples
    steps = EPOCHS * -(-len(y) // BATCH)
    seen: list[tuple[float, int, float]] = []
    for places in batches(len(y), BATCH, steps, generator(SEED, "order", 0, client)):
        a, b = (x, y) if places is None else (x[places], y[places])
        output = w(a)
        value = loss(output, b)
        right = float((output.argmax(1) == b).sum()) if b.dim() == 1 else 0.0
        seen.append((float(value.detach()), len(b), right))
        for p, g in zip(
            w.parameters(), torch.autograd.grad(value, list(w.parameters())), strict=True
        ):
            p.data.sub_(g, alpha=LR)
    n = sum(size for _, size, _ in seen)
    return {
        "loss": sum(value * size for value, size, _ in seen) / n,
        "loss_before": seen[0][0],
        "loss_after": seen[-1][0],
        "accuracy": sum(right for _, _, right in seen) / n,
        "accuracy_before": seen[0][2] / seen[0][1],
        "accuracy_after": seen[-1][2] / seen[-1][1],
    }


def run(algorithm: Any = "fedavg", **options: Any) -> fr.Result:
    usual: dict[str, Any] = {
        "model": chain,
        "clients": uneven_clients(),
        "test": blobs(50, seed=5),
        "rounds": 1,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "lr": LR,
        "seed": SEED,
        "workers": 0,
    }
    return fr.run(algorithm, **(usual | options))


def initial(result: fr.Result) -> nn.Module:
    module = chain()
    nn.utils.vector_to_parameters(result.problem.w0.clone(), module.parameters())
    return module


@pytest.mark.parametrize("stack", ["on", "off"])
def test_every_client_reports_what_a_plain_loop_sees(stack: str) -> None:
    result = run(stack=stack)
    (row,) = result.training
    clients = uneven_clients()
    assert row["round"] == 1 and row["client"] == [i for i, (_, y) in enumerate(clients) if len(y)]
    for place, client in enumerate(row["client"]):
        expected = measured(client, clients[client], initial(result))
        assert {k: row[k][place] for k in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("weights", "share"), [("samples", len), ("uniform", lambda y: 1)])
def test_a_round_is_the_mean_over_its_clients_weighted_as_replies_are(
    weights: str, share: Callable[[Tensor], int]
) -> None:
    result = run(weights=weights)
    (row,), last = result.training, result.metrics[-1]
    sizes = [share(y) for _, y in uneven_clients() if len(y)]
    for column in COLUMNS:
        values = row[column.removeprefix("train_")]
        mean = sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)
        assert last[column] == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("stack", ["on", "off"])
def test_a_loss_without_classes_has_no_accuracy(stack: str) -> None:
    clients = [(x, nn.functional.one_hot(y, 4).float()) for x, y in uneven_clients()]
    x, y = blobs(50, seed=5)
    test = x, nn.functional.one_hot(y, 4).float()
    loss = nn.functional.mse_loss
    result = run(stack=stack, clients=clients, loss=loss, test=test)
    (row,) = result.training
    assert not any("accuracy" in name for name in row)
    assert [c for c in COLUMNS if c in result.metrics[-1]] == [c for c in COLUMNS if "loss" in c]
    for place, client in enumerate(row["client"]):
        expected = measured(client, clients[client], initial(result), loss)
        assert row["loss"][place] == pytest.approx(expected["loss"], rel=1e-5)


def test_only_the_first_pass_of_a_step_is_reported() -> None:
    plain, sam = (run(a, rounds=1, epochs=None, steps=1) for a in ("fedavg", "sam(fedavg):rho=5"))
    assert sam.training == plain.training
    assert sam.fingerprint != plain.fingerprint


def test_only_the_training_that_travels_is_reported() -> None:
    assert run("ditto(fedavg)", rounds=2).training == run(rounds=2).training


def test_a_gradient_is_reported_where_there_are_no_steps() -> None:
    (row,) = run("fedsgd", epochs=None, batch_size="full").training
    assert row["loss"] == row["loss_before"] == row["loss_after"]


def test_who_trains_nothing_reports_nothing() -> None:
    result = run("fed3r", model=lambda: Net(), epochs=None, lr=None, batch_size="default", rounds=3)
    assert result.training == [] and not set(COLUMNS) & set(result.metrics[-1])


def test_labels_that_are_not_there_do_not_count() -> None:
    x, y = blobs(40, seed=1)
    y = torch.where(torch.arange(40) % 4 == 0, -100, y)
    (row,) = run(clients=[(x, y)], batch_size="full", epochs=1, stack="off").training
    here = y >= 0
    (other,) = run(clients=[(x[here], y[here])], batch_size="full", epochs=1, stack="off").training
    assert row["loss"] == pytest.approx(other["loss"]) and row["accuracy"] == other["accuracy"]


def test_a_batch_that_is_cut_into_pieces_is_one_batch() -> None:
    x, y = blobs(2500, seed=1)  # more than are differentiated at once
    (row,) = run(clients=[(x, y)], batch_size="full", epochs=1, stack="off").training
    (stacked,) = run(clients=[(x, y)], batch_size="full", epochs=1, stack="on").training
    assert row["loss"][0] == pytest.approx(stacked["loss"][0], rel=1e-6)
    assert row["accuracy"] == stacked["accuracy"] and row["loss"] == row["loss_after"]


@pytest.mark.parametrize("stack", ["on", "off"])
def test_equal_outputs_are_no_hits(stack: str) -> None:
    def zeros() -> nn.Module:
        module = chain()
        for p in module.parameters():
            p.data.zero_()
        return module

    (row,) = run(model=zeros, stack=stack).training
    first = [int((y == 0).sum()) / len(y) for _, y in uneven_clients() if 0 < len(y) <= BATCH]
    assert first, "argmax takes the first of equals"
    assert set(first) <= set(row["accuracy_before"])


@pytest.mark.parametrize("model", [chain, Net])
def test_workers_report_the_same(model: Any) -> None:
    alone, many = (run(model=model, rounds=3, per_round=4, workers=w) for w in (0, 2))
    assert alone.training == many.training and len(alone.training) == 3
    assert [m["train_loss"] for m in alone.metrics] == [m["train_loss"] for m in many.metrics]


def test_who_stands_beside_a_client_changes_nothing() -> None:
    whole = run(participants=[list(range(7))])
    for i, client in enumerate(whole.training[0]["client"]):
        alone = run(participants=[[client]]).training[0]
        assert alone == {
            key: value if key == "round" else [value[i]] for key, value in whole.training[0].items()
        }


def test_it_is_kept_over_a_resume_and_in_the_folder(tmp_path: Path) -> None:
    whole = small_run("scaffold")
    small_run("scaffold", out=tmp_path / "run", on_round=lambda r: r.round == 2)
    again = small_run("scaffold", out=tmp_path / "run")
    assert again.training == whole.training and len(whole.training) == 5
    record = fr.load(tmp_path / "run")
    assert isinstance(record, SavedRun)
    assert record.training == whole.training
    assert small_run("scaffold", out=tmp_path / "run").training == whole.training  # reread
    assert len(record.training_frame()) == sum(len(row["client"]) for row in whole.training)
    assert [r["train_loss"] for r in record.metrics] == [m["train_loss"] for m in whole.metrics]


def test_fingerprints_do_not_know_of_it() -> None:
    result = small_run("fedavg")
    without = [{k: v for k, v in m.items() if k not in COLUMNS} for m in result.metrics]
    assert set(COLUMNS) < set(result.metrics[0])
    assert fingerprint(result.weights, without) == result.fingerprint


def test_rounds_that_are_not_evaluated_report_too() -> None:
    told: list[dict[str, float]] = []
    small_run("fedavg", test=None, on_round=lambda r: told.append(dict(r.training)))
    assert len(told) == 5 and all(set(row) == set(COLUMNS) for row in told)


def test_nothing_is_reported_beside_a_budget() -> None:
    pytest.importorskip("dp_accounting")
    clients = [(x, y) for x, y in uneven_clients() if len(y)]
    result = small_run(
        "fedavg:weights=uniform",
        clients=clients,
        per_round=None,
        fraction=0.5,
        sampling="bernoulli",
        privacy="gaussian:1.0,clip=1.0,delta=1e-5",
    )
    assert result.training == [] and not set(COLUMNS) & set(result.metrics[-1])


def test_two_trainings_are_one_report() -> None:
    one, two = Training.of([4.0, 2.0], [1, 3], [0, 3]), Training.of([1.0], [4], [2])
    assert one is not None and one.then(None) == one
    assert one.then(two) == Training.of([4.0, 2.0, 1.0], [1, 3, 4], [0, 3, 2])
    assert Training.of([float("nan")], [0], [0]) is None
    assert np.isnan(Training.of([float("nan")], [1], None).loss)  # type: ignore[union-attr]


def test_several_visits_report_what_each_does_alone() -> None:
    losses = np.array([[4.0, 0.5, 1.0], [2.0, 9.0, np.inf], [0.0, 3.0, 7.0]])
    weights = np.array([[1, 3, 2], [3, 0, 2], [0, 5, 1]])
    hits = np.array([[0, 3, 1], [2, 0, 0], [0, 4, 1]])
    alone = [Training.of(losses[:, i], weights[:, i], hits[:, i]) for i in range(3)]
    assert Training.of_each(losses, weights, hits) == alone
    assert alone[1] == Training.of([0.5, 3.0], [3, 5], [3, 4]), "a batch without a label"
    assert alone[0] == Training(4, 2.5, 4.0, 2.0, 0.5, 0.0, 2 / 3), "worked out by hand"
