"""Models of the clients' own: taken out of a run and its folder, and what the run is judged by."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.core import pack
from fedrift.engine.client_models import ClientModels, in_folder
from fedrift.engine.result import Result
from tests.support.problems import Net, blobs

X, Y = blobs(240, seed=2)
CLIENTS = fr.split(X, Y, "dirichlet:0.4", clients=6, seed=1, test=0.3)
SERVER = blobs(120, seed=5)
PERSONAL = (
    "localonly",
    "finetune(fedavg):steps=3",
    "fedper",
    "fedrep",
    "ditto(fedavg)",
    "pfedme",
    "apfl",
)


def run(algorithm: Any = "fedper", **options: Any) -> Result:
    given: dict[str, Any] = {
        "model": Net,
        "clients": CLIENTS,
        "test": SERVER,
        "rounds": 4,
        "per_round": 3,
        "workers": 0,
        "seed": 3,
        "lr": 0.1,
        "batch_size": 16,
    }
    return fr.run(algorithm, **(given | options))


def loaded(folder: Path) -> fr.SavedRun:
    saved = fr.load(folder)
    assert isinstance(saved, fr.SavedRun)
    return saved


def accuracy_of(module: torch.nn.Module, client: int) -> float:
    tests = CLIENTS.test
    assert tests is not None
    x, y = tests[client]
    with torch.no_grad():
        return float((module.eval()(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("algorithm", PERSONAL)
def test_a_clients_model_is_the_one_that_was_evaluated(algorithm: str) -> None:
    result = run(algorithm)
    last = result.client_rounds[-1]
    for client, accuracy in zip(last["client"], last["accuracy"], strict=True):
        one = result.client(client)
        assert accuracy_of(one.module(), client) == pytest.approx(accuracy)
        assert len(one.frame()) == 4
    models = [result.client(c).weights for c in range(6)]
    assert not all(torch.equal(models[0], other) for other in models[1:])


@pytest.mark.parametrize("algorithm", ["fedper", "finetune(fedavg):steps=3", "ditto(fedavg)"])
def test_the_same_bits_in_memory_in_a_folder_and_read_again(algorithm: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"out": tmp_path / "run"}
    here, kept = run(algorithm), run(algorithm, **given)
    again, workers = run(algorithm, **given), run(algorithm, workers=2)
    for client in (0, 5):
        one = here.client(client)
        for other in (kept, again, workers):
            same = other.client(client)
            assert torch.equal(one.weights, same.weights)
            assert one.rounds == same.rounds


class Normed(torch.nn.Module):
    """With a layer for FedBN to keep."""

    def __init__(self) -> None:
        super().__init__()
        width, classes = X.shape[1], int(Y.max()) + 1
        self.norm, self.out = torch.nn.BatchNorm1d(width), torch.nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


def states_of(result: Result, folder: Path) -> list[dict[str, Any]]:
    """What every client keeps, as the folder of a run has it."""
    assert isinstance(result.personal, ClientModels)
    end = in_folder(result.personal._task, folder)
    try:
        tables = end.states.tables
        return [pack(end.states.read(path, c)) for path in sorted(tables) for c in range(6)]
    finally:
        end.states.close()


@pytest.mark.parametrize("algorithm", [*PERSONAL, "fedbn", "keep(scaffold):what=head"])
def test_what_clients_keep_is_the_same_after_an_interruption(
    algorithm: str, tmp_path: Path
) -> None:
    """Client by client and bit by bit, and so are the models that are made of it."""

    def crash(report: fr.RoundReport) -> None:
        if report.round == 2:
            raise RuntimeError("power cut")

    given: dict[str, Any] = {"model": Normed if algorithm == "fedbn" else Net}
    whole = run(algorithm, out=tmp_path / "whole", **given)
    with pytest.raises(RuntimeError, match="power cut"):
        run(algorithm, out=tmp_path / "cut", on_round=crash, **given)
    again = run(algorithm, out=tmp_path / "cut", **given)
    assert again.fingerprint == whole.fingerprint
    one, other = states_of(whole, tmp_path / "whole"), states_of(again, tmp_path / "cut")
    assert len(one) == len(other) == (0 if algorithm.startswith("finetune") else 6)
    for mine, same in zip(one, other, strict=True):
        assert mine.keys() == same.keys()
        for name, value in mine.items():
            is_tensor = isinstance(value, torch.Tensor)
            assert torch.equal(value, same[name]) if is_tensor else value == same[name]
    for client in range(6):
        assert torch.equal(whole.client(client).weights, again.client(client).weights)


def test_it_is_loaded_from_a_folder(tmp_path: Path) -> None:
    from fedrift.api import run_spec
    from fedrift.config.spec import Spec

    spec = Spec.of(
        {
            "algorithm": "fedper",
            "clients": 4,
            "rounds": 2,
            "client_test": 0.2,
            "model": "logistic",
            "workers": 0,
        }
    )
    made = run_spec(spec, out=tmp_path / "run")
    saved = loaded(tmp_path / "run")
    assert torch.equal(saved.client(2).weights, made.client(2).weights)
    assert saved.client(2).frame().equals(made.client(2).frame())


def test_batch_normalisation_statistics_come_with_it() -> None:
    class Normed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)
            self.out = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.norm(x))

    result = run("fedbn", model=Normed)
    means = [result.client(c).module().norm.running_mean for c in (0, 1)]  # type: ignore[union-attr]
    assert not torch.equal(means[0], means[1])  # type: ignore[arg-type]
    last = result.client_rounds[-1]
    assert accuracy_of(result.client(0).module(), 0) == pytest.approx(last["accuracy"][0])


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fr.InputError, match="fedavg has no models of the clients' own"):
        run("fedavg").client(0)
    result = run(out=tmp_path / "run")
    for wrong in (6, -1, True, "a"):
        with pytest.raises(fr.InputError, match="the run has 6 clients, 0 to 5"):
            result.client(wrong)  # type: ignore[arg-type]
    with pytest.raises(fr.InputError, match="same call of fedrift"):
        loaded(tmp_path / "run").client(0)
    rows = next((tmp_path / "run" / "clients").glob("*.rows"))
    rows.write_bytes(bytes(rows.stat().st_size))
    (tmp_path / "run" / "checkpoint.previous.safetensors").unlink(missing_ok=True)
    with pytest.raises(fr.InputError, match="does not hold the clients' models"):
        run(out=tmp_path / "run").client(0)
    rows.unlink()
    with pytest.raises(fr.InputError, match="does not hold the clients' models"):
        run(out=tmp_path / "run").client(0)


def test_what_a_run_holds_open_ends_with_its_result() -> None:
    before = len(os.listdir("/proc/self/fd"))
    results = [run() for _ in range(3)]
    results[0].client(1)
    assert len(os.listdir("/proc/self/fd")) >= before + 3
    results.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    run("scaffold")
    assert len(os.listdir("/proc/self/fd")) == before


# What a run is judged by.


def test_the_accuracy_of_personal_models_is_theirs() -> None:
    for algorithm in ("localonly", "fedper", "fedrep"):
        result = run(algorithm)
        assert result.accuracy == result.client_accuracy and len(result.accuracy) == 4
        assert "global_accuracy" not in result.metrics[-1]  # the head was never trained
        assert not any("classes" in row for row in result.metrics)
        assert result.summary()["final_accuracy"] == result.client_accuracy[-1]


@pytest.mark.parametrize("algorithm", ["ditto(fedavg)", "finetune(fedavg):steps=3"])
def test_a_global_model_that_means_something_stands_beside_it(algorithm: str) -> None:
    result, plain = run(algorithm), run("fedavg")
    assert result.accuracy == result.client_accuracy
    assert [row["global_accuracy"] for row in result.metrics] == plain.accuracy
    assert [row["global_loss"] for row in result.metrics] == plain.loss


def test_fine_tuning_makes_plain_steps_whatever_is_inside() -> None:
    """A spring does nothing in the one local step of a visit, so both fine-tune the same model."""
    plain, spring = (
        run(f"finetune({inner}):steps=3", steps=1, epochs=None)
        for inner in ("fedavg", "fedprox:mu=5")
    )
    assert torch.equal(plain.weights, spring.weights)
    for client in range(6):
        assert torch.equal(plain.client(client).weights, spring.client(client).weights)
    sharp = run("finetune(fedsam):steps=3", steps=1, epochs=None)
    spent = [
        sum(e.gradients for e in r.ledger.entries if e.phase.endswith("evaluate at clients"))
        for r in (plain, sharp)
    ]
    assert spent[0] == spent[1] > 0


def test_keep_nothing_is_judged_by_its_own_model() -> None:
    result, plain = run("keep(fedavg):what=none"), run("fedavg")
    assert [row["global_accuracy"] for row in result.metrics] == plain.accuracy


def test_without_test_data_of_the_server_clients_judge() -> None:
    result = run("fedavg", test=None)
    assert result.accuracy == result.client_accuracy and len(result.loss) == 4
    with_both = run("fedavg", eval_clients="every=2")
    assert with_both.accuracy == run("fedavg").accuracy


def test_it_is_evaluated_when_clients_are() -> None:
    result = run("ditto(fedavg)", eval_clients="every=3", rounds=7)
    assert result.rounds == [3, 6, 7] and len(result.accuracy) == 3


def test_one_lost_model_does_not_end_the_run() -> None:
    from fedrift.core.evaluation import client_columns, judged_at_clients
    from fedrift.engine.history import is_finite

    row = {"round": 1, "client": [0, 1], "n": [4, 6], "visited": [1, 1]}
    row |= {"loss": [0.5, float("nan")], "accuracy": [0.75, 0.0]}
    columns = judged_at_clients({}, row, client_columns(row))
    assert columns["loss"] == 0.5 and columns["n"] == 10 and is_finite(columns)
    assert columns["accuracy"] == 0.375
    row["loss"] = [float("nan"), float("inf")]
    assert not is_finite(judged_at_clients({}, row, client_columns(row)))


def test_a_server_without_a_model_says_so_where_clients_have_no_test_data() -> None:
    clients = fr.split(X, Y, "dirichlet:0.4", clients=6, seed=1)
    result = run("fedper", clients=clients)
    assert any("client_test" in note for note in result.notes)
    assert not any("client_test" in note for note in run("ditto(fedavg)", clients=clients).notes)
