"""TensorBoard, MLflow and W&B are told the numbers of the run, also of one that was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedrift as fr
from fedrift.cli import code_of
from fedrift.engine import trackers
from tests.support.problems import small_run


def interrupt(report: fr.RoundReport) -> None:
    if report.round == 3:
        raise KeyboardInterrupt


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    held = events.EventAccumulator(str(folder), purge_orphaned_data=True)
    held.Reload()
    return {tag: [(e.step, e.value) for e in held.Scalars(tag)] for tag in held.Tags()["scalars"]}


def test_tensorboard_holds_the_curve_and_the_costs(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made = small_run("fedavg", out=tmp_path / "run", track="tensorboard")
    found = scalars(tmp_path / "run" / "tensorboard" / "run")
    assert [step for step, _ in found["test/accuracy"]] == made.rounds
    assert [value for _, value in found["test/accuracy"]] == pytest.approx(made.accuracy)
    sent = sum(value for _, value in found["round/bytes_up"])
    assert sent == made.ledger.total.bytes_up
    assert made.fingerprint == small_run("fedavg").fingerprint


def test_tensorboard_goes_on_after_an_interruption(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    how: dict[str, Any] = {"out": tmp_path / "run", "track": f"tensorboard:{tmp_path / 'logs'}"}
    with pytest.raises(KeyboardInterrupt):
        small_run("fedavg", on_round=interrupt, **how)
    made = small_run("fedavg", **how)
    found = scalars(tmp_path / "logs" / "run")
    assert [step for step, _ in found["test/loss"]] == made.rounds
    small_run("fedavg", **how)  # finished: it is read, and nothing is written twice
    assert len(scalars(tmp_path / "logs" / "run")["test/loss"]) == len(made.rounds)


def mlflow_runs(file: Path) -> list[Any]:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{file}")
    home = client.get_experiment_by_name("fedrift").experiment_id
    return [(client, run) for run in client.search_runs([home])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_mlflow_holds_options_curve_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in trackers.TRACKERS["mlflow"].needs:
        pytest.importorskip(needed)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    how: dict[str, Any] = {"out": tmp_path / "run", "track": ["mlflow"]}
    with pytest.raises(KeyboardInterrupt):
        small_run("fedavg", on_round=interrupt, **how)
    ((_, run),) = mlflow_runs(tmp_path / "run" / "mlflow.db")
    assert run.info.status == "KILLED"
    made = small_run("fedavg", **how)
    ((client, run),) = mlflow_runs(tmp_path / "run" / "mlflow.db")
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm"] == "fedavg"
    assert run.data.tags["fedrift.fingerprint"] == made.fingerprint
    curve = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "test/accuracy")}
    assert curve == dict(zip(made.rounds, made.accuracy, strict=True))


def wandb_runs(folder: Path) -> list[tuple[str, dict[str, Any], dict[int, float], int]]:
    """Of every file: the run's id, its settings, its accuracy by round, its exit code."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    datastore = pytest.importorskip("wandb.sdk.internal.datastore")
    found: list[tuple[str, dict[str, Any], dict[int, float], int]] = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        name, config, curve, code = "", dict[str, Any](), dict[int, float](), -1
        held = datastore.DataStore()
        held.open_for_scan(str(file))
        while (data := held.scan_data()) is not None:
            record = pb.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name = record.run.run_id
                config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            elif kind == "history":
                row = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
                curve[record.history.step.num] = float(row["test/accuracy"])
            elif kind == "exit":
                code = record.exit.exit_code
        found.append((name, config, curve, code))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_wandb_holds_options_curve_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for key, value in {"MODE": "offline", "ERROR_REPORTING": "false", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    how: dict[str, Any] = {"out": tmp_path / "run", "track": f"wandb:{tmp_path / 'logs'}"}
    with pytest.raises(KeyboardInterrupt):
        small_run("fedavg", on_round=interrupt, **how)
    made = small_run("fedavg", **how)
    small_run("fedavg", **how)  # finished: it is read, and nothing is written twice
    first, second = wandb_runs(tmp_path / "logs")
    assert first[0] == second[0], "a resumed run goes on under its id"
    assert (first[3], second[3]) == (130, 0)
    assert first[1]["algorithm"] == "fedavg"
    assert first[2] | second[2] == dict(zip(made.rounds, made.accuracy, strict=True))


@pytest.mark.slow
def test_a_comparison_is_tracked_run_by_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    words = [
        "compare",
        "fedavg",
        "fedsgd",
        "--rounds",
        "2",
        "--clients",
        "4",
        "--model",
        "logistic",
    ]
    words += ["--workers", "2", "--out", str(tmp_path), "--track", "tensorboard", "--quiet"]
    assert code_of(words) == 0
    runs = {p.name for p in (tmp_path / "runs").iterdir()}
    assert {p.name for p in (tmp_path / "tensorboard").iterdir()} == runs


@pytest.mark.parametrize("name", trackers.TRACKERS)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_missing_package_is_one_sentence_with_the_fix(
    name: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)  # pyright: ignore[reportUnknownLambdaType]
    assert code_of([command, "fedavg", "--track", name]) == 2
    said = capsys.readouterr().err
    assert f"pip install 'fedrift[{name}]'" in said
    assert said.count("\n") == 1
    with pytest.raises(fr.InputError, match="needs the package"):
        small_run("fedavg", track=name)


def test_unknown_trackers_are_refused() -> None:
    with pytest.raises(fr.InputError, match="did you mean 'tensorboard'"):
        small_run("fedavg", track="tensorbord")
    with pytest.raises(fr.InputError, match="has no options"):
        small_run("fedavg", track="mlflow:here,deep=1")
    with pytest.raises(fr.InputError, match="must be a name"):
        small_run("fedavg", track=[3])
