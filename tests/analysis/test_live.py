"""Measurements while a run goes on: they are right, and the run does not notice them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import fedrift as fr
from fedrift.analysis.live import LiveAnalysis
from fedrift.analysis.objective import Objective
from fedrift.analysis.saved import load, read_snapshots
from fedrift.config.analyses import CHEAP, LivePlan, parse_live_plan, read_live_plan
from fedrift.engine.callbacks import OnRound
from fedrift.errors import InputError
from tests.support.problems import small_run
from tests.support.product import Spec, execute, prepare, run_spec, task_from_spec
from tests.support.saved_runs import TINY


def lines(run: Path) -> list[dict[str, Any]]:
    text = (run / "analysis" / "rounds.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("every=10,what=drift,classes", LivePlan(10, ("drift", "classes"))),
        ("what=drift+weights,every=2", LivePlan(2, ("drift", "weights"))),
        ("what=classes", LivePlan(1, ("classes",))),
        ("every=5", LivePlan(5, CHEAP)),
        ("5", LivePlan(5, CHEAP)),
    ],
)
def test_the_plan_is_read(text: str, wanted: LivePlan) -> None:
    assert parse_live_plan(text) == wanted
    assert parse_live_plan(str(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("every=0", "every of analyse must be a whole number of at least 1, not '0'"),
        ("every=10,what=drfit", "unknown what of analyse 'drfit': did you mean 'drift'"),
        ("often=3", "unknown key of analyse 'often'"),
        ("drift,classes", "is not of the form every=10,what=drift,classes"),
        ("every=1,every=2", "gives 'every' twice"),
    ],
)
def test_a_wrong_plan_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        parse_live_plan(text)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_does_not_notice_that_it_is_measured(tmp_path: Path, workers: int) -> None:
    spec = Spec.of({**TINY, "algorithm": "scaffold", "workers": workers})
    plain = run_spec(spec)
    everything = "every=2,what=drift,classes,gradients,weights,cka"
    watched = run_spec(spec, out=tmp_path / "run", analyse=everything)
    assert watched.fingerprint == plain.fingerprint
    assert [row["round"] for row in lines(tmp_path / "run")] == [2, 4]


def test_what_passes_by_is_measured_right(tmp_path: Path) -> None:
    """FedAvg with one client: the update is the server's own step."""
    steps: list[float] = []
    held: list[Any] = [None]

    def note(report: fr.RoundReport) -> None:
        if held[0] is not None:
            steps.append(float((report.weights - held[0]).norm()))
        held[0] = report.weights

    small_run("fedavg", per_round=1, out=tmp_path / "run", analyse="1", on_round=note)
    rows = lines(tmp_path / "run")
    assert [row["drift"]["distance"] for row in rows[1:]] == pytest.approx(steps, rel=1e-5)
    assert all(row["drift"]["cosine_to_average"] == pytest.approx(1.0) for row in rows)
    assert all(len(row["classes"]["norms"]) == 4 for row in rows)


def test_classes_of_the_cohort_are_told(tmp_path: Path) -> None:
    spec = Spec.of({**TINY, "algorithm": "fedavg", "partition": "classes:1", "clients": 10})
    result = run_spec(spec, out=tmp_path / "run", analyse="1")
    for row, metrics in zip(lines(tmp_path / "run"), result.metrics, strict=True):
        found = row["classes"]
        assert found["accuracy"] == metrics["classes"]
        held = [share > 0 for share in found["presence"]]
        assert sum(held) <= 3
        inside = [a for a, h in zip(found["accuracy"], held, strict=True) if h]
        outside = [a for a, h in zip(found["accuracy"], held, strict=True) if not h]
        lift = sum(inside) / len(inside) - sum(outside) / len(outside)
        assert found["lift"] == pytest.approx(lift)


def test_fednovas_normalised_updates_are_made_whole_again(tmp_path: Path) -> None:
    runs = {}
    for name in ("fedavg:weights=uniform", "fednova:weights=uniform"):
        folder = tmp_path / name[:6]
        small_run(name, rounds=1, out=folder, analyse="1", steps=3)
        runs[name] = lines(folder)[0]["drift"]["distance"]
    assert runs["fednova:weights=uniform"] == pytest.approx(
        runs["fedavg:weights=uniform"], rel=1e-5
    )


