"""The guide to one's own algorithm: its code runs, logs, conforms, and is what it says it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift.backends.visit import Call, Visitor
from fedrift.core import EvaluatedModel
from tests.support.problems import Net, blobs

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "own-algorithm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
SHOWN, WHOLE, TWICE, PERSONAL, KEPT, RUNNING = BLOCKS


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the guide's my_module.py, from which it can be imported."""
    (tmp_path / "my_module.py").write_text(WHOLE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_module", None)


def task(clients: int = 5) -> dict[str, Any]:
    x, y = blobs(20 * clients)
    pairs = [(x[20 * i : 20 * (i + 1)], y[20 * i : 20 * (i + 1)]) for i in range(clients)]
    return {"model": Net, "clients": pairs, "test": (x, y), "rounds": 3, "workers": 0}


def test_the_guide_shows_fedavg_as_it_is() -> None:
    code = (ROOT / "src/fedrift/algorithms/fedavg.py").read_text(encoding="utf-8")
    assert code == SHOWN


def test_a_second_training_sees_other_batches(folder: Path) -> None:
    """The guide's method in FedAvg, with and without its purpose."""
    fields = "    local: Local = Local()\n    mu: float = 0.0\n"
    for name, method in (("twice", TWICE), ("same", TWICE.replace(', purpose="second"', ""))):
        head = SHOWN.partition("    def train(")[0].replace("    local: Local = Local()\n", fields)
        head = head.replace("SGD, Optimizer", "SGD, Prox, Optimizer")
        (folder / f"{name}.py").write_text(head + method, encoding="utf-8")
    ends = [fr.run(f"{name}:FedAvg", **task(), batch_size=4).weights for name in ("twice", "same")]
    assert not torch.equal(*ends)


class Normed(torch.nn.Module):
    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.body = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 6)
        self.out = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.body(self.norm(x))))


@pytest.mark.parametrize(("what", "shipped"), [("head", "fedper"), ("norm", "fedbn")])
def test_parts_kept_by_hand_are_those_of_the_package(what: str, shipped: str, folder: Path) -> None:
    (folder / "by_hand.py").write_text(KEPT, encoding="utf-8")
    given: dict[str, Any] = task() | {
        "model": Normed,
        "client_test": 0.3,
        "lr": 0.1,
        "per_round": 3,
    }
    mine, theirs = fr.run(f"by_hand:Kept,what={what}", **given), fr.run(shipped, **given)
    assert mine.accuracy == theirs.accuracy and mine.loss == theirs.loss
    for client in range(5):
        one, other = mine.client(client), theirs.client(client)
        assert torch.equal(one.weights, other.weights)
        for name, value in one.module().state_dict().items():
            assert torch.equal(value, other.module().state_dict()[name]), name


def test_one_import_is_enough() -> None:
    taken = re.findall(r"^from (fedrift[\w.]*) import", WHOLE, flags=re.MULTILINE)
    assert taken == ["fedrift.core"]


def test_the_calls_run_and_log(folder: Path) -> None:
    given = task()
    names = {"Net": Net, "clients": given["clients"], "test": given["test"]}
    exec(RUNNING, names)
    result: Any = names["result"]
    assert result.status == "done" and len(result.metrics) == 5
    assert all(row["spread"] > 0 for row in result.metrics)


def test_a_personal_model_is_another_than_the_servers(folder: Path) -> None:
    source = WHOLE.replace("import dataclass", "import dataclass, replace")
    source = source.replace("Cohort, Gather", "Cohort, EvaluatedModel, Gather")
    source = source.replace("trim: Anno", "tuning: Local = Local(steps=10)\n    trim: Anno")
    (folder / "my_module.py").write_text(source + "\n" + PERSONAL, encoding="utf-8")
    trimmed = import_module("my_module").Trimmed()
    problem, clients = fr.run(trimmed, **task()).problem, fr.Split(*blobs(20), [np.arange(20)])
    shown = EvaluatedModel(problem.w0)
    own = Visitor(trimmed, problem, clients).personal(Call("", 0, 0), 0, shown, None)
    assert not torch.equal(own.w, shown.w)


def test_without_trimming_and_momentum_it_is_fedavg(folder: Path) -> None:
    own = import_module("my_module").Trimmed(local=fr.Local(lr=0.1), beta=0.0, trim=0.0)
    mine, ours = fr.run(own, **task()), fr.run("fedavg:weights=uniform", lr=0.1, **task())
    torch.testing.assert_close(mine.weights, ours.weights, rtol=0, atol=1e-6)


def test_momentum_is_kept_and_outliers_are_cut(folder: Path) -> None:
    """By hand: rows −9, 1, 2, 3, 99 trimmed by a fifth are 2; updates 1 and 3 make 1 and 2."""
    module = import_module("my_module")
    seen: list[float] = []

    class Cohort:
        def ask(self, train: object, down: object) -> Any:
            return module.Up(m=torch.tensor([[-9.0], [1.0], [2.0], [3.0], [99.0]]))

    state = module.Trimmed().round(module.Server(w=torch.zeros(1)), Cohort())
    assert state.w.tolist() == [2.0] and state.spread == pytest.approx((11 + 1 + 0 + 1 + 97) / 5)

    class Site:
        def train(self, local: object, w: torch.Tensor) -> Any:
            return type("Run", (), {"delta": torch.ones(1) * (1 + 2 * len(seen))})

    mine = module.Client(m=torch.zeros(1))
    for _ in range(2):
        up, mine = module.Trimmed().train(Site(), module.Down(w=torch.zeros(1)), mine)
        seen.append(float(up.m))
    assert seen == [1.0, 2.0] and mine.visits == 2


@pytest.mark.timeout(600)  # all columns, with workers: half a minute on an idle machine
def test_it_conforms(folder: Path, programs: Path) -> None:
    done = subprocess.run(
        [programs / "fedrift", "conform", "my_module:Trimmed"],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p != str(folder))},
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
