"""Training, own metrics and logs of algorithms: in the report, the progress line, the columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedrift as fr
from fedrift.cli.progress import _words
from fedrift.engine.trackers.tracker import of_report
from tests.support.problems import blobs, small_run, uneven_clients


def bias(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) == 0).double().mean())


def page_of(result: Any, folder: Path) -> str:
    fr.report(result, folder / "r.html")
    return (folder / "r.html").read_text()


def section(page: str, name: str) -> str:
    found = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    return found.group(0) if found else ""


def test_a_report_shows_training_beside_test_and_every_note(tmp_path: Path) -> None:
    made = fr.compare(
        ["fedavg", "fedgf"],
        model=lambda: torch.nn.Linear(8, 4),
        clients=uneven_clients(),
        test=blobs(50, seed=5),
        metrics={"first class": bias},
        rounds=4,
        seeds=2,
        workers=0,
    )
    page = page_of(made, tmp_path)
    training, noted = section(page, "training"), section(page, "noted")
    for title in ("test accuracy", "generalisation gap", "test loss", "before (dotted) and after"):
        assert title in training
    assert training.count("<figure") == 4
    assert re.findall("<figcaption>(.*?)</figcaption>", noted) == ["first class", "dist", "c"]
    board = section(page, "leaderboard")
    assert all(f"{name}<" in board for name in ("train_loss", "train_accuracy", "first class"))


def test_a_report_of_an_earlier_run_has_no_such_section(tmp_path: Path) -> None:
    result = small_run("fedavg", out=tmp_path / "run")
    lines = (tmp_path / "run" / "rounds.jsonl").read_text()
    kept = re.sub(r'"train_\w+": [^,}]+, ', "", lines)
    assert kept != lines and "train_" not in kept
    (tmp_path / "run" / "rounds.jsonl").write_text(kept)
    (tmp_path / "run" / "training.jsonl").unlink()
    page = page_of(fr.load(tmp_path / "run"), tmp_path)
    assert result.metrics and not section(page, "training") and not section(page, "noted")


def test_the_progress_line_and_trackers_have_them() -> None:
    told: list[fr.RoundReport] = []
    small_run("fedgf", metrics={"first class": bias}, on_round=lambda r: told.append(r) and None)
    line = "  ".join(_words(told[-1].metrics))
    assert all(word in line for word in ("train loss ", "first class ", "dist ", "c "))
    values = of_report(told[-1])
    assert {"test/first class", "test/dist", "train/loss", "train/loss_before"} <= values.keys()
    assert not any(name.startswith("test/train") for name in values)


@pytest.mark.parametrize("name", ["loss", "round", "train_loss", "client_loss", "n"])
def test_a_metric_does_not_hide_a_column(name: str) -> None:
    with pytest.raises(fr.InputError, match=f"metrics: '{name}' is a column of every run"):
        small_run("fedavg", metrics={name: bias})


@pytest.mark.parametrize(("metrics", "says"), [({"": bias}, "must be a name"), ({"f1": 3}, "f1")])
def test_a_metric_is_a_function_with_a_name(metrics: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", metrics=metrics)


@pytest.mark.parametrize(
    ("metrics", "says"),
    [({}, "'loss' is a column of every run"), ({"mine": bias}, "'mine' is also a metric")],
)
def test_a_log_does_not_hide_a_column(
    metrics: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrift.algorithms.fedgf import FedGF

    name = "mine" if metrics else "loss"
    monkeypatch.setattr(FedGF, "log", lambda self, s: {name: 1.0})
    with pytest.raises(fr.InputError, match=says):
        small_run("fedgf", metrics=metrics)
