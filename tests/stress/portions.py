"""Long suites in portions: processes side by side, each telling a line of JSON for every case."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
Line = dict[str, Any]
T = TypeVar("T")
_living: set[subprocess.Popen[str]] = set()


@dataclass
class Progress:
    """A line about how far it is, again and again; in a terminal always the same one."""

    begun: float = field(default_factory=time.monotonic)
    shown: float = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, text: str) -> None:
        now, is_terminal = time.monotonic(), sys.stdout.isatty()
        if now - self.shown >= (1.0 if is_terminal else 20.0):
            self.shown = now
            end = "\r" if is_terminal else "\n"
            print(f"{text}, {self.seconds:.0f} s ", end=end, flush=True)


def told(
    command: Sequence[str], environment: Mapping[str, str], take: Callable[[Line], None]
) -> tuple[int, str]:
    """Runs a process and takes its lines as they come: its exit code and what it complained of."""
    with subprocess.Popen(
        list(command),
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        _living.add(process)
        complained: list[str] = []
        errors = process.stderr
        listening = threading.Thread(target=lambda: complained.append(errors.read()), daemon=True)
        listening.start()
        try:
            for line in process.stdout:
                take(json.loads(line))
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.send_signal(signal.SIGTERM)
        code = process.wait()
        _living.discard(process)
        listening.join(timeout=5)
    return code, "".join(complained)


def side_by_side(jobs: int, work: Iterable[T], do: Callable[[T], bool]) -> None:
    """`do` one after another, `jobs` at a time, until one says that it is enough. If a signal ends
    it, the processes under way are ended too."""
    waiting = queue.SimpleQueue[T]()
    for one in work:
        waiting.put(one)
    enough = threading.Event()

    def take() -> None:
        while not enough.is_set():
            try:
                one = waiting.get_nowait()
            except queue.Empty:
                return
            if not do(one):
                enough.set()

    threads = [threading.Thread(target=take) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        enough.set()
        for process in list(_living):
            process.send_signal(signal.SIGTERM)
        raise
