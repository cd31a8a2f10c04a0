"""`fedrift conform` and `fedrift.conform.check`: what they catch, say, print and return."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Generator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fedrift as fr
from fedrift import conform
from fedrift.algorithms import NAMES
from fedrift.algorithms.fedprox import fedprox
from fedrift.conform import Cell, Report, survey
from fedrift.conform import bench as benches
from fedrift.conform.convergence import Limit, judged
from fedrift.core import Algorithm, Local
from fedrift.engine import build
from tests.support import cheats
from tests.support.product import Bench, Scaffold, subject_of

with warnings.catch_warnings():
    # typer 0.20 imports names that click 8.5 will drop; tests treat warnings as errors.
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedrift.cli import code_of

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def bench() -> Generator[Bench]:
    with benches.open_bench() as opened:
        yield opened


def failed(report: Report) -> dict[str, str]:
    return {name: cell.text for name, cell in report.cells.items() if cell.passed is False}


def test_a_right_algorithm_passes(bench: Bench) -> None:
    report = conform.check("tests.support.cheats:Fine", bench)
    assert failed(report) == {}
    assert report.passed and report.failures == []
    assert list(report.cells) == list(conform.COLUMNS)
    assert report.cells["golden"].passed is None
    assert report.cells["convergence"].text == "FedAvg's point (0.2300, 1.3785)"


@pytest.mark.parametrize(
    "what", [cheats.Fine, cheats.fine, cheats.Fine(), "tests.support.cheats:fine"]
)
def test_an_algorithm_can_be_given_in_many_ways(what: Any, bench: Bench) -> None:
    """As a class, a function, an object or by where it is found."""
    assert bench.fingerprint(subject_of(what)) == bench.fingerprint(subject_of("fedavg"))


CAUGHT: list[tuple[Any, str, str]] = [
    (cheats.Bare, "form", "put @dataclass(frozen=True) above the class"),
    (cheats.Thawed, "form", "write @dataclass(frozen=True)"),
    (cheats.Listed, "form", "field 'seen' is a list, which can change: use a tuple"),
    (cheats.Unhinted, "form", "the hints are the wire format"),
    (cheats.Unpackable, "form", "field 'notes' holds a dict"),
    (cheats.Rounder, "form", "field 'shift' holds a complex"),
    (cheats.Unreduced, "form", "write delta: Mean[…], Sum[…] or Gather[…]"),
    (cheats.Silent, "form", "call cohort.ask in round"),
    (cheats.Scribbler, "payload", "'train' wrote to down.w"),
    (cheats.Eraser, "payload", "'train' wrote to mine.last"),
    (cheats.Overwriter, "payload", "'round' wrote to its old state's total"),
    (cheats.Gossip, "isolation", "answers otherwise where it knows nothing else (up.delta)"),
    (cheats.ThroughModule, "isolation", "a client method may use only site, down, mine"),
    (cheats.ThroughSelf, "isolation", "fails where it knows nothing else: KeyError: 'total'"),
    (cheats.ThroughModule, "backends", "with 2 workers it ends elsewhere than without"),
    (cheats.Scribbler, "order", "depends on the order in which clients are visited"),
    (cheats.Scribbler, "wire", "wrote to its message"),
    (cheats.Forgetful, "resume", "belongs into the server's or a client's state"),
]


@pytest.mark.parametrize(
    ("what", "column", "said"), CAUGHT, ids=[f"{w.__name__} {c}" for w, c, _ in CAUGHT]
)
def test_a_wrong_algorithm_is_caught(what: Any, column: str, said: str, bench: Bench) -> None:
    """By the column that is there for it, in words that say what to do."""
    cheats.LEFT_BEHIND.clear()
    cell = conform._filled(conform.COLUMNS[column], subject_of(what), bench)
    assert cell.passed is False
    assert said in cell.text


def test_nothing_else_is_looked_at_until_the_form_is_right(bench: Bench) -> None:
    report = conform.check(cheats.Bare, bench)
    assert list(failed(report)) == ["form"]
    assert report.cells["wire"] == Cell(None, "not looked at until its form is right")
    assert report.failures == [
        "Bare, form: Bare is no dataclass: put @dataclass(frozen=True) above the class"
    ]


def test_a_run_away_is_reported_not_judged(bench: Bench) -> None:
    cell = conform.COLUMNS["convergence"](subject_of(cheats.Diverging), bench)
    assert cell.passed and cell.text.startswith("diverges")


def test_without_a_bench_it_makes_its_own() -> None:
    report = conform.check("fedsgd")
    assert report.passed, report.failures
    assert report.seconds > 0


def test_it_is_found_at_the_front_door() -> None:
    assert fr.__getattr__("conform") is conform


def test_options_are_kept(bench: Bench) -> None:
    made = subject_of("scaffold:option=I").make({"lr": 0.3, "steps": 2}, 5)
    assert isinstance(made, Scaffold)
    assert (made.option, made.local.lr, made.local.steps) == ("I", 0.3, 2)
    own = subject_of(Scaffold(option="I")).make({"lr": 0.3, "steps": 2}, 5)
    assert own == made
    assert subject_of(fedprox).make({"lr": 0.3}, 5) == fedprox(fr.Local(lr=0.3))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("fedagv", "did you mean 'fedavg'"),
        ("tests.support.cheats:Nothing", "module 'tests.support.cheats' has no 'Nothing'"),
        ("nowhere:Mine", "cannot be imported: there is no n"),
        ("tests.support.cheats:LEFT_BEHIND", "is a dict; give a class, or a function"),
        ("tests.support.cheats:Down", "give 'w' a default, or a value"),
        ("tests.conform.test_conform:composed,muu=1", "did you mean 'mu'"),
        (dict, "derive it from fedrift.Algorithm"),
        (fr.Algorithm, "abstract"),
    ],
)
def test_what_is_no_algorithm(what: Any, said: str) -> None:
    with pytest.raises(fr.InputError) as caught:
        subject_of(what)
    assert said in str(caught.value)


def test_every_name_is_a_subject() -> None:
    for name in NAMES:
        subject = subject_of(name)
        assert (subject.name, subject.kind) == (name, name)
        assert subject.make({}, 4) is not None


def test_reports_survive_being_written(bench: Bench) -> None:
    report = Report("a", "a:b=1", {"form": Cell(True, "x"), "wire": Cell(None, "y")}, 0.25)
    assert Report.of(json.loads(json.dumps(report.row()))) == report


def test_limits_are_judged() -> None:
    still = [[-0.2, 4 / 3]] * 40
    assert judged(Limit("x", (-0.2, 4 / 3)), still) == Cell(True, "minimiser (-0.2000, 1.3333)")
    assert judged(Limit("x"), [[0.5, 1.0]] * 40).text == "0.7 off (0.5000, 1.0000)"
    moving = [[0.5 + t / 10, 1.0] for t in range(40)]
    assert judged(Limit("x"), moving).text.startswith("moving, ")
    away = judged(Limit("x", (0.0, 0.0)), still)
    assert away.passed is False and "not within 2e-06 of (0.000000, 0.000000)" in away.text
    assert judged(Limit("x", (0.0, 0.0)), still[:3]).text == "diverges after 3 rounds"
    assert judged(Limit("x"), [[float("nan"), 0.0]] * 40).passed


# The command


def run(*arguments: str) -> int:
    return code_of(["conform", *arguments])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the quick columns, so that the command itself is what is looked at."""
    few = {name: conform.COLUMNS[name] for name in ("form", "golden", "convergence")}
    monkeypatch.setattr(conform, "COLUMNS", few)


