"""The reader's own algorithms and models by `module:name`, from beside the user."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

import fedrift as fr
from fedrift.cli import code_of
from fedrift.config.own_code import foreign_code
from fedrift.federation.config import FederationConfig
from tests.support.problems import small_run
from tests.support.product import Spec, catalogue, load_run, parse

SOURCE = """
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from fedrift.core.algorithm import Algorithm
from fedrift.algorithms.fedavg import Down, FedAvg, Server, Up
from fedrift.core.local import Local
from fedrift.core.site import Site


@dataclass(frozen=True)
class Mine(Algorithm):
    local: Local = Local()
    server_lr: Annotated[float, "> 0"] = 1.0
    times: int | None = None
    kind: Literal["plain", "odd"] = "plain"

    def server(self, p):
        return FedAvg().server(p)

    def round(self, s, cohort):
        up = cohort.ask(self.train, Down(w=s.w))
        return Server(w=s.w + self.server_lr * up.delta, opt=s.opt)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.w).delta), mine


SLOW = Mine(Local(lr=0.01))
NUMBER = 3


def tokens():
    import numpy as np

    x = np.random.default_rng(0).integers(0, 9, (120, 5))
    return x, (x.sum(1) > 20).astype(int)


class Words(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, classes)

    def forward(self, x):
        return self.out(self.table(x).mean(1))


def net(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
RUN = ["--rounds", "2", "--clients", "4", "--model", "logistic", "--workers", "0", "--json"]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A module in the current folder that nobody has put on the path."""
    (tmp_path / "own_things.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.delitem(__import__("sys").modules, "own_things", raising=False)
    yield tmp_path
    __import__("sys").modules.pop("own_things", None)


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert code_of([*words]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_two_spellings_of_options() -> None:
    named = parse("my.module:Mine:mu=0.3,nu=2", "algorithm")
    assert named == parse("my.module:Mine,mu=0.3,nu=2", "algorithm")
    assert (named.code, named.options) == ("my.module:Mine", {"mu": "0.3", "nu": "2"})
    assert parse(str(named), "algorithm") == named
    assert parse("npz:a/b:c=d.npz", "data").value == "a/b:c=d.npz"
    assert catalogue.own_code(parse("swa(a:B)", "algorithm")) == ["a:B"]
    assert catalogue.own_code(parse("swa(fedavg)", "algorithm")) == []


def test_what_a_spec_would_import() -> None:
    assert foreign_code(Spec()) == foreign_code(Spec(data="npz:a", model="mlp", loss="mse")) == []
    spec = Spec(algorithm="swa(a:B,mu=1)", data="c.d:e", model="f:G", loss="h:i")
    assert foreign_code(spec) == ["a:B", "c.d:e", "f:G", "h:i"]


def test_on_the_command_line(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ran(capsys, "run", "fedavg", *RUN)
    assert ran(capsys, "run", "own_things:Mine", *RUN)["fingerprint"] == plain["fingerprint"]
    other = ran(capsys, "run", "own_things:Mine:server_lr=0.5", *RUN, "--out", "a")
    assert other["algorithm"] == "own_things:Mine,server_lr=0.5"
    assert load_run(Path("a")).spec.algorithm == "own_things:Mine:server_lr=0.5"
    again = ran(capsys, "run", "--spec", "a/spec.toml", "--out", "b", "--json")
    assert again["fingerprint"] == other["fingerprint"] != plain["fingerprint"]
    ran(capsys, "resume", "a", "--json", "--trust-code")
    swa = ran(capsys, "run", "swa(own_things:Mine):start=1,cycle=1", *RUN)
    assert (
        swa["fingerprint"] == ran(capsys, "run", "swa(fedavg):start=1,cycle=1", *RUN)["fingerprint"]
    )


def test_a_folder_may_not_choose_code(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = Spec(algorithm="own_things:Mine", model="logistic", rounds=1, workers=0, clients=3)
    Path("a").mkdir()
    Path("a/spec.toml").write_text(spec.to_toml())
    assert code_of(["resume", "a"]) == 2
    assert "'a' would use 'own_things:Mine'" in capsys.readouterr().err
    config = FederationConfig(Spec(), (1, 8, 8), 10, 3)
    assert config.with_changes({"algorithm": "scaffold"}).spec.algorithm == "scaffold"
    with pytest.raises(fr.InputError, match="'own_things:Mine' is code that the config"):
        config.with_changes({"algorithm": "own_things:Mine"})


def test_in_a_comparison(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ("own_things:Mine", "own_things:Mine,server_lr=0.5")
    made = ran(capsys, "compare", "fedavg", *two, *RUN, "--out", "c")
    prints = [run["fingerprint"] for run in made["runs"]]  # type: ignore[index,attr-defined]
    assert prints[0] == prints[1] != prints[2]
    assert code_of(["report", "c", "-o", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "own_things:Mine,server_lr=0.5" in page


def test_workers_find_it_too(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--model", "own_things:net", "--clients", "4", "--rounds", "1", "--json"]
    alone = ran(capsys, "run", "own_things:Mine", *own, "--workers", "0")
    many = ran(capsys, "run", "own_things:Mine", *own, "--workers", "2")
    assert many["fingerprint"] == alone["fingerprint"]


def test_in_python(beside: Path) -> None:
    plain = small_run("fedavg")
    assert small_run("own_things:Mine").fingerprint == plain.fingerprint
    with pytest.raises(fr.InputError, match=r"batch_size=16 and Mine\(local=Local"):
        small_run("own_things:SLOW")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("own_things:Mine,server_lr=0", "option server_lr of own_things:Mine must be a number > 0"),
        ("own_things:Mine,times=1.5", "option times of own_things:Mine must be a whole number or"),
        ("own_things:Mine,kind=even", "must be plain or odd"),
        ("own_things:Mine,sever_lr=1", "unknown option of own_things:Mine 'sever_lr'.*server_lr"),
        ("own_things:NUMBER", "is a int; give a class"),
        ("own_things:net", "cannot be made"),
        ("own_things:Nobody", "has no 'Nobody'"),
        ("nowhere:Mine", "'nowhere:Mine' cannot be imported: there is no n"),
        ("fedagv", "did you mean 'fedavg'.*module:Class"),
    ],
)
def test_a_mistake_is_named(beside: Path, text: str, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run(text)
    if "Mine" not in text and ":" in text:
        Spec(algorithm=text).validate()  # its code is not imported to look at it


@pytest.mark.parametrize("data", ["own_things:tokens", "npz:tokens.npz"])
def test_whole_numbers_stay_whole(
    data: str, beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).integers(0, 9, (120, 5))
    np.savez(beside / "tokens.npz", x=x, y=(x.sum(1) > 20).astype(int))
    common = ["--data", data, "--partition", "iid", "--rounds", "2", "--workers", "0", "--json"]
    ran(capsys, "run", "fedavg", *common, "--model", "own_things:Words")
    ran(capsys, "run", "fedavg", *common)  # a model of ours takes them as features


def test_data_that_a_name_fetches_need_trust(tmp_path: Path) -> None:
    assert foreign_code(Spec(data="huggingface:owner/name")) == ["huggingface:owner/name"]
    assert foreign_code(Spec(data=f"huggingface:{tmp_path}")) == []
