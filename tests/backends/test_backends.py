"""Backends: the same bits in this process, over the wire and in workers; workers that fail."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.backends import start_method
from tests.support.problems import Net, blobs, small_run
from tests.support.product import Pool

PLACES: list[dict[str, Any]] = [{"workers": 2}, {"workers": 1}, {"backend": "wire"}]
ALGORITHMS = ["fedsgd", "fedavg", "scaffold"]


@pytest.fixture
def earlier() -> set[Any]:
    """Processes that a test must not be blamed for."""
    return set(multiprocessing.active_children())


def same(one: fr.Result, other: fr.Result) -> bool:
    assert one.fingerprint == other.fingerprint
    assert one.ledger.entries == other.ledger.entries
    return torch.equal(one.weights, other.weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bits_everywhere(name: str, dtype: str) -> None:
    how: dict[str, Any] = {"dtype": dtype, "rounds": 3, "per_round": 5}
    here = small_run(name, **how)
    for place in PLACES if dtype == "float32" else PLACES[:1]:
        assert same(here, small_run(name, **how, **place)), place


def test_images_metrics_and_augmentation_are_the_same_in_workers() -> None:
    x = blobs(96)[0].reshape(12, 1, 8, 8)
    clients = [(x[i::3], torch.arange(4)) for i in range(3)]
    how: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 4)),
        "clients": clients,
        "test": (x, torch.arange(12) % 4),
        "metrics": {"largest": lambda output, target: output.max()},
        "augment": ["crop:1", "flip", "mixup:alpha=1"],
        "rounds": 2,
    }
    runs = [small_run("fedavg", **how, workers=n) for n in (0, 2)]
    assert same(*runs) and "largest" in runs[0].metrics[0]


def test_local_classes_and_lambdas_reach_workers() -> None:
    width = 5

    class Here(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y) * width

    for model in (Here, lambda: Here(), Here()):
        how: dict[str, Any] = {"model": model, "loss": loss, "rounds": 2}
        assert same(small_run("scaffold", **how), small_run("scaffold", **how, workers=2))


def test_what_cannot_be_sent_is_named(earlier: set[Any]) -> None:
    lock = threading.Lock()
    with pytest.raises(fr.InputError, match=r"model.*lock.*workers=0"):
        small_run("fedavg", model=lambda: lock and Net(), workers=2)
    assert set(multiprocessing.active_children()) <= earlier


def test_what_cannot_be_sent_writes_nothing(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(fr.InputError, match="workers=0"):
        small_run("fedavg", model=lambda: lock and Net(), workers=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_client_method_is_told(workers: int, earlier: set[Any]) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(y) > 2:
            raise ZeroDivisionError("no luck today")
        return nn.functional.cross_entropy(output, y)

    kinds = (fr.RunError,) if workers else (fr.RunError, ZeroDivisionError)
    with pytest.raises(kinds, match="no luck today"):
        small_run("fedavg", loss=loss, workers=workers)
    assert set(multiprocessing.active_children()) <= earlier


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_worker_outlives_its_run(earlier: set[Any]) -> None:
    pids: set[int] = set()

    def note(r: fr.RoundReport) -> None:
        mine = set(multiprocessing.active_children()) - earlier
        pids.update(p.pid for p in mine if p.pid)

    small_run("fedavg", workers=2, on_round=note)
    assert len(pids) == 2, "started once per run, not per round"
    assert set(multiprocessing.active_children()) <= earlier
    assert not any(map(running, pids))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_killed_worker_is_replaced_and_nobody_notices(name: str, earlier: set[Any]) -> None:
    def kill(r: fr.RoundReport) -> None:
        if r.round in (1, 3):
            pid = (set(multiprocessing.active_children()) - earlier).pop().pid or 0
            os.kill(pid, signal.SIGKILL)
            while running(pid) and r.round == 1:  # idle and found dead, or dying under way
                time.sleep(0.01)

    assert same(small_run(name, workers=2, on_round=kill), small_run(name))


@pytest.mark.timeout(20)
def test_a_worker_killed_at_work_is_replaced(tmp_path: Path) -> None:
    parent, mark = os.getpid(), tmp_path / "mark"

    def loss(output: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != parent:
            with suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(output, y)

    assert same(small_run("scaffold", loss=loss, workers=2), small_run("scaffold", loss=loss))
    assert mark.exists()


@pytest.mark.timeout(8)
def test_a_worker_that_dies_while_it_is_told_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    introduce, tries = Pool._introduce, [1]

    def dying(self: Pool, peer: Any, run: Any) -> None:
        if tries:
            tries.pop()
            peer.process.kill()
            peer.process.join()
            raise BrokenPipeError("the worker died just now")
        introduce(self, peer, run)

    monkeypatch.setattr(Pool, "_introduce", dying)
    how: dict[str, Any] = {"rounds": 2, "per_round": 1}
    assert same(small_run("fedavg", workers=1, **how), small_run("fedavg", **how))


@pytest.mark.timeout(20)
def test_workers_that_always_die_end_the_run(earlier: set[Any]) -> None:
    parent = os.getpid()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != parent:
            os._exit(3)
        return nn.functional.cross_entropy(output, y)

    with pytest.raises(fr.RunError, match=r"workers died.*visit of client \d+.*exit code 3"):
        small_run("fedavg", loss=loss, workers=2)
    assert set(multiprocessing.active_children()) <= earlier


@pytest.mark.timeout(5)
@pytest.mark.parametrize("workers", [-1, True, 2.5, "many", None])
def test_a_number_of_workers_is_checked(workers: Any, tmp_path: Path) -> None:
    with pytest.raises(fr.InputError, match="workers"):
        small_run("fedavg", workers=workers, out=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "bad input writes nothing"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(fr.InputError, match="backend"):
        small_run("fedavg", backend="procesess")


SCRIPT = """
import torch, fedrift as fr
print("started", flush=True)
class Mine(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)
x = torch.sin(torch.arange(480.0)).reshape(60, 8)
clients = [(x[i::3], torch.arange(20) % 4) for i in range(3)]
r = fr.run("scaffold", model=Mine, clients=clients, rounds=2, workers=2, test=clients[0])
print(r.fingerprint)
assert r.fingerprint == fr.run("scaffold", model=Mine, clients=clients, rounds=2, workers=0,
                               test=clients[0]).fingerprint
