"""A task before it starts: what it is, how long and how large it will be, how many workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedrift import backends
from fedrift.aggregation import Aggregation
from fedrift.algorithm import Algorithm, local_of
from fedrift.data.resident import Split
from fedrift.errors import InputError, unknown
from fedrift.experiment import Spec
from fedrift.faults import Faults
from fedrift.flat import count
from fedrift.memory import Work, client_methods, few_samples
from fedrift.participation import Participation
from fedrift.problem import Problem
from fedrift.rounds import Plan
from fedrift.shared import tensor_digest
from fedrift.site import Augment
from fedrift.store import States, Store

WORTH_WORKERS = 3.0  # seconds of work below which starting workers costs more than they save
KINDS = ("auto", "in-process", "processes", "wire", "ray")

UserMetric = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Task:
    """A run with everything settled but where it is computed."""

    algorithm: Algorithm[Any, Any]
    problem: Problem
    split: Split
    test: tuple[Any, Any] | None
    participation: Participation
    rounds: int
    seed: int
    eval_every: int
    spec: Spec
    about: Mapping[str, Any]
    augment: Augment | None = None
    metrics: Mapping[str, UserMetric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    faults: Faults | None = None
    aggregation: Aggregation | None = None

    def deciding(self) -> dict[str, Any]:
        """What decides the result beside algorithm, model and client data, in a stable form."""
        stack = None if self.problem.stack == "auto" else self.problem.stack
        said = {"faults": self.faults, "aggregation": self.aggregation, "stack": stack}
        return {k: v for k, v in said.items() if v is not None} | {
            "rounds": self.rounds,
            "seed": self.seed,
            "eval_every": self.eval_every,
            "participation": self.participation,
            "augment": self.augment,
            "loss": _name(self.problem.loss),
            "metrics": sorted(self.metrics),
            "test": None if self.test is None else [tensor_digest(t) for t in _leaves(self.test)],
        }


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # a partial: of what
    return f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', repr(inner))}"


def is_ray(kind: object) -> bool:
    """`ray`, or `ray:` and the address of a cluster."""
    return kind == "ray" or (isinstance(kind, str) and kind.startswith("ray:"))


def workers_for(task: Task, workers: int | str, kind: str) -> int:
    if kind not in KINDS and not is_ray(kind):
        raise unknown("backend", str(kind), KINDS)
    if isinstance(workers, bool) or (workers != "auto" and not isinstance(workers, int)):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number of at least 0")
    if isinstance(workers, int) and not 0 <= workers <= backends.MOST_WORKERS:
        raise InputError(f"workers={workers} must be from 0 to {backends.MOST_WORKERS}")
    if is_ray(kind) and (workers == 0 or task.problem.device != "cpu"):
        where = f"workers={workers}" if workers == 0 else f"device={task.problem.device}"
        raise InputError(f"backend '{kind}' and {where}: drop one; its workers use the cpu")
    if kind in ("in-process", "wire") or workers == 0 or task.problem.device != "cpu":
        return 0
    if isinstance(workers, int):
        return workers
    if is_ray(kind):
        return backends.cores()
    number = min(backends.cores(), task.participation.size)
    if kind == "processes":
        return max(1, number)
    return number if number > 1 and _seconds(task) > WORTH_WORKERS else 0


def _seconds(task: Task) -> float:
    """A guess at the time the whole run would take in one process."""
    batch = few_samples(task.split, 32)
    size = count(batch[0])
    model = task.problem.model
    model.module.eval()  # moves no running statistics
    model.w.copy_(task.problem.w0)
    model.gradients(batch)
    start = time.perf_counter()
    model.gradients(batch)
    seconds = (time.perf_counter() - start) / size
    cost = cost_of(task)
    mean = sum(cost(c, 0) for c in range(0, len(task.split), max(1, len(task.split) // 100)))
    visits = mean / len(range(0, len(task.split), max(1, len(task.split) // 100)))
    tests = count(task.test[0]) / task.eval_every / 3 if task.test is not None else 0.0
    return seconds * task.rounds * (visits * task.participation.size + tests)


def cost_of(task: Task) -> Callable[[int, int], float]:
    """Examples a visit will differentiate, to start the longest first."""
    local, sizes = local_of(task.algorithm), task.split.sizes

    def cost(client: int, round: int) -> float:
        n = int(sizes[client])
        if local is None:
            return n
        batch = min(n, local.batch_size or n)
        return local.steps_for(n, task.seed, round, client) * batch

    return cost


def plan(
    task: Task, store: States, workers: int, resumed_from: int, said: tuple[str, ...] = ()
) -> Plan:
    """What the run will hold in memory and on disk."""
    who = task.participation
    robust = None if task.aggregation is None else task.aggregation.robust
    work = Work(
        task.algorithm,
        task.problem,
        task.split,
        task.test,
        cohort=who.size,
        workers=workers,
        robust=robust,
        is_here=isinstance(store, Store) and task.problem.device == "cpu",
    )
    return Plan(
        parameters=task.problem.layout.size,
        clients=task.problem.population,
        samples=int(task.split.sizes.sum()),
        cohort=who.size,
        workers=workers,
        memory_bytes=work.total(),
        disk_bytes=store.row_bytes() * rows_of(task),
        resumed_from=resumed_from,
        notes=(*task.notes, *said),
    )


ROUNDS_HELD = 20  # that pass between the two checkpoints which are kept, on average


def rows_of(task: Task) -> int:
    """Rows of client state that a run needs: clients that come, and those kept for checkpoints."""
    who, rounds = task.participation, task.rounds
    if who.kind in ("fixed", "bernoulli"):
        came = who.population * (1.0 - (1.0 - min(1.0, who.share)) ** rounds)
    else:
        came = min(float(len(who.everybody())), who.size * rounds)
    again = max(0.0, who.size * rounds - came)
    window = ROUNDS_HELD * who.size * came / who.population
    exchanges = sum(1 for _ in client_methods(task.algorithm))  # each writes rows of its own
    return math.ceil(came + who.size * exchanges + min(again, window, 2 * came))


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for v in tree.values() for leaf in _leaves(v)]
    return [leaf for v in tree for leaf in _leaves(v)] if isinstance(tree, tuple) else []
