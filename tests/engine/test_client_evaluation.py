"""Evaluation at clients: what is measured, where it is kept, and that training does not feel it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedrift as fr
from fedrift.core import EvaluatedModel, Local, Site
from fedrift.core.evaluation import ClientFigures, ClientSums, client_columns, fairness
from fedrift.engine.result import Result
from fedrift.storage.run_folder import CLIENT_ROUNDS
from tests.backends.test_personal import Own, Tuned
from tests.support.problems import Net, blobs
from tests.support.product import load_run

X, Y = blobs(300, seed=2)
CLIENTS = fr.split(X, Y, "dirichlet:0.4", clients=9, seed=1, test=0.3)
SERVER = blobs(120, seed=5)


def run(algorithm: Any = "fedavg", **options: Any) -> Result:
    given: dict[str, Any] = {
        "model": Net,
        "clients": CLIENTS,
        "test": SERVER,
        "rounds": 6,
        "per_round": 3,
        "eval_clients": "every=2",
        "workers": 0,
        "seed": 3,
    }
    if isinstance(algorithm, str):
        given |= {"lr": 0.1, "batch_size": 16}
    return fr.run(algorithm, **(given | options))


def test_the_figures_are_those_of_the_model_on_each_clients_data() -> None:
    result = run()
    module, frame = result.module().eval(), result.client_frame()
    last = frame[frame["round"] == 6]
    tests = CLIENTS.test
    assert tests is not None and last.client.tolist() == list(range(9))
    for row in last.itertuples():
        x, y = tests[row.client]
        with torch.no_grad():
            output = module(x)
        assert row.n == len(y)
        assert row.accuracy == pytest.approx(float((output.argmax(1) == y).float().mean()))
        assert row.loss == pytest.approx(float(F.cross_entropy(output, y)), rel=1e-5)


def test_the_columns_of_a_round_are_made_of_the_table() -> None:
    result = run()
    assert [row["round"] for row in result.client_rounds] == [2, 4, 6]
    assert [m["round"] for m in result.metrics if "client_accuracy" in m] == [2, 4, 6]
    line, row = result.client_rounds[1], result.metrics[3]
    values, sizes = np.array(line["accuracy"]), np.array(line["n"])
    assert row["client_accuracy"] == pytest.approx(values.mean())
    assert row["client_accuracy_weighted"] == pytest.approx((values * sizes).sum() / sizes.sum())
    assert row["client_accuracy_std"] == pytest.approx(values.std())
    assert row["client_accuracy_worst"] == values.min()
    assert row["client_accuracy_best"] == values.max()
    jain = values.sum() ** 2 / (9 * (values**2).sum())
    assert row["client_accuracy_jain"] == pytest.approx(jain)
    assert row["client_loss"] == pytest.approx(np.mean(line["loss"]))
    assert row["clients_evaluated"] == 9


def test_worst_and_best_are_tenths_and_jain_is_one_for_equals() -> None:
    values = [i / 20 for i in range(1, 21)]
    given = fairness(values)
    assert given["worst_decile"] == pytest.approx(0.075)
    assert given["best_decile"] == pytest.approx(0.975)
    assert given["weighted"] == pytest.approx(given["mean"])
    assert fairness([0.4, 0.4, 0.4])["jain"] == pytest.approx(1.0)
    assert fairness([1.0, 0.0, 0.0, 0.0])["jain"] == pytest.approx(0.25)
    assert fairness([0.0, 0.0])["jain"] == 1.0


def test_who_was_not_visited_yet_is_counted() -> None:
    result = run(participants=[[0, 1], [2], [1], [5], [0], [0]], per_round=None)
    column = [m["clients_not_visited"] for m in result.metrics if "clients_not_visited" in m]
    assert column == [6, 5, 5]
    assert result.client_rounds[0]["visited"] == [1, 1, 1, 0, 0, 0, 0, 0, 0]


def test_training_does_not_feel_it() -> None:
    seen, unseen = run("scaffold"), run("scaffold", eval_clients=None)
    assert torch.equal(seen.weights, unseen.weights)
    assert seen.accuracy == unseen.accuracy
    assert not unseen.client_rounds and "client_accuracy" not in unseen.metrics[-1]
    assert not any(e.phase == "evaluate at clients" for e in unseen.ledger.entries)


def test_it_costs_what_the_ledger_says() -> None:
    with_it, without = run().ledger, run(eval_clients=None).ledger
    entries = [e for e in with_it.entries if e.phase == "evaluate at clients"]
    assert [e.round for e in entries] == [2, 4, 6]
    vector = 4 * sum(p.numel() for p in Net().parameters())
    assert with_it.bytes_down - without.bytes_down == 3 * 9 * vector
    assert with_it.bytes_up - without.bytes_up == 3 * 9 * 6 * 8  # six numbers each
    assert with_it.gradients == without.gradients
    tests = CLIENTS.test
    assert tests is not None and entries[0].forwards == tests.sizes.sum()


class Headed(torch.nn.Module):
    """Three parameters that may be kept: the body 5 → 6 with BatchNorm, the head 6 → 3."""

    head = "out"

    def __init__(self) -> None:
        super().__init__()
        inputs, classes = X.shape[1], int(Y.max()) + 1
        self.body, self.norm = torch.nn.Linear(inputs, 6), torch.nn.BatchNorm1d(6)
        self.out = torch.nn.Linear(6, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.relu(self.norm(self.body(x))))


@pytest.mark.parametrize("place", [{}, {"backend": "wire"}, {"workers": 2}])
@pytest.mark.parametrize(
    ("name", "kept", "statistics"),
    [
        ("fedavg", (), 3),
        ("fedper", ("out.",), 3),
        ("fedbn", ("norm.",), 0),
        ("localonly", ("body.", "norm.", "out."), 0),
        ("keep(scaffold):what=norm+head", ("norm.", "out."), 0),
    ],
)
def test_what_clients_hold_is_not_sent_for_an_evaluation(
    name: str, kept: tuple[str, ...], statistics: int, place: dict[str, Any]
) -> None:
    result = run(name, model=Headed, **place)
    entry = next(e for e in result.ledger.entries if e.phase.endswith("evaluate at clients"))
    sent = [p for n, p in Headed().named_parameters() if not n.startswith(kept or "?")]
    assert entry.down["w"].total == 9 * 4 * sum(p.numel() for p in sent)
    moved = {0: 0, 3: 4 * (6 + 6) + 8}[statistics]  # mean, variance and the number of batches
    found = entry.down.get("buffers")
    assert (0 if found is None else found.total) == 9 * moved


@pytest.mark.parametrize("name", ["fedper", "fedbn", "localonly"])
def test_a_client_is_evaluated_with_its_whole_model_all_the_same(name: str) -> None:
    result = run(name, model=Headed)
    tests = CLIENTS.test
    assert tests is not None
    last = result.client_rounds[-1]
    for client in (0, 4, 8):
        module = result.client(client).module().eval()
        x, y = tests[client]
        with torch.no_grad():
            right = float((module(x).argmax(1) == y).float().mean())
        assert last["accuracy"][client] == pytest.approx(right)


def test_a_sample_is_the_same_few_every_time() -> None:
    result = run(eval_clients="every=3,sample=4")
    first, last = (row["client"] for row in result.client_rounds)
    assert first == last and len(first) == 4
    assert run(eval_clients="every=3,sample=4", seed=9).client_rounds[0]["client"] != first
    assert len(run(eval_clients="every=3,sample=99").client_rounds[0]["client"]) == 9


def test_an_evaluation_at_clients_is_one_of_the_server_too() -> None:
    result = run(eval_every=4, eval_clients="every=3")
    assert result.rounds == [3, 4, 6]
    assert len(result.accuracy) == 3


@pytest.mark.parametrize("how", [{"workers": 2}, {"backend": "wire"}, {"stack": "off"}])
@pytest.mark.parametrize("algorithm", ["scaffold", Tuned()])
def test_the_same_bits_wherever_it_runs(how: dict[str, Any], algorithm: Any) -> None:
    here, there = run(algorithm), run(algorithm, **how)
    assert here.client_rounds == there.client_rounds
    assert here.fingerprint == there.fingerprint


def test_separate_test_data_reach_workers() -> None:
    given: dict[str, Any] = {
        "clients": [(X[i::3][:40], Y[i::3][:40]) for i in range(3)],
        "test": [(X[i::3][40:], Y[i::3][40:]) for i in range(3)],
        "per_round": 2,
        "eval_clients": None,
    }
    here, there = run(**given), run(**given, workers=2)
    assert len(here.client_rounds) == 6 and here.client_rounds == there.client_rounds
    assert here.status == "done" and "at clients" in repr(here)


def test_personal_models_are_evaluated_and_states_stay() -> None:
    quiet = replace(Tuned(), local=Local(lr=0.1, batch_size=4))
    result = run(quiet)
    assert [row["round"] for row in result.client_rounds] == [2, 4, 6]
    other = run(quiet, eval_clients="every=1")
    assert torch.equal(result.weights, other.weights)
    assert other.client_rounds[1] == result.client_rounds[0]
    entry = next(e for e in result.ledger.entries if e.phase == "evaluate at clients")
    assert entry.gradients > 0  # what was trained to evaluate is counted


class Blind(Tuned):
    """Its personal model is the server's."""

    def personal(self, site: Site, shown: EvaluatedModel, mine: Own) -> EvaluatedModel:
        return shown


