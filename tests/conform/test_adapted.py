"""`fedrift conform` on an adapter and on a model by name: what it checks, catches and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrift import conform
from fedrift.adapters.averaging import LoraAveraging, Means
from fedrift.algorithms.fedavg import Up
from fedrift.conform import adapted, invariants
from fedrift.conform import bench as benches
from fedrift.conform.problem import with_model
from fedrift.conform.watched_run import Inside, Moment
from fedrift.core import Algorithm, Cohort, Local, Problem, Site, Vec, message, state
from tests.conform.test_conform import failed, run
from tests.support import cheats
from tests.support.product import Bench, classifier, subject_of

ADAPTERS = ["lora:rank=2", "lora:rank=2,how=exact", "lora:rank=2,how=freeze-A", "bitfit", "head"]
GPT = "gpt:layers=1,width=8,heads=2,context=8"


@message
class Sent:
    model: Vec


@state
class Server:
    w: Vec


@dataclass(frozen=True)
class Otherwise(Algorithm[Server, None]):
    """FedAvg with a word of its own for what it sends."""

    local: Local = Local()

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Sent(model=s.w)).delta)

    def train(self, site: Site, down: Sent, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.model).delta), None


@pytest.fixture(scope="module", params=ADAPTERS)
def bench(request: pytest.FixtureRequest) -> Generator[Bench]:
    with benches.open_bench(adapter=request.param) as opened:
        yield opened


def test_an_adapter_conforms(bench: Bench) -> None:
    report = conform.check("scaffold", bench)
    assert failed(report) == {} and report.is_checked
    own = {"golden", "identities", "convergence"}
    assert {name for name, cell in report.cells.items() if cell.passed is None} == own
    assert bench.watched(subject_of("fedavg")).problem.w0.numel() < 12 * 8 + 12 + 4 * 12 + 4


@pytest.mark.parametrize(
    ("name", "adapter"), [("fedper", "lora:rank=2,how=exact"), ("diloco", "lora:rank=2,how=exact")]
)
def test_other_algorithms_conform_on_an_adapter(name: str, adapter: str) -> None:
    report = conform.check(name, adapter=adapter)
    assert failed(report) == {} and report.is_checked


@pytest.mark.parametrize("model", [GPT, "lstm:width=8,embedding=4", "mlp:hidden=6,depth=1"])
def test_models_by_name_conform(model: str) -> None:
    report = conform.check("fedavg", model=model)
    assert failed(report) == {} and report.cells["invariants"].passed


def test_a_text_model_with_an_adapter_conforms() -> None:
    report = conform.check("fedavg", model=GPT, adapter="lora:rank=2,how=exact")
    assert failed(report) == {} and report.cells["invariants"].passed


def test_positions_of_a_text_have_labels() -> None:
    trial = with_model(GPT)
    x, y = trial.clients[2]
    assert x.shape == y.shape and torch.equal(x[:, 1:], y[:, :-1])


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("mime", "lora:rank=2"),
        ("fedasam", "lora:rank=2,how=exact"),
        ("ghbm", "lora:rank=2,how=exact"),
    ],
)
def test_means_of_products_hold_whatever_is_sent_and_however_large_weights_are(
    name: str, adapter: str
) -> None:
    """Mime's clients are sent the model in one exchange and reply with its change in the next."""
    seen: list[float] = []
    trial = invariants.with_gaps(replace(classifier(), adapter=adapter, dtype="float64"))

    def measured(m: Moment) -> Iterator[str]:
        seen.append(m.algorithm.log(m.new)["lora_bias"])
        yield from adapted.means_of_products(m)

    inside = Inside(subject_of(name), trial)
    assert invariants.failures(inside, (measured,)) == []
    assert len(seen) == trial.rounds and min(seen) > 0


def test_a_model_that_is_sent_under_another_name_is_no_mistake() -> None:
    """Of its clients' models nothing is known then, and nothing is said."""
    for adapter in ("lora:rank=2", "lora:rank=2,how=freeze-A"):
        trial = replace(classifier(), adapter=adapter)
        cell = invariants.check(subject_of(Otherwise()), trial)
        assert cell.passed, cell.text


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_nothing_is_left_to_share_where_the_head_is_trained_and_kept(name: str) -> None:
    cell = invariants.check(subject_of(name), replace(classifier(), adapter="head"))
    assert cell.passed, cell.text