def test_a_resumed_run_goes_on_measuring(tmp_path: Path) -> None:
    spec, live = Spec.of({**TINY, "algorithm": "fedavg"}), LivePlan(1, ("drift", "step"))
    run_spec(spec, out=tmp_path / "whole", analyse=live)

    class Stop(Exception):
        pass

    def halt(report: fr.RoundReport) -> None:
        if report.round == 3:
            raise Stop

    run = tmp_path / "run"
    with pytest.raises(Stop):
        task = task_from_spec(spec, prepare(spec))
        watching = [LiveAnalysis(live, task, run), OnRound(halt)]
        execute(task, workers=0, out=run, callbacks=watching)
    with (run / "analysis" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 99}\n')  # as if it had gone further than its checkpoint
    plan = read_live_plan(run)
    assert plan == live
    run_spec(spec, out=run, analyse=plan)
    assert lines(run) == lines(tmp_path / "whole")


def test_the_step_against_the_true_gradient(tmp_path: Path) -> None:
    """One client, one full batch: w_old − w is η∇F(w_old), and ∇F(w) is taken at the new model."""
    alone = {"algorithm": "fedsgd", "clients": 1, "per_round": 1, "batch_size": "full", "lr": 0.5}
    spec = Spec.of({**TINY, **alone, "partition": "iid"})
    result = run_spec(spec, out=tmp_path / "run", analyse="every=1,what=step,weights")
    case = load(tmp_path / "run")
    objective = Objective(case.problem, case.pooled())
    snapshots = read_snapshots(tmp_path / "run", result.problem)
    held = [snapshots[t] for t in sorted(snapshots)]
    rows = lines(tmp_path / "run")
    assert len(rows) == len(held) == spec.rounds
    for row, old, new in zip(rows, [result.problem.w0, *held], held, strict=False):
        step, gradient = (old - new).double(), objective.grad(new).double()
        assert (step / 0.5).tolist() == pytest.approx(objective.grad(old).tolist(), abs=1e-4)
        u, g = step / step.norm(), gradient / gradient.norm()
        found = row["step"]
        assert found["epsilon"] == pytest.approx(float((u - g).norm()), abs=1e-4)
        assert found["cosine"] == pytest.approx(float(u @ g), abs=1e-4)
        assert found["degrees"] == pytest.approx(math.degrees(math.acos(float(u @ g))), abs=0.05)
    assert (tmp_path / "run" / "analysis" / "during-step.png").is_file()


def test_without_a_folder_there_is_nowhere_to_keep_it() -> None:
    with pytest.raises(InputError, match="give out"):
        small_run("fedavg", analyse="1")


def test_curves_are_drawn_at_the_end(tmp_path: Path) -> None:
    small_run("scaffold", out=tmp_path / "run", analyse="every=2,what=drift,gradients")
    found = {path.name for path in (tmp_path / "run" / "analysis").iterdir()}
    assert {"during.json", "during-drift.svg", "during-gradients.png", "plan.txt"} <= found
    record = json.loads((tmp_path / "run" / "analysis" / "during.json").read_text())
    assert record["title"] == "During the run", "the heading of the report's section"
    assert "during-recency.svg" not in found


def test_snapshots_are_the_weights_of_their_rounds(tmp_path: Path) -> None:
    weights: dict[int, Any] = {}

    def note(report: fr.RoundReport) -> None:
        weights[report.round] = report.weights

    result: fr.Result = small_run(
        "fedavg", out=tmp_path / "run", analyse="every=2,what=weights", on_round=note
    )
    found = read_snapshots(tmp_path / "run", result.problem)
    assert sorted(found) == [2, 4]
    assert all(bool((found[t] == weights[t]).all()) for t in found)


def test_a_round_without_clients_has_no_gradients(tmp_path: Path) -> None:
    once = Spec.of({**TINY, "algorithm": "fed3r", "per_round": 6, "rounds": 3})
    run_spec(once, out=tmp_path / "run", analyse="every=1,what=gradients,drift")
    found = lines(tmp_path / "run")
    assert [row["round"] for row in found] == [1, 2, 3]
    assert "gradients" in found[0] and "gradients" not in found[1]
