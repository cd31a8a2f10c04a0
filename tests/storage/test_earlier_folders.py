"""Run folders written before files moved: they open, go on, verify, report and are analysed.

`earlier_folders.tar.xz` holds one of every kind as it was written then, with the points they were
trained on; `earlier_algorithms.tar.xz` a run of every algorithm of that time, stopped after its
second round, with what each came to in the end. They are never written anew: what a later version
cannot read is a mistake of that version.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.cli import code_of
from fedrift.engine.recorder import environment, moved

HERE = Path(__file__).parent
FINISHED = ["plain", "forked", "python", "compared/runs/fedavg-s0-54486b13"]
COMPARE = (
    "compare fedavg scaffold --data npz:points.npz --model logistic --clients 3 --per-round 2 "
    "--rounds 3 --partition iid --batch-size 8 --workers 0 --lr 0.5 --seeds 1 --out compared"
)


@pytest.fixture(autouse=True)
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the working directory; where they name the data's file, it is there too."""
    unpack("earlier_folders.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)


def unpack(name: str, place: Path) -> None:
    with tarfile.open(HERE / name) as archive:
        archive.extractall(place, filter="data")


def has_same_bits(run: fr.SavedRun) -> bool:
    """Another processor or torch may round otherwise; then figures agree to a few digits."""
    return not moved(run.record.environment, environment(""))


def assert_same(run: fr.SavedRun | fr.Result, model: fr.SavedRun) -> None:
    """What went on later came to what the run that was not interrupted had come to."""
    assert run.accuracy == pytest.approx(model.accuracy)
    assert run.loss == pytest.approx(model.loss, rel=1e-5)
    assert [row["cohort"] for row in run.metrics] == [row["cohort"] for row in model.metrics]
    assert [row["bytes_up"] for row in run.metrics] == [row["bytes_up"] for row in model.metrics]
    if has_same_bits(model):
        assert run.fingerprint == model.fingerprint


def same_call(out: str, algorithm: str = "scaffold", lr: float = 0.5, **more: Any) -> fr.Result:
    """The call in Python that made `python`, and `python-stopped` until it was interrupted."""
    with np.load("points.npz") as file:
        x, y = torch.tensor(file["x"]), torch.tensor(file["y"])
    model = torch.nn.Linear(4, 2)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return fr.run(
        algorithm, model=model, clients=[(x[k::3], y[k::3]) for k in range(3)], test=(x, y),
        rounds=3, per_round=2, batch_size=8, lr=lr, workers=0, out=out, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_read(name: str) -> None:
    run = fr.load(name)
    assert isinstance(run, fr.SavedRun)
    assert (run.status, run.rounds) == ("done", [1, 2, 3])
    assert run.config.algorithm == ("fedavg" if "fedavg" in name else "scaffold")
    assert run.info["final_accuracy"] == run.accuracy[-1]
    assert len(run.fingerprint) == 16
    assert len(run.ledger.entries) == 3
    assert run.frame() is not None


def test_a_comparison_is_read() -> None:
    comparison = fr.load("compared")
    assert isinstance(comparison, fr.SavedComparison)
    assert [run.label for run in comparison.runs] == ["fedavg", "scaffold"]
    assert comparison.of("scaffold")[0].fingerprint == loaded("plain").fingerprint


def test_the_weights_are_those_of_the_fingerprint() -> None:
    result = loaded("plain").result()
    assert result.fingerprint == loaded("plain").fingerprint
    assert result.module()(torch.zeros(1, 4)).shape == (1, 2)


def test_an_unfinished_run_goes_on() -> None:
    assert loaded("stopped").status == "unfinished"
    assert code_of(["resume", "stopped", "-q"]) == 0
    assert_same(loaded("stopped"), loaded("plain"))


def test_an_unfinished_run_of_python_goes_on_with_the_same_call() -> None:
    rounds: list[int] = []
    result = same_call("python-stopped", on_round=lambda report: rounds.append(report.round))
    assert rounds == [3], "the first two are not computed again"
    assert_same(result, loaded("python"))


def test_an_unfinished_run_of_every_algorithm_goes_on(tmp_path: Path) -> None:
    unpack("earlier_algorithms.tar.xz", tmp_path / "every")
    finished = json.loads((tmp_path / "every" / "finished.json").read_text())
    assert len(finished) == 33
    for algorithm, end in finished.items():
        run = tmp_path / "every" / algorithm
        has_same = has_same_bits(loaded(str(run)))
        named = "mofedsam:rho=0.05" if algorithm == "mofedsam" else algorithm  # its default then
        result = same_call(str(run), named, lr=0.1)
        assert result.loss == pytest.approx(end["loss"], rel=1e-5), algorithm
        assert result.fingerprint == end["fingerprint"] or not has_same, algorithm


def test_an_unfinished_comparison_goes_on_with_the_same_command() -> None:
    before = {p: p.read_bytes() for p in Path("compared/runs").rglob("*") if p.is_file()}
    scaffold = next(Path("compared/runs").glob("scaffold-*"))
    (scaffold / "summary.json").unlink()
    (scaffold / "model.safetensors").unlink()
    assert code_of(COMPARE.split()) == 0
    kept = [path for path in before if "fedavg" in str(path)]
    assert [path.read_bytes() for path in kept] == [before[path] for path in kept]
    assert_same(loaded(str(scaffold)), loaded("plain"))


@pytest.mark.parametrize("name", [name for name in FINISHED if name != "python"])
def test_a_run_is_verified(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = code_of(["verify", name, "-q"]), capsys.readouterr()
    # These folders say which instruction set they were made with, and not how it rounded.
    elsewhere = answer.out.startswith("cannot be compared bit for bit (instructions was ")
    assert code == 0, answer.err
    assert "all 3 evaluated rounds agree" in answer.out or elsewhere


def test_the_same_fork_comes_to_the_same() -> None:
    words = "fork plain --at-round 2 --set lr=0.25 --out again -q"
    assert code_of(words.split()) == 0
    assert_same(loaded("again"), loaded("forked"))


@pytest.mark.parametrize(
    "names", [["plain"], ["stopped"], ["forked"], ["compared"], ["python", "python-stopped"]]
)
def test_a_report_is_written(names: Sequence[str]) -> None:
    assert code_of(["report", *names, "-o", "page.html"]) == 0
    assert "scaffold" in Path("page.html").read_text(encoding="utf-8")


def test_a_run_is_analysed() -> None:
    assert code_of("analyse plain --what classes --figures svg -q".split()) == 0
    assert Path("plain/analysis/classes.json").is_file()


def loaded(name: str) -> fr.SavedRun:
    run = fr.load(name)
    assert isinstance(run, fr.SavedRun)
    return run
