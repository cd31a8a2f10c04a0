"""One run on a pool of workers: longest client first, replies folded in client-id order."""

from __future__ import annotations

import pickle
import queue
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import torch

from fedrift.backends.backend import Cost, Fold, RunParts
from fedrift.backends.pool import Job, Pool, RunInfo, WorkerHandle
from fedrift.backends.profiling import OFF, Meter
from fedrift.backends.visit import Visitor
from fedrift.backends.worker_messages import (
    OWN,
    Evaluation,
    Shared,
    Visit,
    Visits,
    asked,
    described,
    each_size,
    packed_model,
    reply_from,
    unbundled,
    with_paths,
)
from fedrift.config.backends import MOST_WORKERS
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Chunk, Evaluator
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import Packed
from fedrift.data.split import Split
from fedrift.errors import InputError
from fedrift.storage.client_state import Store, Table
from fedrift.storage.shared_memory import Base, Block, tree_to_packed

SHOWN = 6  # models that may be under evaluation at once
JOBS = 4  # evaluation jobs per worker: few messages, and little to wait for at the end
LIGHT = 1 << 15  # parameters of a model whose chunks take less time than a message: one job each

Answer = tuple[WorkerHandle, Job, Any]


@dataclass
class Evaluating:
    """An evaluation whose chunks are spread over the workers."""

    total: int
    meter: Meter = OFF
    answers: queue.SimpleQueue[Answer] = field(default_factory=lambda: queue.SimpleQueue[Answer]())

    def chunks(self) -> list[Chunk]:
        parts: dict[int, Chunk] = {}
        while len(parts) < self.total:
            with self.meter.span("wait"):
                _, job, content = self.answers.get()
            if isinstance(content, BaseException):
                raise content
            measured, seconds = content
            self.meter.add({"evaluate": seconds})
            parts.update(zip(job.task.chunks, measured, strict=True))
        return [parts[i] for i in range(self.total)]