def test_a_personal_model_is_another_than_the_servers() -> None:
    own, server = run(Tuned()), run(Blind())
    assert torch.equal(own.weights, server.weights)
    assert own.client_rounds[-1]["loss"] != server.client_rounds[-1]["loss"]


def test_an_algorithm_with_personal_models_is_evaluated_at_clients_unasked() -> None:
    assert run(Tuned(), eval_clients=None, eval_every=3).client_rounds[0]["round"] == 3


def test_a_client_whose_model_is_lost_counts() -> None:
    figures = ClientFigures()
    good = ClientSums(n=4, weight=4, loss_sum=2.0, labels=4, correct=3, lost=0)
    figures.add(0, 1.0, good)
    figures.add(2, 1.0, replace(good, loss_sum=0.0, correct=1, lost=1))
    row = figures.row(5, {2})
    assert row["loss"][0] == 0.5 and math.isnan(row["loss"][1])
    columns = client_columns(row)
    assert columns["client_accuracy"] == 0.5 and math.isnan(columns["client_loss"])
    assert columns["clients_not_visited"] == 1


def test_targets_that_are_no_classes_have_a_loss() -> None:
    x, y = torch.randn(60, 8), torch.randn(60, 4)
    clients = fr.split(x, y, clients=3, test=0.3)
    result = run(clients=clients, test=None, loss=F.mse_loss, lr=0.01)
    assert "accuracy" not in result.client_rounds[0]
    assert result.metrics[-1]["client_loss"] > 0 and not result.client_accuracy


