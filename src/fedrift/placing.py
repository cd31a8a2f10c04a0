"""Where a run computes: in this process, on workers, on Ray, or at a place of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch

from fedrift.backends.backend import Backend
from fedrift.backends.evaluation import Evaluator
from fedrift.backends.inprocess import InProcess
from fedrift.backends.pool import Pool
from fedrift.backends.processes import Processes
from fedrift.backends.visit import Visitor
from fedrift.planning import Task, cost_of, is_ray
from fedrift.profiling import Meter
from fedrift.store import States, Store


class Place(Protocol):
    """Clients that are elsewhere: where their states lie, who runs their visits, who is there."""

    def states(self, visitor: Visitor) -> States: ...
    def backend(self, visitor: Visitor, evaluator: Evaluator | None) -> Backend: ...
    def present(self) -> np.ndarray | None: ...


@contextmanager
def one_thread() -> Generator[None]:
    """Results depend on the number of threads, so there is one. The caller's number of threads
    and torch's generator, which dropout draws from, are restored."""
    before, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_rng_state(state)


@contextmanager
def on_ray(kind: str, workers: int) -> Generator[None]:
    """Ray, started or joined once for several runs."""
    from fedrift.backends import cluster

    is_ours = cluster.connect(kind.partition(":")[2], workers)
    try:
        yield
    finally:
        if is_ours:
            cluster.disconnect()


def backend_for(
    visitor: Visitor,
    store: Store,
    evaluator: Evaluator | None,
    workers: int,
    task: Task,
    kind: str,
    pool: Pool | None,
    meter: Meter,
) -> Backend:
    if pool is not None:
        return Processes(
            visitor, store, evaluator, pool, cost_of(task), owns_pool=False, meter=meter
        )
    if is_ray(kind):
        from fedrift.backends.cluster import Ray

        where = kind.partition(":")[2]
        return Ray(visitor, store, evaluator, cost_of(task), address=where, workers=workers)
    if workers == 0:
        return InProcess(visitor, store, evaluator, wire=kind == "wire", meter=meter)
    own = Pool(workers)
    try:
        return Processes(visitor, store, evaluator, own, cost_of(task), meter=meter)
    except BaseException:
        own.close()
        raise