"""


def interpreted(*arguments: str, text: str = "", start: str = "forkserver") -> list[str]:
    environment = {**os.environ, "FEDRIFT_START": start}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "env": environment}
    done = subprocess.run([sys.executable, *arguments], input=text, check=False, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_script_needs_no_guard_and_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = interpreted(str(script))
    assert said[0] == "started" and said.count("started") == 1


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.parametrize("way", ["script", "-c", "stdin"])
def test_workers_start_from_anywhere(way: str, start: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"script": [str(script)], "-c": ["-c", SCRIPT], "stdin": ["-"]}[way]
    text = SCRIPT if way == "stdin" else ""
    said = interpreted(*arguments, text=text, start=start)
    assert said.count("started") == 1 and len(said) == 2


def test_the_start_method_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRIFT_START", "spawn")
    assert start_method() == "spawn"
    monkeypatch.setenv("FEDRIFT_START", "fork")  # unsafe with threads: never
    assert start_method() == "forkserver"


# Imports, which make no garbage.

IMPORTED = """
import gc
from fedrift.backends import importing
with importing():
    assert not gc.isenabled()
    import torch
frozen = gc.get_freeze_count()
assert gc.isenabled() and frozen > 10_000
kept = [[] for _ in range(1000)]
with importing():  # nothing is left to import: what others made stays theirs
    assert gc.isenabled()
assert gc.get_freeze_count() == frozen
"""
WORKER = (
    "import gc, sys; print('torch' in sys.modules, gc.isenabled(), gc.get_freeze_count() > 10_000)"
)
STARTED = f"""
from fedrift.backends import context, hidden_main
child = context().Process(target=exec, args=({WORKER!r},))
with hidden_main():
    child.start()
child.join()
"""


def test_while_torch_is_imported_nobody_looks_for_garbage_and_later_somebody_does() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED], check=True)


def test_workers_find_torch_imported_and_look_for_their_own_garbage() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], check=True, capture_output=True)
    assert done.stdout.split() == [b"True", b"True", b"True"]


FREED = """
import resource
import numpy as np
from fedrift.backends import keep_freed_memory
keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [np.ones(1_000_000, np.float32) for _ in range(3)]
    del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults() + faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives pages back so soon")
def test_memory_that_was_freed_is_used_again_without_asking_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True)
    assert int(done.stdout) < 100
