"""The same folder for another task is refused, whatever differs; for the same one it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.api import task_of
from fedrift.core import Local
from fedrift.engine.digests import Digest, tensor_digest
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import FedAvg

cross_entropy = nn.functional.cross_entropy


class Frozen(nn.Module):
    """A model with a frozen layer, a buffer, dropout and a number of its own."""

    scale: Tensor

    def __init__(self, frozen: float = 1.0, buffer: float = 1.0, p: float = 0.1, own: float = 1.0):
        super().__init__()
        self.out = nn.Linear(8, 4)
        self.fixed = nn.Parameter(torch.full((8,), frozen), requires_grad=False)
        self.register_buffer("scale", torch.full((8,), buffer))
        self.drop, self.own = nn.Dropout(p), own

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(x * self.fixed * self.scale * self.own))


class Sharper(Frozen):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.out(self.drop(x * self.fixed * self.scale * self.own))


class Weighted:
    """A loss that is an object."""

    def __init__(self, *weights: float) -> None:
        self.weights = torch.tensor(weights, dtype=torch.float32)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output, target, weight=self.weights)


def smoothed(output: Tensor, target: Tensor, by: float = 0.0) -> Tensor:
    return cross_entropy(output, target, label_smoothing=by)


FACTOR = 1.0


def scaled(output: Tensor, target: Tensor) -> Tensor:
    """Takes a number of its module."""
    return FACTOR * cross_entropy(output, target)


def holding(number: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, target: number * cross_entropy(output, target)


def second(output: Tensor, target: Tensor) -> Tensor:
    return output.max()


class Mine(FedAvg):
    def log(self, s: Any) -> dict[str, float]:
        return {"mine": 1.0}


class Other(FedAvg):
    def log(self, s: Any) -> dict[str, float]:
        return {"mine": 2.0}


Mine.__name__ = Other.__name__ = "Mine"
Mine.__qualname__ = Other.__qualname__ = "Mine"
Sharper.__name__, Sharper.__qualname__ = "Frozen", "Frozen"


def changed(which: str, sample: int) -> dict[str, Any]:
    """The clients or the test set with one number changed, in a row that is seldom looked at."""
    x, y = (t.clone() for t in blobs(600 if which != "test" else 3000, seed=0))
    if sample >= 0 and which != "test":
        x[sample, 3] += 1e-3 if which == "x" else 0.0
        y[sample] = (y[sample] + 1) % 4 if which == "y" else y[sample]
    parts = [(x[i::6], y[i::6]) for i in range(6)]
    if which == "test":
        return {"test": (x, torch.where(torch.arange(3000) == sample, (y + 1) % 4, y))}
    return {"clients": parts}


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "frozen parameters": ({"model": Frozen}, {"model": partial(Frozen, frozen=2.0)}),
    "buffers": ({"model": Frozen}, {"model": partial(Frozen, buffer=2.0)}),
    "dropout": ({"model": Frozen}, {"model": partial(Frozen, p=0.2)}),
    "attributes": ({"model": Frozen}, {"model": partial(Frozen, own=3.0)}),
    "forward": ({"model": Frozen}, {"model": Sharper}),
    "partial": ({"loss": partial(smoothed, by=0.1)}, {"loss": partial(smoothed, by=0.2)}),
    "default": (
        {"loss": lambda o, t, by=0.1: smoothed(o, t, by)},
        {"loss": lambda o, t, by=0.2: smoothed(o, t, by)},
    ),
    "lambda": (
        {"loss": lambda o, t: smoothed(o, t, 0.1)},
        {"loss": lambda o, t: smoothed(o, t, 0.2)},
    ),
    "closure": ({"loss": holding(1.0)}, {"loss": holding(2.0)}),
    "object": ({"loss": Weighted(1, 1, 1, 1)}, {"loss": Weighted(1, 1, 1, 2)}),
    "module": (
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 1.0]))},
    ),
    "metrics": (
        {"metrics": {"m": lambda o, t: o.max()}},
        {"metrics": {"m": lambda o, t: o.min()}},
    ),
    "x": (changed("x", -1), changed("x", 301)),
    "labels": (changed("y", -1), changed("y", 301)),
    "test": (changed("test", -1), changed("test", 1234)),
    "algorithm": ({"algorithm": Mine(Local(lr=0.1))}, {"algorithm": Other(Local(lr=0.1))}),
    "its options": ({"algorithm": Mine(Local(lr=0.1))}, {"algorithm": Mine(Local(lr=0.2))}),
    "rounds": ({"rounds": 2}, {"rounds": 1}),
    "augment": ({"faults": "dropout:0.1"}, {"faults": "dropout:0.2"}),
}


def go(folder: Path, options: dict[str, Any]) -> fr.Result:
    return small_run(
        options.get("algorithm", "fedavg"),
        out=folder,
        **({"rounds": 1} | {k: v for k, v in options.items() if k != "algorithm"}),
    )


@pytest.mark.parametrize("what", PAIRS)
def test_another_task_is_refused_and_the_same_is_not(what: str, tmp_path: Path) -> None:
    one, other = PAIRS[what]
    result = go(tmp_path / "run", one)
    assert go(tmp_path / "run", one).fingerprint == result.fingerprint
    with pytest.raises(fr.InputError, match="holds another run"):
        go(tmp_path / "run", other)


def test_the_difference_is_named(tmp_path: Path) -> None:
    go(tmp_path / "run", {"loss": Weighted(1, 1, 1, 1)})
    with pytest.raises(fr.InputError, match=r"\(the loss differs\)"):
        go(tmp_path / "run", {"loss": Weighted(1, 1, 1, 2)})
    with pytest.raises(fr.InputError, match="the clients' data"):
        go(tmp_path / "run", {"loss": Weighted(1, 1, 1, 1), **changed("y", 3)})


def counting(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Losses that remember how often they were called."""
    number, listed = 0, [0]

    class Counting(Weighted):
        calls = 0

        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            self.calls += 1
            return cross_entropy(output, target, weight=self.weights)

    def rebinds(output: Tensor, target: Tensor) -> Tensor:
        nonlocal number
        number += 1
        return cross_entropy(output, target)

    def appends(output: Tensor, target: Tensor) -> Tensor:
        listed.append(1)
        return cross_entropy(output, target)

    return {"object": Counting(1, 1, 1, 1), "nonlocal": rebinds, "list": appends}[kind]


