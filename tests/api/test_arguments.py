"""Arguments of a run in every form, and what the run and its result say about them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.cli import code_of
from fedrift.core.sampling import participation
from fedrift.errors import unknown
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import Spec, catalogue, prepare

TASK: dict[str, Any] = {
    "model": Net, "clients": uneven_clients(), "test": blobs(50, seed=5), "rounds": 1, "workers": 0,
}  # fmt: skip


def test_results_are_short(tmp_path: Path) -> None:
    result = small_run("fedavg", rounds=2, out=tmp_path / "a")
    text = repr(result)
    assert text.startswith("<Result: fedavg, done, 2 rounds, accuracy 0.") and len(text) < 300
    assert str(tmp_path / "a") in text
    unseen = small_run("fedavg", rounds=1, test=None)
    assert repr(unseen) == "<Result: fedavg, done, 1 round, not evaluated: no test data>"
    made = fr.compare(["fedavg", "scaffold"], seeds=2, **TASK)
    lines = repr(made).splitlines()
    assert lines[0] == "<Comparison of 4 runs>"
    assert lines[1].startswith("  fedavg: accuracy 0.") and lines[2].startswith("  scaffold: ")
    assert re.search(r"accuracy 0\.\d{4} ± 0\.\d{4} over 2 seeds$", lines[1])
    named: dict[str, Any] = {"metrics": {"share": lambda output, target: 0.25}}
    own = repr(fr.compare(["fedavg"], seeds=1, **TASK, **named)).splitlines()
    assert re.fullmatch(r"  fedavg: accuracy 0\.\d{4}, share 0\.2500", own[1])


def test_participants_of_any_kind() -> None:
    who: list[Any] = [[[0, 1], [2, 3]], torch.tensor([[0, 1], [2, 3]])]
    who += [[torch.tensor([0, 1]), np.array([2, 3])], [list(torch.tensor([0, 1])), (2, 3)]]
    how: dict[str, Any] = {"rounds": 2, "per_round": None}
    runs = {small_run("fedavg", participants=one, **how).fingerprint for one in who}
    assert len(runs) == 1
    longer = small_run("fedavg", participants=[[0]] * 3, **how)
    assert "participants lists 3 rounds; only the first 2 are used" in longer.notes


def test_participants_beyond_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["run", "fedavg", "--participants", "0|1|2", "--rounds", "2"]) == 2
    assert "participants lists 3 rounds, but rounds is 2" in capsys.readouterr().err
    assert code_of(["run", "fedavg", "--participants", "0,1|2,3", "--per-round", "2"]) == 2
    assert "participants (0,1|2,3) and per_round (2)" in capsys.readouterr().err
    assert participation(5, 2, participants=[[0]] * 3).schedule == ((0,), (0,)), "tuning may cut"


def test_full_and_none_are_the_whole_client() -> None:
    whole = small_run("fedavg", batch_size=None).fingerprint
    assert small_run("fedavg", batch_size="full").fingerprint == whole


def test_names_that_are_not_known() -> None:
    text = str(unknown("backend", "ray", ["auto", "processes"]))
    assert text == "unknown backend 'ray' (known: auto, processes)"
    assert "did you mean" not in str(unknown("schedule", "linear", ["cosine", "exp"]))
    assert "did you mean 'fedavg'?" in str(unknown("algorithm", "fedagv", catalogue.names()))


def test_clients_of_a_natural_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = np.array(["zoe", "adam", "mia"])[np.arange(60) % 3]
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.ones((60, 2)), y=np.arange(60) % 2, users=names)
    spec = Spec(data=f"npz:{file}", partition="natural", model="logistic")
    assert prepare(spec).data.user_names == ("adam", "mia", "zoe")
    with pytest.raises(fr.InputError, match=r"clients is 5, but .*one client per user, 3 of them"):
        prepare(replace(spec, clients=5))
    assert code_of(["partition", "natural", "--data", f"npz:{file}"]) == 0
    assert "adam" in capsys.readouterr().out


def test_labels_with_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=np.ones((60, 2)), y=np.array([3, 7, 100])[np.arange(60) % 3])
    how = ["--model", "logistic", "--rounds", "1", "--workers", "0", "--partition", "iid"]
    assert code_of(["run", "fedavg", "--data", f"npz:{file}", *how]) == 0
    said = capsys.readouterr()
    assert "labels are not 0 to 2: 3 of them make 101 classes" in said.err
    assert "done, 1 round\n" in said.out.replace("  ", "")
    assert code_of(["run", "fedavg", *how]) == 0
    assert "labels are not" not in capsys.readouterr().err


def test_a_run_without_test_data_says_so() -> None:
    assert any("nothing is evaluated" in note for note in small_run("fedavg", test=None).notes)
    assert not small_run("fedavg").notes
