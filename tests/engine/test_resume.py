"""Resuming: stopped, crashed or killed, a run ends with the bits of one that was left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.algorithms.fedavg import Down, Up
from fedrift.core import SGD, Algorithm, Cohort, Local, Problem, Site, Vec, state
from fedrift.engine import execute
from fedrift.engine.callbacks import Passive
from fedrift.engine.loop import Engine
from fedrift.engine.recorder import RunRecorder
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import FedAvg, Plan, checkpoint


class Crash(Exception):
    pass


def crash_at(round: int) -> Any:
    def hook(r: fr.RoundReport) -> None:
        if r.round == round:
            raise Crash

    return hook


def same(one: fr.Result, other: fr.Result) -> bool:
    assert one.status == other.status == "done"
    assert one.ledger.entries == other.ledger.entries
    assert [m["loss"] for m in one.metrics] == [m["loss"] for m in other.metrics]
    return one.fingerprint == other.fingerprint


HEAVY = FedAvg(local=Local(lr=0.1, batch_size=16), outer=SGD(momentum=0.9))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "scaffold", HEAVY])
def test_a_crashed_run_goes_on(name: Any, workers: int, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        small_run(name, out=tmp_path / "run", workers=workers, on_round=crash_at(2))
    rounds: list[int] = []
    again = small_run(name, out=tmp_path / "run", on_round=lambda r: rounds.append(r.round))
    assert rounds == [3, 4, 5], "what was done is not done again"
    assert same(again, small_run(name))


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_stopped_run_goes_on(name: str, tmp_path: Path) -> None:
    stopped = small_run(name, out=tmp_path / "run", on_round=lambda r: r.round == 2)
    assert stopped.status == "stopped"
    assert same(small_run(name, out=tmp_path / "run"), small_run(name))


def test_a_run_may_crash_more_than_once_and_anywhere(tmp_path: Path) -> None:
    calls = [0]

    def fragile(output: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] % 37 == 0:
            raise Crash
        return nn.functional.cross_entropy(output, y)

    for _ in range(60):
        try:
            again = small_run("scaffold", loss=fragile, out=tmp_path / "run")
            break
        except (Crash, fr.InputError):
            continue
    else:
        pytest.fail("never came to an end")
    assert same(again, small_run("scaffold"))


@pytest.mark.parametrize("every", [1, 2, 99])
@pytest.mark.parametrize("crash", [1, 4])
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    every: int, crash: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed: nothing is put in order any more, and lines stand beyond the checkpoint."""
    asked = [0]

    def is_due(self: RunRecorder) -> bool:
        asked[0] += 1
        return asked[0] % every == 0

    monkeypatch.setattr(RunRecorder, "is_due", is_due)
    with monkeypatch.context() as killed, pytest.raises(Crash):
        killed.setattr(Engine, "interrupted", lambda *_: None)
        small_run("scaffold", out=tmp_path / "run", on_round=crash_at(crash))
    rounds: list[int] = []
    again = small_run("scaffold", out=tmp_path / "run", on_round=lambda r: rounds.append(r.round))
    first = (crash - 1) // every * every + 1  # the hook crashed before its round was saved
    assert rounds == list(range(first, 6))
    assert same(again, small_run("scaffold"))