@pytest.mark.usefixtures("quick")
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fedsgd", "swa") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["algorithm", "form", "golden", "convergence"]
    assert lines[1].split()[:3] == ["fedsgd", "✓", "✓"]
    assert "minimiser (-0.2000, 1.3333)" in lines[1]
    assert "2 of 2 as they should be" in out
    assert "Checked as swa(fedavg):cycle=2,start=0.4." in out
    assert err.splitlines()[0].startswith("1/2 ✓ fedsgd")


@pytest.mark.usefixtures("quick")
def test_a_failure_is_told_and_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tests.support.cheats:Thawed", "--quiet") == 1
    out, err = capsys.readouterr()
    assert (
        "✗ tests.support.cheats:Thawed, form: Thawed can be assigned to: "
        "write @dataclass(frozen=True)" in out
    )
    assert "0 of 1 as they should be" in out
    assert err == ""


@pytest.mark.usefixtures("quick")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tests.support.cheats:Fine", "tests.support.cheats:Silent", "--json") == 1
    out, err = capsys.readouterr()
    first, second = json.loads(out)
    assert (first["name"], first["passed"]) == ("tests.support.cheats:Fine", True)
    assert second["columns"]["form"]["passed"] is False
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedagv"], "unknown algorithm 'fedagv': did you mean 'fedavg'?"),
        (["fedprox:nu=1"], "unknown option of fedprox 'nu'"),
        (["fedprox:mu=-1"], "option mu of fedprox must be"),
        (["swa:cycle=2"], "wraps another algorithm"),
        (["a(", "fedavg"], "unbalanced parentheses"),
    ],
)
def test_bad_names_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


