"""Worker processes of one or several runs: who does what next, and what if one dies or hangs."""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Protocol

from fedrift.backends import context, hidden_main
from fedrift.backends.worker import OUT_OF_MEMORY, main, say
from fedrift.core.messages import Packed
from fedrift.errors import RunError
from fedrift.storage.shared_memory import Base, Block

# Finds workers that hang: no processor time although they have work, or far longer than usual.

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


# What the parent of a pool keeps: runs, workers as it sees them, and jobs for them.


@dataclass
class RunInfo:
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
    deaths: int = 0
    """Workers that died of its jobs in a row, without an answer to any of them."""
    failure: BaseException | None = None
    """Why nothing of it is done any more."""


@dataclass
class WorkerHandle:
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
    run: RunInfo = field(compare=False)
    kind: str = field(compare=False)
    task: Any = field(compare=False)
    answer: Callable[[WorkerHandle, Job, Any], None] = field(compare=False)
    deaths: int = field(default=0, compare=False)


def death_reason(peer: WorkerHandle, deaths: int) -> str:
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


PARKED_IN_MEMORY = 64  # replies waiting for their turn beyond this many go to a scratch file
DEATHS = 3  # workers that may die of one job, or in a row without an answer, before giving up
STARTS = 3  # tries to start one worker


