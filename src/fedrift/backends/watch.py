"""Finds workers that hang: no processor time although they have work, or far longer than usual."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TICK = 1.0  # seconds between two looks
STALLED = 60  # looks without any processor time before a worker is ended
PATIENCE = 600.0  # seconds that any job may take, besides…
USUAL = 50.0  # …so many times the longest so far


@dataclass
class Pulse:
    """What was last seen of a worker."""

    processor: float = -1.0
    quiet: int = 0
    """Looks in a row at which it had work and had not moved."""
    since: float = 0.0
    """When its present job was first seen."""
    is_stalled: bool = False


class Process(Protocol):
    @property
    def pid(self) -> int | None: ...
    def kill(self) -> None: ...


class Watched(Protocol):
    """A worker as far as it is watched."""

    pulse: Pulse

    @property
    def process(self) -> Process: ...
    @property
    def jobs(self) -> Sequence[object]: ...


class Watch:
    """Looks at workers from time to time. Looks are counted, not seconds: a program that was
    suspended as a whole finds its workers where it left them."""

    def __init__(self) -> None:
        self._next = time.monotonic() + TICK
        self._longest: float | None = None

    def answered(self, peer: Watched) -> None:
        """A job is done: how long jobs take is known a little better."""
        now, pulse = time.monotonic(), peer.pulse
        if pulse.since:
            self._longest = max(self._longest or 0.0, now - pulse.since)
        pulse.since, pulse.quiet = (now if peer.jobs else 0.0), 0

    def look(self, peers: Sequence[Watched]) -> None:
        """End what hangs; the pool then finds it dead and repeats its work elsewhere."""
        now = time.monotonic()
        if now < self._next:
            return
        slept, self._next = now - self._next > 10 * TICK, now + TICK
        for peer in peers:
            pulse = peer.pulse
            if not peer.jobs:
                peer.pulse = Pulse()
                continue
            if slept or not pulse.since:
                pulse.since = now
            used = processor_seconds(peer.process.pid)
            pulse.quiet = pulse.quiet + 1 if used is not None and used == pulse.processor else 0
            pulse.processor = -1.0 if used is None else used
            late = self._longest is not None and (
                now - pulse.since > PATIENCE + USUAL * self._longest
            )
            if pulse.quiet >= STALLED or late:
                pulse.is_stalled = True
                peer.process.kill()


def processor_seconds(pid: int | None) -> float | None:
    """Processor time of a process in clock ticks; None where that cannot be known."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return float(fields[11]) + float(fields[12])
    return None
