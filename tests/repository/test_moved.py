"""Old import paths of documents and of users' own files: they work, and say what is new."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

import fedrift as fr
from fedrift._moved import MOVED, RENAMED
from tests.support.problems import Net, blobs

PACKAGE = Path(fr.__file__).parent

# What documents named, and what algorithm files imported, before modules moved into packages.
NAMES = {
    "algorithm": "Algorithm Cohort Weights refuse_memory uniform_only map_local local_of parts",
    "algorithms.changed": "with_sam with_asam with_server_adam",
    "algorithms.finetune": "FineTune fed3rft",
    "algorithms.mimelite": "MimeLite mimelitemom",
    "algorithms.wrapper": "Wrapper",
    "comparing": "compare",
    "data.resident": "Split",
    "dividing": "split",
    "experiment": "Spec",
    "features": "",
    "flat": "Vec Layout norm unit cosine dot flatten",
    "front": "run",
    "local": "Local Run Draw clip_",
    "messages": "Mean Sum Gather message state derived shaped pack unpack",
    "metrics": "evaluate_chunk combine fairness",
    "optim": "SGD Adam Adagrad Momentum OptState Optimizer Schedule apply advance rate",
    "pieces": "Plain SAM ASAM Extra Prox Linear Blend SVRG Step Gradient Correction",
    "problem": "Problem define Part",
    "result": "Result",
    "results": "load RunRecord",
    "rounds": "RoundReport",
    "site": "Site",
    "streams": "stream torch_seed",
}

OLD_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from fedrift.algorithm import Algorithm, Cohort, Weights
from fedrift.flat import Vec
from fedrift.local import Local
from fedrift.messages import Mean, message, state
from fedrift.optim import SGD, Optimizer, OptState, apply
from fedrift.pieces import Prox
from fedrift.problem import Problem
from fedrift.site import Site

@message
class Down:
    w: Vec

@message
class Up:
    delta: Mean[Vec]

@state
class Server:
    w: Vec
    opt: OptState

@dataclass(frozen=True)
class Old(Algorithm[Server, None]):
    local: Local = Local()
    outer: Optimizer = SGD(lr=1.0)
    mu: float = 0.3
    weights: Weights = "samples"

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=self.outer.init(p.w0))

    def round(self, s: Server, cohort: Cohort) -> Server:
        up = cohort.ask(self.train, Down(w=s.w))
        w, opt = apply(self.outer, s.w, -up.delta, s.opt)
        return Server(w=w, opt=opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.w, Prox(self.mu)).delta), mine
"""


@pytest.fixture(autouse=True)
def not_yet_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test imports the old modules for the first time."""
    for old in MOVED:
        parent, _, name = f"fedrift.{old}".rpartition(".")
        monkeypatch.delitem(sys.modules, f"fedrift.{old}", raising=False)
        monkeypatch.delattr(import_module(parent), name, raising=False)
    yield
    for old in MOVED:
        sys.modules.pop(f"fedrift.{old}", None)


def imported(old: str) -> ModuleType:
    with pytest.warns(DeprecationWarning) as caught:
        module = import_module(f"fedrift.{old}")
    said = [str(warning.message) for warning in caught]
    assert said == [f"fedrift.{old} is now fedrift.{MOVED[old]}"]
    return module


def test_every_old_path_is_tried_and_none_hides_a_module() -> None:
    assert set(NAMES) == set(MOVED) and set(RENAMED) <= set(MOVED)
    for old in MOVED:
        place = PACKAGE.joinpath(*old.split("."))
        assert not place.with_suffix(".py").exists() and not place.is_dir(), old


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_what_the_new_one_has(old: str) -> None:
    module, new = imported(old), import_module(f"fedrift.{MOVED[old]}")
    for name in NAMES[old].split():
        assert getattr(module, name) is getattr(new, RENAMED.get(old, {}).get(name, name)), name


def test_a_new_module_is_left_as_it_is() -> None:
    new = import_module("fedrift.core.flat")
    spec = new.__spec__
    imported("flat")
    assert new.__name__ == "fedrift.core.flat" and new.__spec__ is spec
    assert sys.modules["fedrift.core.flat"] is new


def test_a_warning_names_the_readers_line() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        exec(compile("\n\nfrom fedrift.pieces import SAM", "mine.py", "exec"), {})
    assert (caught[0].filename, caught[0].lineno) == ("mine.py", 3)


def test_a_name_that_never_was_is_refused() -> None:
    module = imported("flat")
    with pytest.raises(AttributeError, match="Vector"):
        _ = module.Vector
    with pytest.raises(ModuleNotFoundError):
        import_module("fedrift.flatter")


def test_an_algorithm_file_of_before_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_before.py").write_text(OLD_FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning) as caught:
        old = import_module("of_before")
    told = "algorithm flat local messages optim pieces problem site".split()
    assert [str(w.message).split()[0] for w in caught] == [f"fedrift.{name}" for name in told]
    x, y = blobs(40)
    clients = [(x[:20], y[:20]), (x[20:], y[20:])]
    mine = fr.run(old.Old(mu=0.3), model=Net, clients=clients, rounds=2, workers=0)
    ours = fr.run("fedprox:mu=0.3", model=Net, clients=clients, rounds=2, workers=0)
    assert torch.equal(mine.weights, ours.weights)
