"""A finished run goes on with more rounds, to the bits of one that was to be longer all along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.cli import main
from fedrift.config.spec import Spec
from fedrift.engine import resume as resuming
from fedrift.engine.recorder import RunRecorder
from tests.support.problems import blobs, small_run, uneven_clients

LINES = ("rounds.jsonl", "ledger.jsonl", "client_rounds.jsonl", "training.jsonl")


def told(folder: Path) -> dict[str, list[Any]]:
    """All lines of a folder but the times."""
    rows = {
        name: [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in LINES
        if (folder / name).exists()
    }
    for row in rows.get("rounds.jsonl", []):
        del row["seconds"]
    return rows


def code_of(arguments: list[str]) -> int:
    try:
        return main(arguments) or 0
    except SystemExit as end:
        return int(end.code or 0)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "every round": ("fedavg", {}),
    "the last round is in no rhythm": ("scaffold", {"eval_every": 2}),
    "the last round is in the rhythm": ("scaffold", {"eval_every": 3}),
    "clients evaluate": (
        "fedavg",
        {"client_test": 0.3, "eval_clients": "every=2", "eval_every": 2},
    ),
    "clients evaluate only": ("fedavg", {"client_test": 0.3, "test": None, "eval_every": 2}),
    "models of their own": ("ditto(fedavg)", {"client_test": 0.3, "eval_every": 2}),
    "no test data": ("fedavg", {"test": None}),
    "a schedule over rounds": ("fedavg", {"schedule": "exp:0.9"}),
    "a list of cohorts": ("fedavg", {"participants": [[0, 2], [1, 3], [2, 4]] * 3}),
    "averaging from a round on": ("swa(fedavg):start=2,cycle=1", {}),
    "workers": ("scaffold", {"workers": 2, "eval_every": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_of_an_unbroken_run(case: str, tmp_path: Path) -> None:
    name, options = CASES[case]
    if "participants" in options:
        options = options | {"per_round": None}
    rounds: list[int] = []
    small_run(name, rounds=3, out=tmp_path / "run", **options)
    long = small_run(
        name, rounds=7, out=tmp_path / "run", on_round=lambda r: rounds.append(r.round), **options
    )
    whole = small_run(name, rounds=7, out=tmp_path / "whole", **options)
    assert rounds == [4, 5, 6, 7], "the first rounds are not made again"
    assert long.status == "done" and long.fingerprint == whole.fingerprint
    assert torch.equal(long.weights, whole.weights)
    assert long.ledger.entries == whole.ledger.entries
    assert long.training == whole.training and long.client_rounds == whole.client_rounds
    assert told(tmp_path / "run") == told(tmp_path / "whole")
    assert long.info["rounds"] == 7 and Spec.from_toml(tmp_path / "run" / "spec.toml").rounds == 7
    read = small_run(name, rounds=7, out=tmp_path / "run", **options)  # finished: only read
    assert read.fingerprint == whole.fingerprint


def test_more_than_once_and_after_a_stop(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "eval_every": 4}
    small_run("feddyn", rounds=2, **options)
    small_run("feddyn", rounds=6, on_round=lambda r: r.round == 3, **options)
    small_run("feddyn", rounds=7, **options)
    long = small_run("feddyn", rounds=9, **options)
    assert long.fingerprint == small_run("feddyn", rounds=9, eval_every=4).fingerprint


@pytest.mark.parametrize("step", ["write_environment", "write_text", "checkpoint"])
def test_killed_while_it_is_made_longer(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "eval_every": 2}
    small_run("scaffold", rounds=3, **options)

    def killed(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as dying, pytest.raises(MemoryError):
        if step == "checkpoint":
            dying.setattr(resuming, "write", killed)
        else:
            dying.setattr(resuming.RunFolder, step, killed)
        small_run("scaffold", rounds=6, **options)
    long = small_run("scaffold", rounds=6, **options)
    assert long.fingerprint == small_run("scaffold", rounds=6, eval_every=2).fingerprint


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "cosine": ("fedavg", {"schedule": "cosine"}, "holds 3 rounds, and schedule 'cosine'"),
    "a share of the rounds": ("swa(fedavg):start=0.5,cycle=1", {}, "Swa|SWA"),
    "other data": ("fedavg", {"clients": uneven_clients()[:5]}, "holds another run"),
    "clients in between": (
        "fedavg",
        {"client_test": 0.3, "eval_clients": "every=2"},
        "clients evaluated after round 3 because it was the last",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_continued_is_refused_and_left_alone(what: str, tmp_path: Path) -> None:
    name, options, says = REFUSED[what]
    first = {k: v for k, v in options.items() if k != "clients"}
    small_run(name, rounds=3, out=tmp_path / "run", **first)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(fr.InputError, match=says):
        small_run(name, rounds=6, out=tmp_path / "run", **options)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_fewer_rounds_are_another_run(tmp_path: Path) -> None:
    small_run("fedavg", rounds=3, out=tmp_path / "run")
    with pytest.raises(fr.InputError, match="rounds"):
        small_run("fedavg", rounds=2, out=tmp_path / "run")


class Fades(fr.core.Algorithm[Any, None]):  # type: ignore[name-defined]
    """Looks at the number of rounds in a method of its own."""

    def server(self, p: Any) -> Any: ...
    def round(self, s: Any, cohort: Any) -> Any:
        return s, cohort.problem.rounds


def test_who_looks_at_the_number_of_rounds_is_found() -> None:
    from fedrift.core.algorithm import Algorithm
    from fedrift.engine.build import build

    assert Algorithm.counts_on_rounds(Fades())
    for text in ("fedavg", "scaffold", "ditto(fedavg)", "swa(fedavg):start=3", "mime", "fedgf"):
        assert not build(text, {}, 10).counts_on_rounds(), text
    assert build("swa(fedavg)", {}, 10).counts_on_rounds()


def test_a_budget_is_that_of_all_rounds(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    options: dict[str, Any] = {
        "clients": [(x, y) for x, y in uneven_clients() if len(y)],
        "per_round": None,
        "fraction": 0.5,
        "sampling": "bernoulli",
        "privacy": "gaussian:1.0,clip=1.0,delta=1e-5",
    }
    name = "fedavg:weights=uniform"
    short = small_run(name, rounds=3, out=tmp_path / "run", **options)
    long = small_run(name, rounds=6, out=tmp_path / "run", **options)
    whole = small_run(name, rounds=6, **options)
    assert long.fingerprint == whole.fingerprint
    assert long.summary()["epsilon"] == whole.summary()["epsilon"] > short.summary()["epsilon"]


def test_comparisons_go_on_too(tmp_path: Path) -> None:
    def compared(rounds: int, out: Path | None) -> fr.Comparison:
        return fr.compare(
            ["fedavg", "scaffold"],
            model=lambda: torch.nn.Linear(8, 4),
            clients=uneven_clients(),
            test=blobs(50, seed=5),
            rounds=rounds,
            workers=0,
            out=out,
        )

    compared(2, tmp_path / "c")
    long, whole = compared(5, tmp_path / "c"), compared(5, None)
    prints = [[r.fingerprint for r in one.results] for one in (long, whole)]
    assert prints[0] == prints[1]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--data", "digits", "--clients", "4", "--eval-every", "2", "--workers", "0", "--json"]
    run = ["run", "scaffold", *base, "--out"]
    assert code_of([*run, str(tmp_path / "a"), "--rounds", "3"]) == 0
    assert code_of(["resume", str(tmp_path / "a"), "--rounds", "5", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code_of([*run, str(tmp_path / "b"), "--rounds", "3"]) == 0
    assert code_of([*run, str(tmp_path / "b"), "--rounds", "5"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code_of([*run, str(tmp_path / "c"), "--rounds", "5"]) == 0
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert resumed["fingerprint"] == again["fingerprint"] == whole["fingerprint"]
    assert resumed["rounds"] == 5 and resumed["status"] == "done"
    assert code_of(["resume", str(tmp_path / "a"), "--rounds", "4"]) == 2
    assert "give more" in capsys.readouterr().err
    assert code_of(["resume", str(tmp_path / "a"), "--rounds", "many"]) == 2


# A run that is interrupted in Python.


@pytest.mark.parametrize("folder", [True, False])
def test_an_interruption_has_what_there_is(folder: bool, tmp_path: Path) -> None:
    def stop(report: fr.RoundReport) -> None:
        if report.round == 3:
            raise KeyboardInterrupt

    out = tmp_path / "run" if folder else None
    with pytest.raises(KeyboardInterrupt) as caught:
        small_run("fedavg", on_round=stop, out=out)
    partial = caught.value.result  # type: ignore[attr-defined]
    whole = small_run("fedavg")
    assert partial.status == "stopped" and partial.rounds == [1, 2, 3]
    assert "stopped, 3 of 5 rounds" in repr(partial)
    assert partial.loss == whole.loss[:3] and partial.training == whole.training[:3]
    assert partial.module() is not None
    if folder:
        assert small_run("fedavg", out=out).fingerprint == whole.fingerprint


def test_an_interrupted_comparison_has_the_runs_that_were_made() -> None:
    def callbacks(item: Any) -> list[fr.Callback]:
        class Stop(fr.Callback):
            def on_round(self, report: fr.RoundReport) -> None:
                if item.label == "scaffold":
                    raise KeyboardInterrupt

        return [Stop()]

    with pytest.raises(KeyboardInterrupt) as caught:
        fr.compare(
            ["fedavg", "scaffold"],
            model=lambda: torch.nn.Linear(8, 4),
            clients=uneven_clients(),
            rounds=2,
            workers=0,
            callbacks=callbacks,
        )
    (made,) = caught.value.result.results  # type: ignore[attr-defined]
    assert made.info["algorithm"] == "fedavg" and made.status == "done"


# What clients keep, after a resume.


@pytest.mark.parametrize("name", ["ditto(fedavg)", "pfedme", "apfl", "fedper", "localonly"])
def test_clients_keep_the_same_over_a_resume(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunRecorder, "is_due", lambda _: True)
    options: dict[str, Any] = {"client_test": 0.3, "model": Headed}
    small_run(name, out=tmp_path / "run", on_round=lambda r: r.round == 2, **options)
    again = small_run(name, out=tmp_path / "run", **options)
    longer = small_run(name, out=tmp_path / "longer", rounds=2, **options)
    longer = small_run(name, out=tmp_path / "longer", **options)
    whole = small_run(name, **options)
    for client in range(7):
        mine = whole.client(client).module().state_dict()
        for other in (again, longer):
            own = other.client(client).module().state_dict()
            assert all(torch.equal(mine[key], own[key]) for key in mine), (name, client)


class Headed(torch.nn.Module):
    """Two layers, the last one the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 6), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))
