"""The front door: own models and data in every form, and one sentence for every mistake."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedrift as fr
from fedrift.core import SGD, Local
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import FedAvg, Scaffold, load_run


class Two(nn.Module):
    """Takes two inputs; those of a dict by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 4), nn.Linear(3, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


def cut(x: Tensor, kind: str) -> Any:
    return (x[:, :5], x[:, 5:]) if kind == "tuple" else {"b": x[:, 5:], "a": x[:, :5]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_several_inputs(kind: str, workers: int) -> None:
    """A sum of two linear maps is the linear map of the whole."""
    clients = [(cut(x, kind), y) for x, y in uneven_clients()]
    x, y = blobs(200, seed=5)
    two = small_run("fedavg", model=Two, clients=clients, test=(cut(x, kind), y), workers=workers)
    assert two.accuracy[-1] > 0.4
    split = fr.split(cut(blobs()[0], kind), blobs()[1], "dirichlet:0.3", clients=7, seed=0)
    assert small_run("fedavg", model=Two, clients=split, test=(cut(x, kind), y)).loss == two.loss


def test_regression_has_a_loss_and_no_accuracy() -> None:
    x, _ = blobs(120)
    y = (x @ torch.arange(8.0)).unsqueeze(1)
    clients = [(x[i::4], y[i::4]) for i in range(4)]
    result = small_run(
        "scaffold",
        model=lambda: nn.Linear(8, 1),
        loss=F.mse_loss,
        clients=clients,
        test=(x, y),
        metrics={"mae": lambda output, target: (output - target).abs().mean()},
        lr=0.02,
        rounds=30,
    )
    assert result.accuracy == [] and result.loss[-1] < 0.05 * result.loss[0]
    module = result.module()
    assert result.metrics[-1]["mae"] == pytest.approx((module(x) - y).abs().mean().item())
    assert result.problem.classes is None


def test_several_labels_at_once() -> None:
    x, y = blobs(200)
    many = torch.stack([y == 0, y > 1], dim=1)
    clients = [(x[i::3], many[i::3]) for i in range(3)]
    loss = F.binary_cross_entropy_with_logits
    result = small_run(
        "fedavg", model=lambda: Net(8, 2), loss=loss, clients=clients, test=(x, many), per_round=2
    )
    assert result.accuracy == [] and result.loss[-1] < result.loss[0]


def test_a_metric_sees_the_whole_test_set_at_once() -> None:
    seen: list[tuple[int, ...]] = []

    def measure(output: Tensor, target: Tensor) -> float:
        seen.append((*output.shape, *target.shape))
        return (output.argmax(1) == target).double().mean().item()

    result = small_run("fedavg", test=blobs(700), rounds=2, metrics={"mine": measure})
    assert seen == [(700, 4, 700)] * 2
    assert [m["mine"] for m in result.metrics] == result.accuracy


def test_every_form_of_data_gives_the_same_run() -> None:
    split = uneven_clients()
    forms: list[Any] = [
        list(split),
        [[x, y] for x, y in split],
        [(x.numpy(), y.numpy()) for x, y in split],
        [(x.double().numpy(), y.numpy().astype(np.int32)) for x, y in split],
        [TensorDataset(x, y) for x, y in split],
    ]
    tests: list[Any] = [blobs(200, seed=5), TensorDataset(*blobs(200, seed=5))]
    runs = {small_run("fedavg", clients=form, test=tests[-1]).fingerprint for form in forms}
    assert runs == {small_run("fedavg", clients=split, test=tests[0]).fingerprint}


def test_a_built_module_is_a_start_and_is_left_alone() -> None:
    torch.manual_seed(4)
    module = Net()
    before = {n: p.clone() for n, p in module.state_dict().items()}
    result = small_run("fedavg", model=module)
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items())
    for name, start in result.problem.layout.named(result.problem.w0).items():
        assert torch.equal(start, before[name])
    assert small_run("fedavg", model=lambda: module).fingerprint == result.fingerprint
    assert all(torch.equal(p, before[n]) for n, p in module.state_dict().items()), "nor so given"


def test_float64_is_float64_throughout() -> None:
    result = small_run("scaffold", dtype=torch.float64)
    assert result.weights.dtype == torch.float64
    assert next(result.module().parameters()).dtype == torch.float64
    other = small_run("scaffold", dtype="float32")
    torch.testing.assert_close(result.weights.float(), other.weights, rtol=0, atol=1e-4)


def test_without_test_data_there_is_no_curve() -> None:
    result = small_run("fedavg", test=None)
    assert result.accuracy == result.loss == result.rounds == [] and result.status == "done"
    assert result.summary()["final_accuracy"] is None
    assert torch.equal(result.weights, small_run("fedavg").weights)


def test_a_schedule_multiplies_the_rate() -> None:
    assert (
        small_run("fedavg", schedule="exp:0.5", rounds=1).loss == small_run("fedavg", rounds=1).loss
    )
    by_hand = small_run("fedsgd", schedule="exp:0.5", batch_size=None, rounds=2, per_round=None)
    first = small_run("fedsgd", batch_size=None, rounds=1, per_round=None)
    second = small_run(
        "fedsgd", model=first.module(), lr=0.05, batch_size=None, rounds=1, per_round=None
    )
    assert torch.equal(by_hand.weights, second.weights)


def test_fedsgd_ignores_epochs_steps_and_momentum() -> None:
    plain = small_run("fedsgd").fingerprint
    for how in ({"epochs": 5}, {"steps": 7}, {"momentum": 0.9}, {"epochs": [0, *[1] * 6]}):
        assert small_run("fedsgd", **how).fingerprint == plain, how


def test_an_object_is_the_name_with_its_settings() -> None:
    local = Local(lr=0.1, batch_size=16, epochs=2, optimizer=SGD(weight_decay=0.1))
    how: dict[str, Any] = {"epochs": 2, "weight_decay": 0.1}
    assert small_run(Scaffold(local)).fingerprint == small_run("scaffold", **how).fingerprint
    uniform = small_run("fedavg", weights="uniform").fingerprint
    assert uniform == small_run("fedavg:weights=uniform").fingerprint
    assert uniform == small_run(FedAvg(Local(batch_size=16), weights="uniform")).fingerprint


def test_a_result_is_complete(tmp_path: Path) -> None:
    result = small_run("scaffold", eval_every=2)
    frame = result.frame()
    assert list(frame["round"]) == result.rounds and list(frame["accuracy"]) == result.accuracy
    x, y = blobs(200, seed=5)
    hits = (result.module().eval()(x).argmax(1) == y).double().mean().item()
    assert hits == pytest.approx(result.accuracy[-1])
    summary = result.summary()
    assert summary["fingerprint"] == result.fingerprint and summary["status"] == "done"
    assert summary["best_accuracy"] == max(result.accuracy)
    assert (summary["algorithm"], summary["rounds"], summary["seed"]) == ("scaffold", 5, 0)
    record = load_run(result.save(tmp_path / "run"))
    assert record.status == "done" and [r["round"] for r in record.rounds] == result.rounds
    assert record.weights()["out.weight"].shape == (4, 16)
    assert len(record.ledger) == len(result.ledger.entries)
    with pytest.raises(fr.InputError, match="another run"):
        result.save(tmp_path / "run")


NAN = torch.full((3, 8), math.nan)
LABELS = torch.zeros(3, dtype=torch.int64)
MIXED = torch.tensor([0, -100, -1])  # −100 says: no label
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'.*fedavg"),
    ({"algorithm": "fedavg:mu=1"}, "mu"),
    ({"algorithm": "scaffold:option=III"}, "option"),
    ({"algorithm": "scaffold", "momentum": 0.9}, "momentum"),
    ({"algorithm": "scaffold", "weights": "samples"}, "weights.*objective"),
    ({"algorithm": "scaffold:objective=samples"}, "objective"),
    ({"algorithm": FedAvg(Local(lr=0.05)), "lr": 0.2}, r"lr=0.2 and FedAvg\(local=Local"),
    ({"algorithm": Scaffold(objective="samples"), "weights": "size"}, "unknown weights 'size'"),
    ({"algorithm": 3}, "algorithm=3 must be a text"),
    ({"model": 3}, "model"),
    ({"model": lambda: 3}, "model.*int"),
    ({"model": nn.Identity}, "model.*no trainable parameters"),
    ({"model": lambda: Net(5, 4)}, "model.*8"),
    ({"model": lambda: Net(8, 3)}, r"clients\[0\]: label 3"),
    ({"loss": 3}, "loss"),
    ({"clients": []}, "clients"),
    ({"clients": [3]}, r"clients\[0\]"),
    ({"clients": [(NAN, LABELS)], "per_round": None}, r"clients\[0\] x.*NaN"),
    ({"test": 3}, "test"),
    ({"test": (torch.zeros(3, 8), LABELS + 9)}, "test.*label 9"),
    ({"test": (torch.zeros(3, 5), LABELS)}, "test"),
    ({"metrics": {"mine": 3}}, "metrics"),
    ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
    ({"epochs": 0}, "epochs must be .*at least 1.*, not 0"),
    ({"epochs": 1.5}, "epochs must be .*whole number.*, not 1.5"),
    ({"epochs": [1, 2]}, "epochs lists 2 entries for 7 clients"),
    ({"epochs": [-1] * 7}, "epochs"),
    ({"epochs": "uniform:5,2"}, "epochs"),
    ({"steps": "gauss:1,2"}, "steps"),
    ({"epochs": 1, "steps": 1}, r"epochs \(1\) and steps \(1\) are both given"),
    ({"batch_size": -1}, "batch_size must be .*, not -1"),
    ({"batch_size": 2.5}, "batch_size must be .*, not 2.5"),
    ({"lr": 0.0}, "lr must be a number above 0, not 0.0"),
    ({"lr": -1}, "lr must be a number above 0, not -1"),
    ({"lr": "fast"}, "lr must be a number above 0, not 'fast'"),
    ({"lr": math.nan}, "lr must be .*, not nan"),
    ({"lr": math.inf}, "lr must be .*, not inf"),
    ({"momentum": 1.0}, "momentum must be .*below 1, not 1.0"),
    ({"momentum": -0.1}, "momentum must be .*at least 0.*, not -0.1"),
    ({"weight_decay": -1}, "weight_decay must be .*at least 0, not -1"),
    ({"clip": 0.0}, "clip must be a number above 0, not 0.0"),
    ({"schedule": "linear"}, "schedule"),
    ({"schedule": 3}, "schedule"),
    ({"weights": "size"}, "weights"),
    ({"augment": ["flip"]}, "augment 'flip'"),
    ({"augment": ["turn"]}, "augment"),
    ({"augment": 3}, "augment"),
    ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ({"device": "gpu"}, "^device"),
    ({"seed": -1}, "seed must be .*at least 0, not -1"),
    ({"clients": [(torch.zeros(3, 8), MIXED)], "per_round": None}, r"clients\[0\]: label -1"),
    ({"eval_every": 0}, "eval_every must be .*at least 1, not 0"),
    ({"stack": "maybe"}, "unknown stack 'maybe'"),
    ({"head": "nowhere"}, "head.*nowhere"),
    ({"on_round": 3}, "on_round"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[f"{list(o)} {s}" for o, s in WRONG])
def test_a_mistake_is_named_and_nothing_is_written(
    options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    given = dict(options)
    algorithm = given.pop("algorithm", "fedavg")
    with pytest.raises(fr.InputError, match=says):
        small_run(algorithm, out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
