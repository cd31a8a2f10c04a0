"""The worker processes of one or several runs: who does what next, and what if one dies."""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from typing import Any

from fedrift.backends import context, hidden_main
from fedrift.backends.jobs import Job, Known, Peer, obituary
from fedrift.backends.watch import TICK, Watch
from fedrift.backends.worker import main, say
from fedrift.errors import RunError
from fedrift.messages import Packed
from fedrift.shared import Block

__all__ = ["Job", "Known", "Peer", "Pool"]

PARKED_IN_MEMORY = 64  # replies waiting for their turn beyond this many go to a scratch file
DEATHS = 3  # workers that may die of one job, or in a row without an answer, before giving up


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
        self._gone: list[Peer] = []
        self._shared: dict[tuple[Any, ...], tuple[Any, str, Packed]] = {}
        self._blocks: dict[str, Block] = {}
        self._failure: BaseException | None = None
        self._is_closing = False
        self._watch = Watch()
        self._wake, self._woken = os.pipe()
        self.peers = [self._start() for _ in range(workers)]
        self._thread = threading.Thread(target=self._serve, daemon=True, name="fedrift pool")
        self._thread.start()

    def _start(self) -> Peer:
        ours, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(target=main, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        with hidden_main():
            process.start()
        theirs.close()
        return Peer(process, ours)

    def share(self, name: str, tree: Any, packed: Packed) -> tuple[str, Packed]:
        """Put data into shared memory once, however many runs use them."""
        key = tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in packed.values())
        held = self._shared.get(key)
        if held is None:
            block_name = f"data {len(self._shared)}"
            block = self._blocks[block_name] = Block()
            held = self._shared[key] = (tree, block_name, block.put(packed))
        _, block_name, where = held
        renamed = {f"{name}{p.removeprefix(_root(p))}": v for p, v in where.items()}
        return block_name, renamed

    def number(self) -> int:
        """A number that was not given out before."""
        return next(self._count)

    def submit(self, jobs: list[Job]) -> None:
        """Queue jobs; returns at once."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
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

    def _give(self, peer: Peer, job: Job) -> bool:
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

    def _introduce(self, peer: Peer, run: Known) -> None:
        for name, block in (self._blocks | run.blocks).items():
            if name not in peer.has:
                self._send_block(peer, name, block)
        say(peer.pipe, "run", (run.name, run.setup))
        for path, descriptor in run.rows.items():
            say(peer.pipe, "rows", (run.name, path))
            send_handle(peer.pipe, descriptor, peer.process.pid)
        peer.knows[run.name] = 0

    @staticmethod
    def _send_block(peer: Peer, name: str, block: Block) -> None:
        say(peer.pipe, "attach", name)
        send_handle(peer.pipe, block.descriptor, peer.process.pid)
        peer.has.add(name)

    def _slot(self, peer: Peer, run: Known) -> str:
        if not peer.free:
            folder = None if len(peer.slots) < PARKED_IN_MEMORY else run.scratch
            name, block = f"slot {len(peer.slots)}", Block(folder=folder)
            peer.slots[name] = block
            self._send_block(peer, name, block)
            return name
        return peer.free.pop()

    def _hear(self, peer: Peer) -> None:
        try:
            kind, content = pickle.loads(peer.pipe.recv_bytes())  # from our own worker
        except (EOFError, OSError):
            with self._lock:
                self._replace(peer)
            return
        if kind == "error":
            content = RunError(f"a client method failed: {content[0]}\n{content[1]}")
        with self._lock:
            job = peer.jobs.popleft()
            self._deaths = 0
            self._watch.answered(peer)
            self._feed()
        job.answer(peer, job, content)

    def _replace(self, peer: Peer) -> None:
        """A worker died: its jobs go to others, a new one takes its place."""
        if peer not in self.peers or self._is_closing:
            return
        self._deaths += 1
        peer.process.join(timeout=1)
        if peer.jobs:
            peer.jobs[0].deaths += 1
        if self._deaths > DEATHS + len(self.peers) or (peer.jobs and peer.jobs[0].deaths > DEATHS):
            raise RunError(obituary(peer, DEATHS))
        self.peers[self.peers.index(peer)] = self._start()
        peer.lost()
        self._gone.append(peer)  # its parked replies may still be read
        for old in [old for old in self._gone if old.is_read()]:
            self._gone.remove(old)
            old.close()
        for job in peer.jobs:
            heapq.heappush(self._queue, job)
        peer.jobs.clear()

    def forget(self, run: Known) -> None:
        """Drop a finished run everywhere."""
        with self._lock:
            self._queue = [job for job in self._queue if job.run is not run]
            heapq.heapify(self._queue)
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
