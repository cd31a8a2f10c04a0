"""One run from its parts to its result: bind the model, choose a backend, go, keep, return."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrift import backends, checkpoint, keeping, metrics
from fedrift.algorithm import Algorithm, local_of
from fedrift.backends.inprocess import InProcess
from fedrift.backends.pool import Pool
from fedrift.backends.processes import Processes
from fedrift.backends.visit import Backend, Chunk, Evaluator, Visitor
from fedrift.data.resident import Split
from fedrift.engine import Engine, Finished, Observer, Plan, Progress, RoundReport, Settings
from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.flat import count, take
from fedrift.ledger import Entry, Ledger
from fedrift.participation import Participation
from fedrift.problem import Problem
from fedrift.result import Result
from fedrift.results import RunFolder
from fedrift.results import load as load_folder
from fedrift.site import Augment
from fedrift.store import Store

WORTH_WORKERS = 3.0  # seconds of work below which starting workers costs more than they save
PROCESS_BYTES = 160 << 20  # what an idle process with torch holds for itself

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


@contextmanager
def one_thread() -> Generator[None]:
    """Results depend on the number of threads, so there is one; the caller's is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def execute(
    task: Task,
    *,
    workers: int | str = "auto",
    backend: str = "auto",
    out: Path | None = None,
    observer: Observer | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    pool: Pool | None = None,
) -> Result:
    """Run the task, on a pool if there is one, or go on with what its folder holds of it."""
    with one_thread():
        task.algorithm.check(task.problem)
        settings = {"rounds": task.rounds, "seed": task.seed, "eval_every": task.eval_every}
        identity = keeping.identity(task.algorithm, task.problem, task.split, settings)
        folder, again = None, False
        if out is not None:
            environment = keeping.environment(identity, task.notes)
            folder, again = keeping.open_folder(out, task.spec, environment)
        try:
            if folder is not None and again and load_folder(folder.path).summary:
                return _reread(task, folder)
            if folder is not None and not again:
                folder.write_clients(keeping.clients(task.split, task.problem.classes))
            return _execute(task, folder, again, workers, backend, observer, on_round, pool)
        finally:
            if folder is not None:
                folder.close()


def _execute(
    task: Task,
    folder: RunFolder | None,
    again: bool,
    workers: int | str,
    kind: str,
    observer: Observer | None,
    on_round: Callable[[RoundReport], bool | None] | None,
    pool: Pool | None,
) -> Result:
    problem = task.problem
    store = Store(task.algorithm, problem, None if folder is None else folder.path / "clients")
    visitor = Visitor(task.algorithm, problem, task.split, task.augment)
    evaluator = None
    if task.test is not None:
        evaluator = Evaluator(problem, *task.test, metrics.evaluate_chunk, bool(task.metrics))
    progress = _begin(task, store, folder, again)
    number = pool.workers if pool is not None else _workers(task, workers, kind)
    if observer is not None:
        observer.started(plan(task, store, number, progress.round))
    chosen = _backend(visitor, store, evaluator, number, task, kind, pool)
    engine = Engine(
        task.algorithm,
        problem,
        chosen,
        store,
        Settings(
            rounds=task.rounds,
            participation=task.participation,
            seed=task.seed,
            eval_every=task.eval_every,
            combine=lambda chunks: _combine(task, chunks),
            sizes=task.split.sizes,
        ),
        progress,
        recorder=None if folder is None else keeping.Keeper(folder),
        observer=observer,
        on_round=on_round,
    )
    try:
        finished = engine.run()
        engine.save()
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            engine.interrupted(evaluator)
        raise
    finally:
        chosen.close()
        store.close()
    result = _result(task, finished, folder)
    if folder is not None:
        named = problem.layout.named(result.weights)
        keeping.Keeper(folder).finish(named, result.summary())
    return result


def _begin(task: Task, store: Store, folder: RunFolder | None, again: bool) -> Progress:
    """The initial state, or that of the folder's last checkpoint."""
    state = task.algorithm.server(task.problem)
    start = Progress(state, tuple(task.problem.rest[n] for n in task.problem.moving))
    if folder is None or not again:
        return start
    point = checkpoint.read(folder.path, state)
    folder.truncate_after(0 if point is None else point.round)
    if point is None:
        return start
    for path, index in point.rows.items():
        store.tables[path].restore(index)
    record = load_folder(folder.path)
    ledger = Ledger([Entry.of(row) for row in record.ledger])
    return Progress(
        point.server,
        point.buffers,
        point.round,
        set(point.counted),
        set(point.told),
        point.seconds,
        list(record.rounds),
        ledger,
    )


