"""Own code of the current folder from the program `fedrift`, wherever visits run; and what a
comparison does with own code that fails."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

import pytest

import fedrift as fr
from tests.support.problems import Net, small_run, uneven_clients

SOURCE = '''
import os
from dataclasses import dataclass

from fedrift.algorithms.fedavg import Down, FedAvg, Server, Up
from fedrift.core import Algorithm, Cohort, Local, Problem, Site


@dataclass(frozen=True)
class Mine(Algorithm[Server, None]):
    """FedAvg again."""

    local: Local = Local()

    def server(self, p: Problem) -> Server:
        return FedAvg().server(p)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return FedAvg.round(self, s, cohort)

    outer = FedAvg().outer

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.w).delta), mine


@dataclass(frozen=True)
class AtClient(Mine):
    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        raise ValueError("too warm\\nto train")


@dataclass(frozen=True)
class AtServer(Mine):
    def round(self, s: Server, cohort: Cohort) -> Server:
        raise EOFError("nothing left")


@dataclass(frozen=True)
class Ends(Mine):
    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        os._exit(9)


class Unwilling(Mine):
    """Cannot be made in a worker."""

    def __reduce__(self):
        return made_in, (os.getpid(),)


def made_in(process):
    if process != os.getpid():
        raise LookupError("only at home")
    return Unwilling()
'''
SHORT = "--rounds 2 --clients 3 --model logistic --json".split()


class Program(Protocol):
    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside_me.py").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def fedrift(programs: Path, folder: Path) -> Program:
    """The console script, which does not look for modules in the current folder by itself."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / "fedrift", *words], capture_output=True, text=True, check=False, cwd=folder
        )

    return run


def answer(done: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_compare_finds_it_on_a_shared_pool(workers: str, fedrift: Program) -> None:
    own = ["beside_me:Mine", "swa(beside_me:Mine):start=2,cycle=1"]
    done = fedrift("compare", "fedavg", *own, *SHORT, "--workers", workers)
    plain, mine, _ = [run["fingerprint"] for run in answer(done)["runs"]]
    assert mine == plain


def test_compare_finds_it_on_ray(fedrift: Program) -> None:
    pytest.importorskip("ray", reason="needs fedrift[ray]")
    names = ["fedavg", "beside_me:Mine", "beside_me:AtClient"]
    done = fedrift("compare", *names, *SHORT, "--workers", "2", "--backend", "ray")
    plain, mine = [run["fingerprint"] for run in answer(done, 1)["runs"]]
    assert mine == plain
    assert "ValueError: too warm to train (beside_me.py, line 30, in train)" in done.stderr


def test_run_resume_analyse_and_explain_find_it(fedrift: Program, folder: Path) -> None:
    run = ["run", "beside_me:Mine", *SHORT, "--workers", "2", "--out", "a"]
    made = answer(fedrift(*run))
    again = answer(fedrift("resume", "a", "--trust-code", "--json"))
    assert again["fingerprint"] == made["fingerprint"]
    for words in (["analyse", "a", "--what", "classes"], ["verify", "a"]):
        done = fedrift(*words, "--trust-code")
        assert done.returncode == 0, done.stderr
    done = fedrift("explain", "beside_me:Mine", "-o", "page.html")
    assert done.returncode == 0 and (folder / "page.html").exists(), done.stderr


WHY = {
    "beside_me:AtClient": "ValueError: too warm to train (beside_me.py, line 30, in train)",
    "beside_me:AtServer": "EOFError: nothing left (beside_me.py, line 36, in round)",
    "beside_me:Ends": "the last: exit code 9",
    "beside_me:Unwilling": "LookupError: only at home (beside_me.py, line 54, in made_in)",
}


def test_the_others_go_on_when_one_fails(fedrift: Program) -> None:
    """Each in its way: at a client, at the server, with its worker, before the first visit."""
    names = ["fedavg", *WHY, "scaffold"]
    done = fedrift("compare", *names, *SHORT, "--workers", "2")
    made = answer(done, 1)["runs"]
    assert [run["label"] for run in made] == ["fedavg", "scaffold"]
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    for line, (name, why) in zip(failed, WHY.items(), strict=True):
        assert line.startswith(f"failed: {name}: ") and why in line
    for run in made:
        alone = answer(fedrift("run", run["label"], *SHORT, "--workers", "0"))
        assert alone["fingerprint"] == run["fingerprint"]


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("name", ["beside_me:AtClient", "beside_me:AtServer"])
def test_a_run_that_fails_says_where(name: str, workers: str, fedrift: Program) -> None:
    done = fedrift("run", name, *SHORT, "--quiet", "--workers", workers)
    assert done.returncode == 1
    assert WHY[name] in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_in_python_all_failing_is_raised_and_one_is_told() -> None:
    class Stop(fr.Callback):
        def on_round(self, report: fr.RoundReport) -> None:
            raise ZeroDivisionError("as asked")

    task: dict[str, Any] = {"model": Net, "clients": uneven_clients(), "rounds": 1, "workers": 0}
    with pytest.raises(ZeroDivisionError, match="as asked"):
        fr.compare(["fedavg"], callbacks=lambda item: [Stop()], **task)
    names = ["fedavg", "fedprox"]
    made = fr.compare(names, callbacks=lambda i: [Stop()] * (i.label == "fedavg"), **task)
    assert len(made.results) == 1
    assert "fedavg: 0 of 1 made, failed: ZeroDivisionError: as asked (test_own_code" in repr(made)


def test_the_lines_of_a_worker_are_kept_for_those_who_ask() -> None:
    def loss(output: Any, target: Any) -> Any:
        if os.getpid() != home:
            raise ZeroDivisionError("no luck today")
        return output.sum()

    home = os.getpid()
    with pytest.raises(fr.RunError, match=r"ZeroDivisionError: no luck today") as caught:
        small_run("fedavg", loss=loss, workers=1)
    assert "\n" not in str(caught.value)
    assert any("Traceback" in note for note in caught.value.__notes__)