# The table of clients in the run folder.


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CLIENT_ROUNDS).read_text().splitlines()]


def test_the_table_is_kept_and_read_back(tmp_path: Path) -> None:
    result = run(out=tmp_path / "run")
    assert lines(tmp_path / "run") == result.client_rounds
    saved = load_run(tmp_path / "run")
    assert saved.client_frame().equals(result.client_frame())
    again = run(out=tmp_path / "run")
    assert again.client_rounds == result.client_rounds
    assert again.fingerprint == result.fingerprint
    result.save(tmp_path / "copy")
    assert lines(tmp_path / "copy") == result.client_rounds


def test_a_run_without_it_has_no_table(tmp_path: Path) -> None:
    run(out=tmp_path / "run", eval_clients=None)
    assert not (tmp_path / "run" / CLIENT_ROUNDS).exists()


class Stop(Exception):
    pass


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize("algorithm", ["fedavg", Tuned()])
def test_an_interrupted_run_ends_with_the_same_table(
    tmp_path: Path, algorithm: Any, at: int
) -> None:
    def stop(report: fr.RoundReport) -> None:
        if report.round == at:
            raise Stop

    with pytest.raises(Stop):
        run(algorithm, out=tmp_path / "run", on_round=stop)
    whole, rest = run(algorithm), run(algorithm, out=tmp_path / "run")
    assert rest.client_rounds == whole.client_rounds == lines(tmp_path / "run")
    assert rest.fingerprint == whole.fingerprint


def test_another_plan_is_another_run(tmp_path: Path) -> None:
    run(out=tmp_path / "run")
    with pytest.raises(fr.InputError, match="holds another run"):
        run(out=tmp_path / "run", eval_clients="every=3")
    with pytest.raises(fr.InputError, match="holds another run"):
        run(
            out=tmp_path / "run",
            clients=fr.split(X, Y, "dirichlet:0.4", clients=9, seed=1, test=0.2),
        )


def test_the_summary_has_the_last_figures() -> None:
    at_clients = run().summary()["at_clients"]
    assert at_clients["rounds"] == [2, 4, 6]
    assert {"client_accuracy", "client_accuracy_worst", "clients_evaluated"} < {*at_clients}