def test_bad_names_are_refused_without_torch() -> None:
    code = (
        "import sys; from fedrift.cli import code_of; assert code_of(['conform', 'fedagv']) == 2; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_module_beside_the_user_is_found(tmp_path: Path, programs: Path) -> None:
    """From a folder of one's own, in a process of its own, isolation included."""
    text = (SUPPORT / "cheats.py").read_text()
    (tmp_path / "my_module.py").write_text(text)
    command = [programs / "fedrift", "conform", "my_module:ThroughModule", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)
    wrong = [name for name, cell in row["columns"].items() if cell["passed"] is False]
    # What it leaves behind in the module makes it another algorithm than the one that began.
    assert wrong == ["isolation", "backends", "resume"]


def test_all_of_them_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(names: list[str], done: Any, *where: Any) -> list[Report]:
        assert where == (None, None)
        asked.extend(names)
        return [Report(name, name, {"form": Cell(True, "")}) for name in names]

    monkeypatch.setattr(survey, "survey", noted)
    assert run() == 0
    assert asked == list(NAMES)


@pytest.mark.slow
def test_side_by_side() -> None:
    """Shares run in processes of their own and their reports come back."""
    found: dict[str, Report] = {}
    survey.side_by_side([["fedsgd"], ["fed3r"]], found.__setitem__)
    assert sorted(found) == ["fed3r", "fedsgd"]
    assert all(report.passed for report in found.values())


@pytest.mark.slow
def test_a_process_that_fails_is_told() -> None:
    with pytest.raises(fr.RunError, match="nonsense"):
        survey.side_by_side([["nonsense"]], lambda name, report: None)


@pytest.mark.slow
def test_all_algorithms_conform(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(NAMES)


def test_the_bar_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    command = import_module("fedrift.cli.conform")
    monkeypatch.setattr(command, "console", lambda **_: _terminal())
    watch = command._Watch(2, silent=False)
    watch.done(Report("fedavg", "fedavg", {"form": Cell(True, "")}))
    watch.close()


def _terminal() -> Any:
    return Console(file=StringIO(), force_terminal=True, width=100)


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    with benches.open_bench():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_conform_says_where_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "falls.py"
    source.write_text(
        "from dataclasses import dataclass\n"
        "from fedrift.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Falls(FedAvg):\n"
        "    def round(self, s, cohort):\n"
        "        return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = conform.check("falls:Falls")
    assert any(f"{source}:6, in round" in line for line in report.failures), report.failures


def composed(local: Local = Local(), mu: float = 0.1) -> Algorithm[Any, Any]:
    """An algorithm of one's own made of pieces, as ours are."""
    return fedprox(local, mu)


@pytest.mark.parametrize("text", ["composed,mu=0.3", "composed:mu=0.3", "composed"])
def test_options_of_an_own_algorithm_are_written_as_everywhere(text: str) -> None:
    made = subject_of(f"tests.conform.test_conform:{text}").make({"lr": 0.3, "steps": 2}, 5)
    mu = 0.3 if "mu" in text else 0.1
    assert made == build.build(f"fedprox:mu={mu}", {"lr": 0.3, "steps": 2}, 5)


def test_a_function_that_composes_gets_the_local_settings_of_the_run() -> None:
    given = {"lr": 0.3, "steps": 2}
    for wrapped in ("{}", "swa({})"):
        mine = build.build(wrapped.format("tests.conform.test_conform:composed,mu=0.3"), given, 5)
        assert mine == build.build(wrapped.format("fedprox:mu=0.3"), given, 5)
