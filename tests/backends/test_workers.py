"""Workers that hang, run out of memory or die often; what is left behind after Ctrl-C and kills."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.backends import pool
from tests.support.problems import small_run
from tests.support.segments import orphaned, present

PARENT = os.getpid()


class Troubled:
    """A loss with which some worker gets into trouble, a given number of times in all."""

    def __init__(self, folder: Path, trouble: str, times: int) -> None:
        self.folder, self.trouble, self.times, self.parent = folder, trouble, times, os.getpid()

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        for i in range(self.times if os.getpid() != self.parent else 0):
            with suppress(FileExistsError):
                (self.folder / str(i)).touch(exist_ok=False)
                self.happens()
        return nn.functional.cross_entropy(output, y)

    def happens(self) -> None:
        if self.trouble == "memory":
            torch.empty(1 << 60, dtype=torch.uint8)
        if self.trouble == "sleep":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGSTOP if self.trouble == "stop" else signal.SIGKILL)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("trouble", ["stop", "sleep", "memory"])
def test_trouble_is_repeated_elsewhere_with_the_same_bits(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TICK", 0.2)
    monkeypatch.setattr(pool, "STALLED", 10)
    loss = Troubled(tmp_path, trouble, 1)
    fine = small_run("scaffold", rounds=2, loss=loss)
    again = small_run("scaffold", rounds=2, loss=loss, workers=2)
    assert (tmp_path / "0").exists() and again.fingerprint == fine.fingerprint


@pytest.mark.timeout(60)
def test_deaths_now_and_then_do_not_add_up(tmp_path: Path) -> None:
    """Each is another visit's: a long run outlives more than a few of them."""
    loss = Troubled(tmp_path, "kill", 1)

    def again(r: fr.RoundReport) -> None:
        (tmp_path / "0").unlink(missing_ok=True)

    how: dict[str, Any] = {"rounds": 7, "per_round": 1, "loss": loss}
    died = small_run("fedavg", workers=1, **how, on_round=again)
    assert died.fingerprint == small_run("fedavg", **how).fingerprint


@pytest.mark.timeout(60)
def test_a_visit_that_always_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TICK", 0.1)
    monkeypatch.setattr(pool, "STALLED", 5)
    before = set(multiprocessing.active_children())
    loss = Troubled(tmp_path, "stop", 99)
    with pytest.raises(fr.RunError, match=r"visit of client \d+.*did not move"):
        small_run("fedavg", loss=loss, workers=1)
    assert set(multiprocessing.active_children()) <= before


def test_processor_time_is_known_here() -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc")
    start = pool.processor_seconds(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert start is not None and (pool.processor_seconds(os.getpid()) or 0) > start
    assert pool.processor_seconds(2**30) is None


def family(session: int) -> list[int]:
    """Processes of a session that are still there."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def gone(session: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while family(session) and time.monotonic() < end:
        time.sleep(0.1)
    return not family(session)


COMMAND = [sys.executable, "-m", "fedrift", "run", "scaffold", "--rounds", "100000", "--workers"]


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc").exists(),
    reason="looks for processes left behind in /proc, which only Linux has",
)
@pytest.mark.parametrize("delay", [0.8, 1.5, 2.5, 4.0, 8.0])
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_behind(delay: float, kind: signal.Signals, tmp_path: Path) -> None:
    """Whenever it is interrupted, and however: no process, no shared memory, no traceback."""
    shared = present()
    command = [*COMMAND, "2", "--out", str(tmp_path / "run")]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, start_new_session=True, text=True, **how) as process:
        time.sleep(delay)
        if kind == signal.SIGINT:
            os.killpg(process.pid, kind)  # as a terminal does
        else:
            os.kill(process.pid, kind)
        try:
            said = process.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # or it would go on for ever
            raise
    assert gone(process.pid)
    assert "Traceback" not in said
    assert not orphaned(shared)


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory is no file here")
def test_segments_of_others_are_told_from_those_left_behind() -> None:
    before, path = present(), Path("/dev/shm") / f"fedrift-test-{os.getpid()}"
    try:
        with path.open("wb"):
            assert path.name not in orphaned(before)
        assert path.name in orphaned(before) and path.name not in orphaned(present())
    finally:
        path.unlink()


def test_who_starts_workers_may_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing's fork server has ended: the next try makes another."""
    from multiprocessing.process import BaseProcess

    start, failures = BaseProcess.start, [EOFError("unexpected EOF")] * 2

    def failing(process: Any) -> None:
        if failures:
            raise failures.pop()
        start(process)

    monkeypatch.setattr(BaseProcess, "start", failing)
    assert small_run("fedavg", rounds=1, workers=1).status == "done"
    failures += [EOFError("unexpected EOF")] * 3
    with pytest.raises(fr.RunError, match="no worker could be started"):
        small_run("fedavg", rounds=1, workers=1)