@pytest.mark.parametrize("kind", ["object", "nonlocal", "list"])
def test_what_a_loss_counts_is_not_what_it_is(kind: str, tmp_path: Path) -> None:
    loss = counting(kind)
    result = go(tmp_path / "run", {"loss": loss})
    assert go(tmp_path / "run", {"loss": loss}).fingerprint == result.fingerprint


def test_a_number_of_the_module_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tmp_path / "run", {"loss": scaled})
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    with pytest.raises(fr.InputError, match="the loss"):
        go(tmp_path / "run", {"loss": scaled})


SCRIPT = """
import sys
from pathlib import Path
from tests.engine.test_identity import Frozen, Mine, Weighted, holding, second
from fedrift.core import Local
from tests.support.problems import small_run

names = {chr(97 + i) for i in range(20)}  # a set has another order in every process

def loss(output, target, inner=holding(1.0)):
    assert "a" in names
    return inner(output, target) + Weighted(1, 1, 1, 1)(output, target)

run = small_run(Mine(Local(lr=0.1)), out=Path(sys.argv[1]), rounds=1, model=Frozen, loss=loss,
                metrics={"second": second, "own": lambda o, t: len(names)})
print(run.fingerprint)
"""


def test_another_process_is_the_same(tmp_path: Path) -> None:
    """Neither addresses nor the order of sets count."""
    (tmp_path / "script.py").write_text(SCRIPT)
    said: list[str] = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


def test_what_was_pickled_is_the_same() -> None:
    """Pickling leaves `__slotnames__` in a class: a run goes on with other workers."""

    class Loss(Weighted):
        pass

    before = Digest.of(Loss(1.0))
    Loss(1.0).__reduce_ex__(2)
    assert "__slotnames__" in vars(Loss)
    assert Digest.of(Loss(1.0)) == before


def test_folders_of_earlier_versions_go_on(tmp_path: Path) -> None:
    """Their identity is one hash, which saw less."""
    from fedrift.engine.identity import hash_of_earlier_versions

    alone = small_run("scaffold", rounds=2, out=tmp_path / "run")
    settings: dict[str, Any] = {"model": Net, "clients": uneven_clients(), "per_round": 3}
    settings |= {"test": blobs(200, seed=5), "rounds": 2, "lr": 0.1, "batch_size": 16}
    path = tmp_path / "run" / "env.json"
    known = json.loads(path.read_text())
    known["identity"] = hash_of_earlier_versions(task_of("scaffold", settings))
    path.write_text(json.dumps(known))
    (tmp_path / "run" / "summary.json").unlink()
    assert small_run("scaffold", rounds=2, out=tmp_path / "run").fingerprint == alone.fingerprint
    with pytest.raises(fr.InputError, match="holds another run"):
        small_run("scaffold", rounds=2, lr=0.2, out=tmp_path / "run")