def _workers(task: Task, workers: int | str, kind: str) -> int:
    if kind == "in-process" or workers == 0:
        return 0
    if isinstance(workers, int):
        return workers
    if workers != "auto":
        raise InputError(f"workers='{workers}' must be 'auto' or a whole number")
    number = min(backends.cores(), task.participation.size)
    if kind == "processes":
        return max(1, number)
    return number if number > 1 and _seconds(task) > WORTH_WORKERS else 0


def _seconds(task: Task) -> float:
    """A guess at the time the whole run would take in one process."""
    biggest = int(task.split.sizes.argmax())
    size = min(32, int(task.split.sizes[biggest]))
    batch = (
        take(task.split.x, task.split.parts[biggest][:size]),
        take(task.split.y, task.split.parts[biggest][:size]),
    )
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


def _backend(
    visitor: Visitor,
    store: Store,
    evaluator: Evaluator | None,
    workers: int,
    task: Task,
    kind: str,
    pool: Pool | None,
) -> Backend:
    if pool is not None:
        return Processes(visitor, store, evaluator, pool, cost_of(task), owns_pool=False)
    if workers == 0:
        return InProcess(visitor, store, evaluator, wire=kind == "wire")
    return Processes(visitor, store, evaluator, Pool(workers), cost_of(task))


def plan(task: Task, store: Store, workers: int, resumed_from: int) -> Plan:
    """What the run will hold in memory and on disk."""
    vector = task.problem.w0.nbytes
    data = sum(t.nbytes for t in _leaves((task.split.x, task.split.y, task.test)))
    cohort = task.participation.size
    state = store.row_bytes()
    visited = min(task.problem.population, cohort * task.rounds)
    server = 12 * vector
    memory = PROCESS_BYTES * (workers + 1) + data * (2 if workers else 1) + server
    memory += max(1, workers) * 10 * vector
    return Plan(
        parameters=task.problem.layout.size,
        clients=task.problem.population,
        samples=int(task.split.sizes.sum()),
        cohort=cohort,
        workers=workers,
        memory_bytes=memory,
        disk_bytes=state * (visited + 2 * cohort) if state else 0,
        resumed_from=resumed_from,
        notes=task.notes,
    )


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for v in tree.values() for leaf in _leaves(v)]
    return [leaf for v in tree for leaf in _leaves(v)] if isinstance(tree, tuple) else []


def _combine(task: Task, chunks: Sequence[Chunk]) -> dict[str, Any]:
    if not chunks:
        return {}
    combined = metrics.combine(chunks)  # type: ignore[arg-type]
    if task.metrics and task.test is not None:
        output = torch.cat([torch.as_tensor(c["output"]) for c in chunks])
        for name, measure in task.metrics.items():
            combined[name] = float(measure(output, task.test[1]))
    return combined


def _result(task: Task, finished: Finished, folder: RunFolder | None) -> Result:
    progress = finished.progress
    return Result(
        status=finished.status,
        diverged_at=finished.diverged_at,
        rounds=[row["round"] for row in progress.rows],
        metrics=progress.rows,
        weights=finished.weights,
        ledger=progress.ledger,
        seconds=progress.seconds,
        problem=task.problem,
        about=task.about,
        notes=task.notes,
        folder=None if folder is None else folder.path,
    )


def _reread(task: Task, folder: RunFolder) -> Result:
    """The result of a run that was finished before."""
    record = load_folder(folder.path)
    weights = record.weights()
    flat = torch.cat([torch.from_numpy(weights[n]).reshape(-1) for n in task.problem.layout.names])
    progress = Progress(
        None,
        (),
        task.rounds,
        seconds=record.summary["seconds"],
        rows=list(record.rounds),
        ledger=Ledger([Entry.of(row) for row in record.ledger]),
    )
    summary = record.summary
    done = Finished(summary["status"], summary["diverged_at"], progress, flat)
    return _result(task, done, folder)
