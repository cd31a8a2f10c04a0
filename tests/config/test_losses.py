"""`--loss`: regression and several labels on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F

from fedrift.cli import code_of
from fedrift.engine.prepare import load
from fedrift.errors import InputError
from fedrift.models import losses
from tests.support.problems import blobs, small_run
from tests.support.product import Spec, datasets, load_run

X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
HOW = "--partition iid --clients 4 --model logistic --batch-size 10 --rounds 8 --workers 0 --json"
TARGETS: dict[str, np.ndarray] = {
    "mse": X @ np.array([1.0, -2.0, 0.5]),
    "l1": (X @ np.array([1.0, -2.0, 0.5]))[:, None],
    "bce": np.stack([X[:, 0] > 0, X[:, 1] > 0], axis=1),
    "own_loss:pinball": X @ np.array([1.0, -2.0, 0.5]),
}
OWN = """
def pinball(output, target):
    gap = target - output
    return (0.7 * gap.clamp(min=0) - 0.3 * gap.clamp(max=0)).mean()
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "own_loss.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize("loss", TARGETS)
def test_the_loss_goes_down(loss: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(files / "mine.npz", x=X, y=TARGETS[loss])
    where = ["--data", "npz:mine.npz", "--loss", loss, "--out", "run"]
    assert code_of(["run", "fedavg", *where, *HOW.split()]) == 0, capsys.readouterr().err
    curve = json.loads(capsys.readouterr().out)["loss"]
    assert curve[-1] < 0.9 * curve[0]
    assert load_run(files / "run").spec.loss == loss


def test_labels_may_be_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    digits = load(Spec(data="digits", loss="mse"))
    assert digits.y.shape == (len(digits.x), 1) and digits.y.dtype == np.float32
    assert digits.classes == 1 and digits.y_test.dtype == np.float32
    assert load(Spec(data="digits")).y.dtype == np.int64


def test_without_it_numbers_are_no_labels(files: Path) -> None:
    np.savez(files / "mine.npz", x=X, y=TARGETS["mse"])
    with pytest.raises(InputError, match=r"not a whole number.*loss"):
        datasets.load("npz:mine.npz")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("msee", "unknown loss 'msee': did you mean 'mse'"),
        ("mse:3", "mse takes no options"),
        ("own:f,a=1", "unknown loss 'own'"),
    ],
)
def test_a_mistake_is_named(loss: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Spec(loss=loss).validate()


def test_the_folder_of_a_python_run_names_its_loss(tmp_path: Path) -> None:
    x, y = blobs(60)
    numbers = y.float()[:, None].expand(-1, 4)
    clients = [(x[i::2], numbers[i::2]) for i in range(2)]
    for at, loss in enumerate((F.mse_loss, F.huber_loss, lambda o, t: F.mse_loss(o, t))):
        out = tmp_path / str(at)
        small_run("fedavg", clients=clients, test=None, loss=loss, per_round=None, out=out)
    said = [load_run(tmp_path / str(at)).spec.loss for at in range(3)]
    assert said == ["mse", "torch.nn.functional:huber_loss", None]
    assert losses.loss_by_name("torch.nn.functional:huber_loss") is F.huber_loss