@pytest.mark.parametrize("identity", [None, 3, "x", {}, {"version": 9}, {"version": 2, "parts": 1}])
def test_an_identity_that_says_nothing_is_refused(identity: object, tmp_path: Path) -> None:
    small_run("fedavg", rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "env.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "identity": identity}))
    with pytest.raises(fr.InputError, match="holds another run"):
        small_run("fedavg", rounds=1, out=tmp_path / "run")


def test_another_python_or_torch_compares_no_code(tmp_path: Path) -> None:
    go(tmp_path / "run", {"loss": PAIRS["lambda"][0]["loss"]})
    path = tmp_path / "run" / "env.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "python": "3.99.1"}))
    assert go(tmp_path / "run", {"loss": PAIRS["lambda"][1]["loss"]}).status == "done"
    with pytest.raises(fr.InputError, match="the loss"):
        go(tmp_path / "run", {"loss": partial(smoothed, by=0.3)})


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_tensors_by_every_element_and_in_any_memory_format(kind: torch.dtype) -> None:
    x = (torch.randn(7, 3, 40, 50) * 3).to(kind)
    assert tensor_digest(x) == tensor_digest(x.to(memory_format=torch.channels_last))
    assert tensor_digest(x) != tensor_digest(x.to(torch.float64))
    for place in (0, 1234, x.numel() - 1):
        y = x.clone()
        flat = y.view(-1)
        flat[place] = ~flat[place] if kind is torch.bool else flat[place] + 1
        assert tensor_digest(y) != tensor_digest(x)
    assert tensor_digest(x.view(7, -1)) != tensor_digest(x.view(-1, 7))


def test_swapped_rows_and_values_are_seen() -> None:
    x = np.arange(200_000, dtype=np.float32).reshape(1000, 200)
    y = x.copy()
    y[[3, 500]] = y[[500, 3]]
    z = x.copy()
    z[3, 4], z[3, 5] = z[3, 5], z[3, 4]
    assert len({Digest.of(a) for a in (x, y, z)}) == 3


def test_hashing_is_fast() -> None:
    """More than 1 GB/s on any processor of the last ten years; half of that passes here."""
    x = torch.randn(25_000_000)
    tensor_digest(x)
    begin = time.process_time()
    tensor_digest(x)
    assert time.process_time() - begin < 0.2


def test_values_of_every_kind() -> None:
    values: list[Any] = [0, 0.0, False, "", b"", None, (), [], {}, set[int](), np.int64(0), [[]]]
    values += [{"a": 1}, {"a": 2}, {1}, {2}, torch.zeros(2), np.zeros(2), np.zeros((2, 1)), int]
    values += [np.random.default_rng(0), np.random.default_rng(1), np.array(["a", None], object)]
    values += [torch.float32, torch.Generator().manual_seed(3), Path("a"), os.path.join, print]
    values += [range(3), range(4), Weighted, Frozen, Sharper, torch, np, Ellipsis, 1j]
    cycle: list[Any] = [1]
    cycle.append(cycle)
    values.append(cycle)
    digests = [Digest.of(value) for value in values]
    assert digests == [Digest.of(value) for value in values]
    for i, a in enumerate(values):
        same = [b for j, b in enumerate(values) if digests[i] == digests[j] and j != i]
        assert not same, (a, same)


def test_the_setting_that_differs_is_named_with_what_to_do(tmp_path: Path) -> None:
    go(tmp_path / "run", {"rounds": 2})
    says = (
        r"another run \(rounds was 2, is 1\); set rounds=2 to have that one, or name a new folder"
    )
    with pytest.raises(fr.InputError, match=says):
        go(tmp_path / "run", {"rounds": 1})
    with pytest.raises(fr.InputError, match=r"rounds was 2, is 1, seed was 0, is 3\); name a new"):
        go(tmp_path / "run", {"rounds": 1, "seed": 3})
    with pytest.raises(fr.InputError, match=r"\(the loss differs.*, seed was 0, is 3\); name"):
        go(tmp_path / "run", {"rounds": 2, "seed": 3, "loss": Weighted(1, 1, 1, 2)})
