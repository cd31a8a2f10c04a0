"""Algorithms as objects and classes, and what a run in Python says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.algorithms.fedavg import Down, Up
from fedrift.algorithms.swa import SWA
from fedrift.api import named
from fedrift.core import (
    SGD,
    Algorithm,
    Cohort,
    Exponential,
    Local,
    Problem,
    Site,
    Vec,
    Weights,
    state,
)
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import FedAvg, Scaffold, Spec, load_run


@state
class Here:
    w: Vec


@dataclass(frozen=True)
class Mine(Algorithm[Here, None]):
    """FedAvg with a rate of the server's own."""

    local: Local = Local()
    server_lr: float = 1.0
    weights: Weights = "samples"

    def server(self, p: Problem) -> Here:
        return Here(w=p.w0)

    def round(self, s: Here, cohort: Cohort) -> Here:
        up = cohort.ask(self.train, Down(w=s.w))
        return Here(w=s.w + self.server_lr * up.delta)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.w).delta), mine


@dataclass(frozen=True)
class Still(Algorithm[Here, None]):
    """Without local settings or weights of its own."""

    def server(self, p: Problem) -> Here:
        return Here(w=p.w0)

    def round(self, s: Here, cohort: Cohort) -> Here:
        return s


HOW: dict[str, Any] = {
    "lr": 0.05, "epochs": 2, "batch_size": 16, "momentum": 0.5, "weight_decay": 0.01, "clip": 1.0,
}  # fmt: skip


def test_settings_of_the_run_fill_an_object_that_says_nothing() -> None:
    named_ = small_run("fedavg", **HOW)
    for given in (FedAvg, FedAvg(), Mine, Mine()):
        assert small_run(given, **HOW).fingerprint == named_.fingerprint
    uniform = small_run("fedavg", weights="uniform", **HOW).fingerprint
    assert small_run(Mine, weights="uniform", **HOW).fingerprint == uniform
    assert small_run(Mine(weights="uniform"), weights="uniform", **HOW).fingerprint == uniform
    swa = small_run("swa(fedavg):start=0.5", **HOW).fingerprint
    assert small_run(SWA(Mine(), start=0.5), **HOW).fingerprint == swa
    whole = small_run("fedavg", batch_size=None, lr=0.1)
    assert small_run(Mine, batch_size=None).fingerprint == whole.fingerprint


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Mine(Local(lr=0.05)), {"lr": 0.1}, r"lr=0.1 and Mine\(local=Local\(…\)\) are both given"),
    (SWA(Mine(Local(lr=0.05))), {"epochs": 3}, r"epochs=3 and Mine\(local"),
    (Mine(weights="uniform"), {"weights": "samples"}, r"weights='samples' and Mine\(weights='un"),
    (Still(), {"lr": 0.1}, "lr=0.1: Still has no field for it"),
    (Still(), {"weights": "uniform"}, "weights='uniform': Still has no field 'weights'"),
    (Mine(Local(epochs=[1, 2])), {}, "epochs lists 2 entries for 7 clients"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("algorithm", "how", "says"), WRONG)