class Pool:
    """One single-threaded worker per core; a thread hands out jobs and hears the answers.

    Jobs of an earlier run come first and those of later ones fill what it leaves idle, so the
    cores are busy to the end, and results do not depend on who did what.
    """

    def __init__(self, workers: int, method: str | None = None) -> None:
        self.workers = workers
        self._context = context(method)
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._queue: list[Job] = []
        self._deaths = 0
        self._gone: list[WorkerHandle] = []
        self._sharing = threading.Lock()
        self._shared: dict[tuple[Any, ...], tuple[Any, str, Packed]] = {}
        self._blocks: dict[str, Block] = {}
        self._failure: BaseException | None = None
        self._is_closing = False
        self._watch = Watch()
        self._wake, self._woken = os.pipe()
        self.peers = [self._start() for _ in range(workers)]
        self._thread = threading.Thread(target=self._serve, daemon=True, name="fedrift pool")
        self._thread.start()

    def _start(self) -> WorkerHandle:
        ours, theirs = self._context.Pipe(duplex=True)
        for left in reversed(range(STARTS)):
            process = self._context.Process(target=main, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
            try:
                with hidden_main():
                    process.start()
                break
            except EOFError:  # whoever starts workers was killed; the next start has another
                if not left:
                    raise RunError("no worker could be started; try again") from None
        theirs.close()
        return WorkerHandle(process, ours)  # type: ignore[reportPossiblyUnbound]

    def share(
        self, name: str, tree: Any, packed: Packed, base: Base | None = None
    ) -> tuple[str, Packed]:
        """Put data into shared memory once, however many runs use them; what is a base stands
        there already."""
        key = tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in packed.values())
        with self._sharing:  # runs of a comparison begin in threads of their own
            held = self._shared.get(key)
            if held is None:
                block_name = f"data {len(self._shared)}"
                if base is None:
                    block = Block()
                    where = block.put(packed)
                else:
                    block = Block(os.dup(base.block.descriptor))
                    where = {f"{name}.{path}": ref for path, ref in base.where.items()}
                held = self._shared[key] = (tree, block_name, where)
                self._blocks[block_name] = block  # filled: it may be sent to workers at once
        _, block_name, where = held
        renamed = {f"{name}{p.removeprefix(_root(p))}": v for p, v in where.items()}
        return block_name, renamed

    def number(self) -> int:
        """A number that was not given out before."""
        return next(self._count)

    def submit(self, jobs: list[Job]) -> None:
        """Queue jobs; returns at once."""
        with self._lock:
            for failure in (self._failure, *(job.run.failure for job in jobs)):
                if failure is not None:
                    raise failure
            for job in jobs:
                heapq.heappush(self._queue, job)
        self._nudge()

    def _nudge(self) -> None:
        os.write(self._woken, b"x")

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                with self._lock:
                    self._feed()
                pipes = [self._wake, *(peer.pipe for peer in self.peers)]
                ready = wait(pipes, timeout=TICK)
                self._watch.look(self.peers)
                if self._wake in ready:
                    os.read(self._wake, 4096)
                for peer in [p for p in self.peers if p.pipe in ready]:
                    self._hear(peer)
        except BaseException as error:
            self._fail(error)

    def stop(self, reason: BaseException) -> None:
        """Answer every job that is waiting or under way with a reason to give up."""
        self._fail(reason)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
            jobs = [*self._queue, *(job for peer in self.peers for job in peer.jobs)]
            self._queue.clear()
        for job in jobs:
            job.answer(self.peers[0], job, error)

    def _feed(self) -> None:
        """Keep every worker busy, and one job ahead while there are plenty."""
        for depth in (1, 2):
            for peer in list(self.peers):
                if len(peer.jobs) < depth and self._queue:
                    if depth == 2 and len(self._queue) <= len(self.peers):
                        return
                    if not self._give(peer, heapq.heappop(self._queue)):
                        return self._feed()  # another worker has taken its place

    def _give(self, peer: WorkerHandle, job: Job) -> bool:
        """False if the worker turned out to be dead and was replaced."""
        run = job.run
        peer.jobs.append(job)
        try:
            if run.name not in peer.knows:
                self._introduce(peer, run)
            task = job.task
            if job.kind != "evaluate":
                if peer.knows[run.name] != run.exchange:
                    say(peer.pipe, "ask", (run.name, run.ask))
                    peer.knows[run.name] = run.exchange
                task = job.task = replace(task, slot=self._slot(peer, run))
            say(peer.pipe, job.kind, (run.name, task))
        except OSError:
            self._replace(peer)
            return False
        return True

    def _introduce(self, peer: WorkerHandle, run: RunInfo) -> None:
        for name, block in (self._blocks | run.blocks).items():
            if name not in peer.has:
                self._send_block(peer, name, block)
        say(peer.pipe, "run", (run.name, run.setup))
        for path, descriptor in run.rows.items():
            say(peer.pipe, "rows", (run.name, path))
            send_handle(peer.pipe, descriptor, peer.process.pid)
        peer.knows[run.name] = 0

    @staticmethod
    def _send_block(peer: WorkerHandle, name: str, block: Block) -> None:
        say(peer.pipe, "attach", name)
        send_handle(peer.pipe, block.descriptor, peer.process.pid)
        peer.has.add(name)

    def _slot(self, peer: WorkerHandle, run: RunInfo) -> str:
        if not peer.free:
            folder = None if len(peer.slots) < PARKED_IN_MEMORY else run.scratch
            name, block = f"slot {len(peer.slots)}", Block(folder=folder)
            peer.slots[name] = block
            self._send_block(peer, name, block)
            return name
        return peer.free.pop()

    def _hear(self, peer: WorkerHandle) -> None:
        try:
            kind, content = pickle.loads(peer.pipe.recv_bytes())  # from our own worker
        except (EOFError, OSError):
            with self._lock:
                self._replace(peer)
            return
        if kind == "error":
            content = content.error()
        with self._lock:
            job = peer.jobs.popleft()
            self._deaths = job.run.deaths = 0
            self._watch.answered(peer)
            is_awaited = job.run.failure is None
            if job.kind != "evaluate" and (kind == "error" or not is_awaited):
                peer.free.append(job.task.slot)  # nobody will read it
            self._feed()
        if is_awaited:
            job.answer(peer, job, content)

    def _replace(self, peer: WorkerHandle) -> None:
        """A worker died: its jobs go to others, a new one takes its place."""
        if peer not in self.peers or self._is_closing:
            return
        peer.process.join(timeout=1)
        self._count_death(peer)
        self.peers[self.peers.index(peer)] = self._start()
        peer.lost()
        self._gone.append(peer)  # its parked replies may still be read
        for old in [old for old in self._gone if old.is_read()]:
            self._gone.remove(old)
            old.close()
        for job in peer.jobs:
            if job.run.failure is None:
                heapq.heappush(self._queue, job)
        peer.jobs.clear()

    def _count_death(self, peer: WorkerHandle) -> None:
        """Gives up the run of whose job too many died; all runs, if workers die without one."""
        if not peer.jobs:
            self._deaths += 1
            if self._deaths > DEATHS + len(self.peers):
                raise RunError(death_reason(peer, DEATHS))
            return
        job = peer.jobs[0]
        if job.run.failure is not None:
            return
        job.deaths, job.run.deaths = job.deaths + 1, job.run.deaths + 1
        if job.deaths > DEATHS or job.run.deaths > DEATHS + len(self.peers):
            self._give_up(job.run, RunError(death_reason(peer, DEATHS)))

    def _give_up(self, run: RunInfo, why: BaseException) -> None:
        """Answer all jobs of one run with the reason; the others go on."""
        run.failure = why
        theirs = [job for job in self._queue if job.run is run]
        self._drop(run)
        for peer in self.peers:
            theirs += [job for job in peer.jobs if job.run is run]
        for job in theirs:
            job.answer(self.peers[0], job, why)

    def _drop(self, run: RunInfo) -> None:
        self._queue = [job for job in self._queue if job.run is not run]
        heapq.heapify(self._queue)

    def forget(self, run: RunInfo) -> None:
        """Drop a finished run everywhere."""
        with self._lock:
            run.failure = run.failure or RunError(f"{run.name} is over")
            self._drop(run)
            for peer in self.peers:
                if peer.knows.pop(run.name, None) is not None:
                    with suppress(OSError):
                        say(peer.pipe, "forget", run.name)
                peer.has -= set(run.blocks)
        for block in run.blocks.values():
            block.close()

    def close(self) -> None:
        """End the workers; a busy one is not waited for."""
        self._is_closing = True
        self._nudge()
        self._thread.join(timeout=5)
        for peer in self.peers:
            with suppress(OSError):
                say(peer.pipe, "stop", None)
            peer.pipe.close()
        for peer in self.peers:
            if peer.jobs:
                peer.process.kill()  # at once, also one that is stopped
            peer.process.join(timeout=2)
            if peer.process.is_alive():
                peer.process.kill()
                peer.process.join()
        for peer in (*self.peers, *self._gone):
            peer.close()
        for block in self._blocks.values():
            block.close()
        os.close(self._wake)
        os.close(self._woken)


def _root(path: str) -> str:
    return path.partition(".")[0]
