"""The processes of a run: who they are, what memory and files they hold, whether any is left.

They are known by a mark in their environment, which children inherit: a process whose parent was
killed is found as well. Linux only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.segments import orphaned, present

MARK = "FEDRIFT_FAMILY"
SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class Held:
    """What a family holds at one moment."""

    seconds: float
    memory: int
    """Bytes, anonymous and shared, each page once."""
    files: int
    """Open descriptors of all processes."""
    processes: int


@dataclass
class Family:
    """A command of fedrift and every process that comes of it."""

    words: Sequence[str]
    scratch: Path
    """Its folder for temporary files; nothing must be left in it."""
    said: IO[bytes] | int = subprocess.DEVNULL
    program: Sequence[str] = ("-m", "fedrift")
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._shared = present()
        own = {MARK: self.mark, "TMPDIR": str(self.scratch), "PYTHONPATH": str(SOURCE)}
        self.main = subprocess.Popen(
            [sys.executable, *self.program, *self.words],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=self.said,
            start_new_session=True,  # Ctrl-C reaches all of it, as from a terminal
        )
        self.since = time.perf_counter()

    def pids(self) -> list[int]:
        """Its living processes."""
        wanted, found = f"{MARK}={self.mark}".encode(), list[int]()
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and wanted in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
        return found

    def held(self) -> Held:
        pids, memory, files = self.pids(), 0, 0
        segments: dict[tuple[int, int], int] = {}
        for pid in pids:
            memory += _of_rollup(pid)
            for name in _descriptors(pid):
                files += 1
                with suppress(OSError):
                    if os.readlink(name).startswith("/memfd:"):
                        there = os.stat(name)
                        segments[there.st_dev, there.st_ino] = there.st_blocks * 512
        memory += sum(segments.values())
        return Held(time.perf_counter() - self.since, memory, files, len(pids))

    def interrupt(self) -> None:
        """As Ctrl-C in a terminal: every process of it is told."""
        os.killpg(self.main.pid, signal.SIGINT)

    def kill(self) -> None:
        """The main process alone, without a chance to say anything."""
        self.main.kill()

    def ended(self, within: float = 60.0) -> tuple[int, str]:
        """Exit code and standard output, once the main process has ended."""
        out, _ = self.main.communicate(timeout=within)
        return self.main.returncode, out.decode()

    def left(self, within: float = 15.0) -> list[str]:
        """What is left of it some seconds after its end: processes, segments, files."""
        until = time.monotonic() + within
        while True:
            found = [f"process {pid}" for pid in self.pids()]
            found += [f"segment {name}" for name in orphaned(self._shared)]
            found += [f"file {path}" for path in self.scratch.iterdir()]
            if not found or time.monotonic() > until:
                return found
            time.sleep(0.1)


def _of_rollup(pid: int) -> int:
    """Anonymous bytes of a process; a page that processes share counts in parts for each."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(kilo) * 1024 for kilo in re.findall(r"^Pss_Anon: +(\d+) kB", text, re.M))
    return 0


def _descriptors(pid: int) -> list[str]:
    with suppress(OSError):
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return []