def test_settings_said_twice_are_named(algorithm: Any, how: dict[str, Any], says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run(algorithm, **how)


def test_a_list_of_epochs_in_local() -> None:
    epochs: Any = [1, 2, 1, 2, 1, 2, 3]
    one = small_run(FedAvg(Local(epochs=epochs, batch_size=16)))
    assert one.fingerprint == small_run("fedavg", epochs=epochs).fingerprint
    assert hash(Local(epochs=epochs)) == hash(Local(epochs=tuple(epochs)))


def spec_of(folder: Path) -> Spec:
    return load_run(folder).spec


def test_the_folder_says_what_was_passed(tmp_path: Path) -> None:
    x, y = blobs(200)
    split = fr.split(x, y, "dirichlet", alpha=0.3, clients=7)
    result = small_run("fedavg", clients=split, schedule="exp:0.9", out=tmp_path / "a", **HOW)
    spec = spec_of(tmp_path / "a")
    assert {key: getattr(spec, key) for key in HOW} == HOW
    assert (spec.partition, spec.schedule, spec.clients) == ("dirichlet:0.3", "exp:0.9", 7)
    assert result.spec() == spec
    who = [[0, 1], [2, 3], [4, 5]]
    small_run(
        "fedavg", clients=list(split), out=tmp_path / "b", rounds=3, per_round=None,
        participants=who, workers=1, backend="processes",
    )  # fmt: skip
    spec = spec_of(tmp_path / "b")
    assert spec.partition == "python", "a division that nobody named"
    assert spec.participants == ((0, 1), (2, 3), (4, 5))
    assert (spec.workers, spec.backend) == (1, "processes")
    iid = fr.split(x, y, "iid", clients=7)
    small_run("fedavg", clients=iid, out=tmp_path / "c")
    assert spec_of(tmp_path / "c").partition == "iid"


def test_the_folder_says_how_the_object_was_made(tmp_path: Path) -> None:
    local = Local(lr=Exponential(0.05, 0.9), steps=3, batch_size=8, optimizer=SGD(momentum=0.5))
    result = small_run(Mine(local, server_lr=0.7), out=tmp_path / "a")
    spec, summary = spec_of(tmp_path / "a"), load_run(tmp_path / "a").summary
    assert spec.algorithm == "mine:server_lr=0.7"
    assert (spec.lr, spec.schedule, spec.steps, spec.batch_size) == (0.05, "exp:0.9", 3, 8)
    assert spec.momentum == 0.5 and spec.epochs is None
    assert "server_lr=0.7" in summary["algorithm_object"]
    assert "Exponential(lr=0.05" in summary["algorithm_object"]
    assert result.spec() == spec
    small_run(Mine, out=tmp_path / "b", **HOW)
    assert {key: getattr(spec_of(tmp_path / "b"), key) for key in HOW} == HOW
    assert small_run(SWA(Mine(server_lr=0.7), cycle=2)).info["algorithm"] == (
        "swa(mine:server_lr=0.7):cycle=2"
    )


TASK: dict[str, Any] = {
    "model": Net, "clients": uneven_clients(), "test": blobs(50, seed=5), "rounds": 2, "workers": 0,
}  # fmt: skip


def test_objects_of_one_class_are_told_apart(tmp_path: Path) -> None:
    objects = [Mine(), Mine(server_lr=0.5), Mine(Local(lr=0.01)), Mine(Local(lr=0.02)), "mine"]
    labels = ["mine (lr 0.1)", "mine:server_lr=0.5", "mine (lr 0.01)", "mine (lr 0.02)", "mine"]
    assert list(named(objects)) == labels
    made = fr.compare(objects[:4], out=tmp_path, **TASK)
    assert [o.error for o in made.outcomes] == [""] * 4
    assert len({r.fingerprint for r in made.results}) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 4
    again = fr.compare(objects[3::-1], out=tmp_path, **TASK)
    assert [r.fingerprint for r in again.results] == [r.fingerprint for r in made.results][::-1]


def test_labels_of_ones_own(tmp_path: Path) -> None:
    made = fr.compare({"slow": Mine(Local(lr=0.01)), "fast": "fedavg"}, out=tmp_path, **TASK)
    assert [o.item.label for o in made.outcomes] == ["slow", "fast"]
    assert {o.item.shown for o in made.outcomes} == {"slow", "fast"}
    assert len(made.of("slow")) == 1
    long = {f"{'x' * 100} {i}": FedAvg(Local(lr=0.1 + i)) for i in range(2)}
    alike = {"a b": "fedavg", "a:b": "fedprox"}
    for names in (long, alike):
        made = fr.compare(names, out=tmp_path, seeds=2, **TASK)
        assert len({str(r.folder) for r in made.results}) == 4


def test_one_algorithm_is_a_comparison_of_one() -> None:
    for one in ("fedavg", FedAvg, Scaffold()):
        assert len(fr.compare(one, **TASK).results) == 1
    with pytest.raises(fr.InputError, match="algorithms is empty"):
        fr.compare([], **TASK)
    assert torch.equal(fr.compare(FedAvg, **TASK).results[0].weights, small_run(
        "fedavg", rounds=2, per_round=None, batch_size=64, test=TASK["test"]).weights)  # fmt: skip