def killed_at(round: int, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A run with a checkpoint after every round that dies without putting anything in order."""
    with monkeypatch.context() as dying, pytest.raises(Crash):
        dying.setattr(RunRecorder, "is_due", lambda _: True)
        dying.setattr(Engine, "interrupted", lambda *_: None)
        small_run(name, out=folder, on_round=crash_at(round))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mimelite", "swa(scaffold):start=2"])
@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
def test_a_damaged_checkpoint_means_the_one_before(
    damage: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(4, tmp_path / "run", monkeypatch, name)
    damage(tmp_path / "run" / checkpoint.FILE)
    rounds: list[int] = []
    again = small_run(name, out=tmp_path / "run", on_round=lambda r: rounds.append(r.round))
    assert rounds == [3, 4, 5], "checkpoints of rounds 3, damaged, and 2"
    assert same(again, small_run(name))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count descriptors in")
def test_a_resume_that_fails_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise fr.InputError("no")

    killed_at(4, tmp_path / "run", monkeypatch, "scaffold")
    monkeypatch.setattr(execute, "resume", fails)
    with pytest.raises(fr.InputError, match="no"):
        small_run("scaffold", out=tmp_path / "run")
    assert not held_open(tmp_path)


def held_open(folder: Path) -> list[str]:
    held = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    return [path for path in held if path.startswith(str(folder))]


class Refuses(fr.Callback):
    def on_start(self, plan: fr.Plan) -> None:
        raise KeyError("no")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count descriptors in")
def test_so_does_a_callback_that_fails_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        small_run("scaffold", out=tmp_path / "run", callbacks=[Refuses()])
    assert not held_open(tmp_path)


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_two_damaged_checkpoints_mean_from_the_start(damage: Any, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        small_run("scaffold", out=tmp_path / "run", on_round=crash_at(3))
    for name in (checkpoint.FILE, checkpoint.PREVIOUS):
        (tmp_path / "run" / name).touch()
        damage(tmp_path / "run" / name) if (tmp_path / "run" / name).stat().st_size else None
    assert same(small_run("scaffold", out=tmp_path / "run"), small_run("scaffold"))


@pytest.mark.parametrize("file", ["clients/root.rows", "rounds.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("damage", [flip, empty])
def test_damage_beside_the_checkpoint_is_noticed(
    file: str, damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never other bits than a run that was left alone."""
    killed_at(4, tmp_path / "run", monkeypatch, "scaffold")
    damage(tmp_path / "run" / file)
    assert same(small_run("scaffold", out=tmp_path / "run"), small_run("scaffold"))


def test_what_was_passed_over_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at(4, tmp_path / "run", monkeypatch, "scaffold")
    flip(tmp_path / "run" / checkpoint.FILE)
    said: list[str] = []

    class Listener(Passive):
        def on_start(self, plan: Plan) -> None:
            said.extend(plan.notes)

    small_run("scaffold", out=tmp_path / "run", callbacks=[Listener()])
    assert any(checkpoint.FILE in note and "earlier" in note for note in said)


def test_a_torn_line_is_written_again(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        small_run("fedavg", out=tmp_path / "run", on_round=crash_at(3))
    for name in ("rounds.jsonl", "ledger.jsonl"):
        with (tmp_path / "run" / name).open("a") as file:
            file.write('{"round": 4, "lo')
    assert same(small_run("fedavg", out=tmp_path / "run"), small_run("fedavg"))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def test_running_statistics_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    how: dict[str, Any] = {"model": Normed, "out": tmp_path / "run"}
    with pytest.raises(Crash):
        small_run("fedavg", **how, on_round=crash_at(3))
    assert same(small_run("fedavg", **how), small_run("fedavg", model=Normed))


@state
class Twice:
    w: Vec
    previous: Vec
    history: tuple[Vec, ...] = ()


@dataclass(frozen=True)
class Remembering(Algorithm[Twice, None]):
    """Keeps the same vector under several names, as rings of old models do."""

    local: Local = Local()

    def server(self, p: Problem) -> Twice:
        return Twice(w=p.w0, previous=p.w0)

    def round(self, s: Twice, cohort: Cohort) -> Twice:
        up = cohort.ask(self.train, Down(w=s.w))
        w = s.w + up.delta
        return Twice(w=w, previous=w, history=(*s.history, w)[-2:])

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        return Up(delta=site.train(self.local, down.w).delta), mine


def test_a_state_may_hold_a_vector_under_several_names(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        small_run(Remembering(), out=tmp_path / "run", on_round=crash_at(3))
    seen: list[Any] = []
    small_run(Remembering(), out=tmp_path / "run", on_round=lambda r: seen.append(r.round))
    assert seen == [4, 5]


@pytest.mark.parametrize("rounds", [5, 30])
def test_a_finished_run_is_read_not_run(rounds: int, tmp_path: Path) -> None:
    rate = 1e36 if rounds == 30 else 0.1  # diverges, or does not
    how: dict[str, Any] = {"out": tmp_path / "run", "rounds": rounds, "lr": rate}
    first = small_run("fedavg", **how)
    again = small_run("fedavg", **how, on_round=crash_at(1))
    assert again.fingerprint == first.fingerprint
    assert torch.equal(again.weights, first.weights) and again.weights.dtype == first.weights.dtype
    assert (again.status, again.diverged_at) == (first.status, first.diverged_at)
    assert again.summary() == first.summary()


X, Y = blobs(600)
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("scaffold", {}),
    ("fedavg:weights=uniform", {}),
    ("fedavg", {"seed": 1}),
    ("fedavg", {"rounds": 4}),
    ("fedavg", {"lr": 0.2}),
    ("fedavg", {"clients": fr.split(X, Y.index_fill(0, torch.tensor([17]), 3), "iid", clients=7)}),
    ("fedavg", {"dtype": "float64"}),
    ("fedavg", {"eval_every": 2}),
    ("fedavg", {"model": lambda: Net(8, 5)}),
    ("fedavg", {"clients": uneven_clients(7, seed=1)}),
    ("fedavg", {"clients": fr.split(X, Y, "iid", clients=7, seed=1)}),
    ("fedavg", {"per_round": 4}),
    ("fedavg", {"per_round": None, "participants": [[0], [1], [2], [3], [4]]}),
    ("fedavg", {"sampling": "cyclic"}),
    ("fedavg", {"test": blobs(200, seed=6)}),
    ("fedavg", {"loss": nn.functional.multi_margin_loss}),
    ("fedavg", {"metrics": {"worst": lambda output, target: output.min()}}),
]


@pytest.mark.parametrize(("name", "how"), OTHERS, ids=[f"{n} {list(h)}" for n, h in OTHERS])
def test_another_run_into_the_same_folder_is_refused(
    name: str, how: dict[str, Any], tmp_path: Path
) -> None:
    base: dict[str, Any] = {"out": tmp_path / "run"}
    if "clients" in how:
        base["clients"] = fr.split(X, Y, "iid", clients=7, seed=0)
    small_run("fedavg", **base)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").glob("*.*")}
    with pytest.raises(fr.InputError, match="another run"):
        small_run(name, **(base | how))
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").glob("*.*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_may_be_killed_at_any_time(workers: int, tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from fedrift.engine import recorder
from tests.support.problems import small_run
recorder.SHORTEST, recorder.SHARE = 0.0, 1.0
def slow(r):
    time.sleep(0.05)
    print(r.round, flush=True)
small_run("scaffold", rounds=40, out={str(tmp_path / "run")!r}, workers={workers}, on_round=slow)
"""
    for last in (3, 11, 24):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout is not None
        while int(process.stdout.readline() or last) < last:
            pass
        time.sleep(0.03)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    again = small_run("scaffold", rounds=40, out=tmp_path / "run")
    assert same(again, small_run("scaffold", rounds=40))
