"""What the parent of a pool keeps: runs, workers as it sees them, and jobs for them."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from fedrift.backends.watch import Pulse
from fedrift.backends.worker import OUT_OF_MEMORY
from fedrift.messages import Packed
from fedrift.shared import Block


@dataclass
class Known:
    """A run as the pool introduces it to workers."""

    name: str
    priority: int
    setup: Packed
    blocks: dict[str, Block]
    rows: dict[str, int]
    """Path → descriptor of the file with client states."""
    scratch: str
    exchange: int = 0
    ask: bytes = b""


@dataclass
class Peer:
    """A worker as the parent sees it."""

    process: BaseProcess
    pipe: Connection
    jobs: deque[Job] = field(default_factory=lambda: deque[Job]())
    slots: dict[str, Block] = field(default_factory=dict[str, Block])
    free: list[str] = field(default_factory=list[str])
    has: set[str] = field(default_factory=set[str])
    """Names of the blocks it holds."""
    knows: dict[str, int] = field(default_factory=dict[str, int])
    """Run → number of the exchange it was told about last."""
    pulse: Pulse = field(default_factory=Pulse)

    def lost(self) -> None:
        """It died: the slots of its unfinished visits hold nothing."""
        self.free += [
            job.task.slot for job in self.jobs if job.kind != "evaluate" and job.task.slot
        ]

    def is_read(self) -> bool:
        """No reply of its is waiting to be folded."""
        return len(self.free) == len(self.slots)

    def close(self) -> None:
        for block in self.slots.values():
            block.close()


@dataclass(order=True)
class Job:
    """One task for any worker; `answer` is called with the peer and what it said."""

    key: tuple[int, ...]
    run: Known = field(compare=False)
    kind: str = field(compare=False)
    task: Any = field(compare=False)
    answer: Callable[[Peer, Job, Any], None] = field(compare=False)
    deaths: int = field(default=0, compare=False)


def obituary(peer: Peer, deaths: int) -> str:
    """Why a run is given up after workers have died, `deaths` of them of one job."""
    code, job = peer.process.exitcode, peer.jobs[0] if peer.jobs else None
    why = f"exit code {code}"
    if peer.pulse.is_stalled:
        why = "it did not move any more and was ended"
    elif code in (-signal.SIGKILL, OUT_OF_MEMORY):
        why = "the machine is probably out of memory"
    doing, often = "no task", "several workers died in a row"
    if job is not None:
        client = getattr(job.task, "client", None)
        doing = "an evaluation" if client is None else f"the visit of client {client}"
        often = f"{job.deaths} workers died of it" if job.deaths > deaths else often
    return f"{often}: {doing}; the last: {why}; try fewer workers or a smaller batch"