# What is wrong with an adapter is caught.


def _unweighted(patch: pytest.MonkeyPatch) -> None:
    add = Means._add
    patch.setattr(Means, "_add", lambda self, layout, w, weight: add(self, layout, w, 1.0))


def _not_kept(patch: pytest.MonkeyPatch) -> None:
    """What went into the base in earlier rounds is dropped."""
    whole = LoraAveraging.round

    def forgets(self: LoraAveraging, s: Any, cohort: Any) -> Any:
        made = whole(self, s, cohort)
        changed = zip(made.added, s.added, strict=True)
        return replace(made, added=tuple(new - old for new, old in changed))

    patch.setattr(LoraAveraging, "round", forgets)


def _unscaled(patch: pytest.MonkeyPatch) -> None:
    """The difference goes into the base without α/r."""
    differences = Means.differences

    def shrunk(self: Means) -> dict[str, Tensor]:
        return {name: t / self._root.scale for name, t in differences(self).items()}

    patch.setattr(Means, "differences", shrunk)


def _not_sent(patch: pytest.MonkeyPatch) -> None:
    """The server moves its base and keeps that to itself."""
    whole = LoraAveraging._base
    calls: list[int] = []

    def silent(self: LoraAveraging, s: Any, p: Any) -> dict[str, Tensor]:
        calls.append(1)
        return {} if len(calls) % 2 else whole(self, s, p)

    patch.setattr(LoraAveraging, "_base", silent)


MUTANTS = [
    (_unweighted, "lora:rank=2"),
    (_unweighted, "lora:rank=2,how=exact"),
    (_not_kept, "lora:rank=2,how=exact"),
    (_unscaled, "lora:rank=2"),
    (_unscaled, "lora:rank=2,how=exact"),
    (_not_sent, "lora:rank=2,how=exact"),
]


@pytest.mark.parametrize(
    ("plant", "adapter"), MUTANTS, ids=[f"{m.__name__} {a}" for m, a in MUTANTS]
)
def test_a_wrong_mean_of_factors_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = replace(classifier(), adapter=adapter)
    assert invariants.check(subject_of("fedavg"), trial).passed
    plant(monkeypatch)
    cell = invariants.check(subject_of("fedavg"), trial)
    assert cell.passed is False and "mean of the clients' models" in cell.text


@pytest.mark.parametrize("adapter", ["lora:rank=2", "head"])
def test_who_moves_the_base_is_caught(adapter: str) -> None:
    cell = invariants.check(subject_of(cheats.Digger), replace(classifier(), adapter=adapter))
    assert cell.passed is False and "'hidden.weight' of the base is frozen but has" in cell.text


# The command


def test_what_does_not_fit_is_told_and_the_others_are_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conform, "COLUMNS", {"form": conform.COLUMNS["form"]})
    assert run("fedavg", "fedbuff", "--adapter", "lora:rank=2,how=exact", "--quiet") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 as they should be" in out
    assert "not fedbuff: adapter how=exact needs clients that stand on one base" in out


def test_each_is_checked_where_it_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "mlp:hidden=6,depth=1", "--adapter", "lora:rank=2", "--json"]
    assert run("fedavg", *arguments) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["columns"]["convergence"]["passed"] is None
    assert row["columns"]["invariants"]["passed"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--adapter", "laro"], "unknown adapter 'laro'"),
        (["--adapter", "lora:rank=0"], "option rank of lora must be"),
        (["--adapter", "lora:rank=9"], "rank=9 is larger than layer 'hidden' (12 × 8) can hold"),
        (["--adapter", "lora:on=nothing"], "matches no layer of the model with on=nothing"),
        (["--model", "gtp"], "unknown model 'gtp': did you mean 'gpt'?"),
        (["--model", "my_module:Net"], "conform knows models of ours"),
        (["--model", "cnn:width=3"], "cnn"),
    ],
)
def test_a_wrong_problem_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fedavg", *arguments, "--quiet") == 2
    assert said in " ".join(capsys.readouterr().err.split())
