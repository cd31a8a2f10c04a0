"""Runs one command and measures it from outside: wall time, and memory of all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PAUSE = 0.25  # seconds between two looks at the memory
SHARE = 0.02  # at most this part of one core's time is spent on looking
TICKS = os.sysconf("SC_CLK_TCK")
GRACE = 5.0  # seconds for what a command leaves behind to end by itself


@dataclass(frozen=True)
class Ran:
    """How a command went; `code` is None if it took too long."""

    launched: float
    seconds: float
    peak_bytes: int
    code: int | None
    said: str
    others: float = 0.0
    """Cores that other processes kept busy meanwhile, about."""


def busy_seconds() -> float:
    """Processor time that all processes of the machine have used so far."""
    first = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    user, nice, system, _idle, _waiting, interrupts, soft = map(int, first)
    return (user + nice + system + interrupts + soft) / TICKS


def run(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str], log: Path, limit: float
) -> Ran:
    """Run it to its end, or until the limit; nothing that it started survives it."""
    with log.open("wb") as output:
        launched, start, busy = time.time(), time.perf_counter(), busy_seconds()
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        looking = Look(process.pid)
        looking.thread.start()
        code: int | None = None
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
        finally:
            seconds = time.perf_counter() - start
            looking.stop()
            others = max(0.0, busy_seconds() - busy - sum(looking.used.values())) / seconds
            process.kill()
            process.wait()
            looking.clear_away(0.0 if code is None else GRACE)
    said = log.read_text(errors="replace")
    return Ran(launched, seconds, looking.peak, code, said, others)


@dataclass
class Look:
    """Adds up what a process and all its descendants hold, again and again."""

    root: int
    peak: int = 0
    seen: dict[int, str] = field(default_factory=dict[int, str])
    """Process id and start time of every descendant: together they name a process."""
    used: dict[int, float] = field(default_factory=dict[int, float])
    """Processor seconds of each, when it was last seen."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            start = time.thread_time()
            family = dict(descendants(self.root))
            self.seen |= family
            self.used |= {pid: spent for pid in family if (spent := processor_seconds(pid))}
            self.peak = max(self.peak, sum(held(pid) for pid in family))
            pause = max(PAUSE, (time.thread_time() - start) / SHARE)

    def stop(self) -> None:
        self._over.set()
        self.thread.join()

    def clear_away(self, grace: float) -> None:
        """End what is left of the family once the command itself is over."""
        until = time.monotonic() + grace
        left = self._left()
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = self._left()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        return [pid for pid, born in self.seen.items() if status(pid)[1:] == (born,)]


def status(pid: int) -> tuple[int, str] | tuple[()]:
    """Parent and start time of a living process; nothing of a dead one."""
    with suppress(OSError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if after_name[0] != "Z":
            return int(after_name[1]), after_name[19]
    return ()


def processor_seconds(pid: int) -> float:
    with suppress(OSError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / TICKS
    return 0.0


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """The process itself and all below it, with their start times."""
    children: dict[int, list[int]] = defaultdict(list)
    born: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := status(int(entry))):
            children[found[0]].append(int(entry))
            born[int(entry)] = found[1]
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in born:
            yield pid, born[pid]
        waiting += children[pid]


def held(pid: int) -> int:
    """Bytes of anonymous and shared memory; pages held by several count in part for each."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total
