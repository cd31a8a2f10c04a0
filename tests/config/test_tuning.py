"""Tuning: what is tried, on what, within which budget, and what the file and the report say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrift import comparison
from fedrift.cli import code_of
from fedrift.config import grid
from fedrift.config.grid import Tuned
from fedrift.config.tuning import Rung, rungs, searches
from fedrift.errors import InputError
from tests.support.product import Entrant, Grid, Spec
from tests.support.report_pages import made

BASE = Spec(data="digits", rounds=4, clients=4, workers=0, model="logistic", partition="iid")


def test_rungs_halve_candidates_and_lengthen_runs() -> None:
    assert rungs(9, 90) == (Rung(9, 30, 3), Rung(3, 90, 1))
    assert rungs(27, 270) == (Rung(27, 30, 9), Rung(9, 90, 3), Rung(3, 270, 1))
    assert rungs(1, 90) == ()
    assert rungs(9, 4) == (Rung(9, 4, 1),), "whole runs decide at once"


@pytest.mark.parametrize("budget", [18, 60, 100, 1000])
def test_a_budget_is_kept(budget: int) -> None:
    for number in (2, 3, 4, 6, 8, 9):
        found = rungs(number, 50, budget)
        assert all(rung.candidates > rung.kept for rung in found)
        assert sum(rung.candidates * rung.rounds for rung in found) <= budget
        assert found[-1].kept == 1
    with pytest.raises(InputError, match=r"tune_budget is 17.*use at least 18"):
        rungs(9, 50, 17)


def test_given_values_stay_and_inner_algorithms_are_tuned() -> None:
    entrants = (Entrant("fedprox:mu=0.3"), Entrant("swa(fedprox)"), Entrant("fedavg", {"lr": 0.2}))
    one, two, three = searches(Grid(entrants, BASE), ["mu=0,1", "lr=0.1,0.5"])
    assert {e.algorithm for e in one.candidates} == {"fedprox:mu=0.3"}
    assert [e.settings["lr"] for e in one.candidates] == [0.1, 0.5]
    assert {e.algorithm for e in two.candidates} == {"swa(fedprox:mu=0)", "swa(fedprox:mu=1)"}
    assert two.candidates[0].tuned == ("mu", "lr")
    assert three.candidates == (entrants[2],) and three.rungs == ()


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        (["lr"], "tune 'lr' must name an option and at least two values"),
        (["lr=0.1"], "at least two values"),
        (["lr=0.1,0.1"], "at least two values"),
        (["lr=0.1,0.2", "lr=1,2"], "tune 'lr' is given twice"),
        (["lr=0.1,fast"], "lr must be a number above 0, not 'fast'"),
        (["mu=0,x"], "option mu of fedprox must be"),
        (["colour=1,2"], "tune 'colour' is an option of no algorithm here"),
        (["rho=0.1,0.2"], "tune 'rho' is an option of no algorithm here"),
        (["seed=1,2"], "tune 'seed' is an option of no algorithm here"),
        (["alpha=1,2"], "alpha varies in the grid and is tuned; keep one"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_runs(tune: list[str], said: str) -> None:
    entrants = (Entrant("fedavg"), Entrant("fedprox"))
    base = Spec(rounds=4, partition="dirichlet")
    with pytest.raises(InputError, match=said):
        searches(Grid(entrants, base, {"alpha": [0.1, 1.0]}), tune)


def test_the_settings_of_one_algorithm_do_not_reach_another(tmp_path: Path) -> None:
    entrants = (Entrant("fedavg", {"epochs": 2}), Entrant("fedprox"))
    comparison.tuned(Grid(entrants, BASE), ["mu=0,1"], tmp_path, None)
    tried = [Spec.from_toml(f) for f in (tmp_path / "tuning").glob("runs/*/spec.toml")]
    assert len(tried) == 2
    assert {spec.epochs for spec in tried} == {None}


def test_cost_and_values_stand_in_file_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rounds", "4", "--clients", "4", "--workers", "0", "--model", "logistic"]
    words += ["--partition", "dirichlet", "--alpha", "1,5", "--json"]
    first, second = tmp_path / "first", tmp_path / "second"
    tune = ["--tune", "lr=0.0001,0.5", "--tune-budget", "6"]
    assert code_of(["compare", "fedavg", "fedsgd", *words, *tune, "--out", str(first)]) == 0
    told = json.loads(capsys.readouterr().out)
    frozen = grid.from_toml(first / "compare.toml")
    assert frozen.entrants[0] == Entrant("fedavg", {"lr": 0.5}, "", ("lr",))
    assert frozen.tuned is not None
    assert (frozen.tuned.runs, frozen.tuned.rounds) == (4, 12)
    assert frozen.tuned.gradients > 0 and frozen.tuned.at == {"alpha": 1.0}
    again = ["compare", "--spec", str(first / "compare.toml"), "--json", "--out", str(second)]
    assert code_of(again) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["fingerprint"] for run in runs] == [run["fingerprint"] for run in told["runs"]]
    assert (second / "compare.toml").read_text() == (first / "compare.toml").read_text()
    assert not (second / "tuning").exists(), "frozen values are not searched again"
    for folder in (first, second):
        _, page = made(tmp_path, folder)
        assert "Found by tuning: lr=0.5 for fedavg" in page.text
        assert "lr among 0.0001, 0.5, on training data held out" in page.text
        assert "with seed 0, alpha 1.0 only: 4 runs, 12 rounds and" in page.text


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (3, "tuning must be a table"),
        ({"seed": 0, "runs": 1, "rounds": -1, "gradients": 3}, "tuning.rounds must be a whole"),
        ({"seed": 0, "runs": 1, "rounds": 1, "gradients": 3}, "needs a table 'options'"),
        ({"colour": 1}, "tuning: 'colour' is unknown"),
        (
            {"seed": 0, "runs": 1, "rounds": 1, "gradients": 3, "options": {"lr": 1}},
            r"tuning\.options\.lr must be a list",
        ),
    ],
)
def test_a_damaged_record_is_refused(table: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Tuned.of(table)


def test_a_budget_without_tuning_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["compare", "fedavg", "--tune-budget", "9"]) == 2
    assert "nothing is tuned" in capsys.readouterr().err