class Processes:
    """Visits as jobs of a pool. `down` is written once, data are shared, rows are files."""

    def __init__(
        self,
        visitor: Visitor,
        store: Store,
        evaluator: Evaluator | None,
        pool: Pool,
        cost: Cost,
        owns_pool: bool = True,
        meter: Meter = OFF,
    ) -> None:
        if not isinstance(visitor.clients, Split):
            raise InputError("workers: this kind of client data cannot be shared; use workers=0")
        self.workers, self._pool, self._owns_pool = pool.workers, pool, owns_pool
        self._visitor, self._store, self._cost, self._meter = visitor, store, cost, meter
        self._sizes = visitor.clients.sizes
        self._chunks = len(evaluator) if evaluator is not None else 0
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        number = pool.number()
        name = f"run {number}"
        self._shown = [f"{name} evaluation {i}" for i in range(SHOWN)]
        self._evaluations = 0
        kinds = [f"{name} {kind}" for kind in ("setup", "split", "down")]
        blocks = {kind: Block() for kind in (*kinds, *self._shown)}
        self._down = blocks[f"{name} down"]
        setup, trees = described(visitor, visitor.clients, evaluator)
        indices = [n for n in ("parts", "ends", *OWN) if n in trees]
        own = blocks[f"{name} split"].put({n: trees.pop(n) for n in indices})
        base = visitor.problem.base
        held = {"base": base} if isinstance(base, Base) else {}
        where = {
            n: pool.share(n, tree, tree_to_packed(tree, n), held.get(n))
            for n, tree in trees.items()
        }
        where |= {n: (f"{name} split", {n: place}) for n, place in own.items()}
        layouts = {path: table.rows.layout for path, table in store.tables.items()}
        blob = with_paths((setup, Shared(where, layouts)))
        told = torch.from_numpy(np.frombuffer(blob, np.uint8).copy())
        self._run = RunInfo(
            name=name,
            priority=number,
            setup=blocks[f"{name} setup"].put({"setup": told}),
            blocks=blocks,
            rows={path: table.rows.descriptor for path, table in store.tables.items()},
            scratch=store.scratch,
        )

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold = Fold(exchange)
        table = self._store.tables.get(self._visitor.state_path(exchange.phase))
        waiting, parked = deque(sorted(clients)), dict[int, Answer]()
        with self._meter.span("send"):
            self._pool.submit(self._visits(exchange, clients, table))
        while waiting:
            with self._meter.span("wait"):
                peer, job, content = self._answers.get()
            if isinstance(content, BaseException):
                raise content
            parked[job.task.client] = (peer, job, content)
            while waiting and waiting[0] in parked:
                with self._meter.span("fold"):
                    for _ in self._fold(fold, exchange, table, *parked.pop(waiting[0])):
                        waiting.popleft()
        self._meter.add(fold.work.spent)
        return fold.outcome()

    def _visits(self, exchange: Exchange, clients: Sequence[int], table: Table | None) -> list[Job]:
        """Write `down` once, and list the visits, longest first."""
        self._run.exchange += 1
        ask, private = asked(exchange, self._run.exchange, self._down.put)
        self._run.ask = cloudpickle.dumps(ask)
        groups = self._visitor.groups(exchange.phase, clients)
        groups.sort(key=lambda g: (-sum(self._cost(c, exchange.round) for c in g), g[0]))
        jobs: list[Job] = []
        keeps = not exchange.is_evaluation
        for group in groups:
            tasks = tuple(
                Visit(
                    client,
                    private.get(client),
                    read=table.slot(client) if table is not None else -1,
                    write=table.reserve() if table is not None and keeps else -1,
                )
                for client in group
            )
            kind, task = ("visit", tasks[0]) if len(tasks) == 1 else ("visits", Visits(tasks))
            jobs.append(self._job(0, kind, task, self._answers))
        return jobs

    def _job(self, rank: int, kind: str, task: Any, to: queue.SimpleQueue[Answer]) -> Job:
        key = (self._run.priority, rank, self._pool.number())
        return Job(key, self._run, kind, task, lambda *answer: to.put(answer))

    def _fold(
        self,
        fold: Fold,
        exchange: Exchange,
        table: Table | None,
        peer: WorkerHandle,
        job: Job,
        content: tuple[Packed, Any],
    ) -> Sequence[Visit]:
        """Fold the replies of one job; returns whose they were."""
        packed = peer.slots[job.task.slot].get(content[0])
        tasks, messages, told, size = [job.task], [packed], [content[1]], None
        if isinstance(job.task, Visits):
            tasks, told = job.task.tasks, content[1]
            messages, size = unbundled(packed, len(tasks)), each_size(packed)
        for task, message, about in zip(tasks, messages, told, strict=True):
            client, reply = task.client, reply_from(exchange.signature, message, about)
            counts = fold.add(client, int(self._sizes[client]), reply, size)
            if exchange.is_evaluation:
                continue
            if table is not None and counts:
                table.keep(client, task.write)
            elif table is not None:
                table.release(task.write)
                table.drop(client)
        peer.free.append(job.task.slot)
        return tasks

    def evaluate(self, shown: EvaluatedModel) -> Evaluating:
        """Queue the chunks of an evaluation; they fill workers that have no visit to do."""
        if not self._chunks:
            return Evaluating(0)
        name = self._shown[self._evaluations % len(self._shown)]
        self._evaluations += 1
        where = self._run.blocks[name].put(packed_model(shown))
        under_way = Evaluating(self._chunks, self._meter)
        jobs = self.workers if len(shown.w) < LIGHT else JOBS * self.workers
        size = -(-self._chunks // jobs)
        tasks = [
            Evaluation(self._evaluations, range(self._chunks)[i : i + size], name, where)
            for i in range(0, self._chunks, size)
        ]
        self._pool.submit([self._job(1, "evaluate", t, under_way.answers) for t in tasks])
        return under_way

    def close(self) -> None:
        """Let the run go; the pool too, if it was made for this run."""
        if self._owns_pool:
            self._pool.close()
            for block in self._run.blocks.values():
                block.close()
        else:
            self._pool.forget(self._run)


def make(run: RunParts) -> Processes:
    """The backend of a run, on the pool it is given or on one of its own."""
    pool = Pool(run.workers) if run.pool is None else run.pool
    is_own = run.pool is None
    try:
        return Processes(run.visitor, run.store, run.evaluator, pool, run.cost, is_own, run.meter)
    except BaseException:
        if is_own:
            pool.close()
        raise


@contextmanager
def opened(address: str, workers: int) -> Generator[Pool]:
    """One pool for several runs."""
    pool = Pool(min(workers, MOST_WORKERS))
    try:
        yield pool
    finally:
        pool.close()


def check_sendable(*parts: Any) -> None:
    """Refuse, before anything is started or written, what no worker could be given."""
    try:
        cloudpickle.dumps(parts)
    except (TypeError, pickle.PicklingError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"workers: the model, loss or algorithm cannot be sent to a worker ({error}); "
            "use workers=0, or build what cannot be pickled inside the model's factory"
        ) from error
