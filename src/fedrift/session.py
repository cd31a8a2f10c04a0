"""One run from its parts to its result: bind the model, choose a backend, go, keep, return."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import torch

from fedrift import keeping, metrics
from fedrift.backends.evaluation import Evaluator
from fedrift.backends.pool import Pool
from fedrift.backends.processes import check_sendable
from fedrift.backends.visit import Visitor
from fedrift.books import Books
from fedrift.continuing import begin, check_fit, full, identity_of, is_complete
from fedrift.ending import combined, reread, result_of
from fedrift.engine import Engine, Observer, Progress, RoundReport, Settings
from fedrift.errors import InputError, RunError
from fedrift.origin import Origin
from fedrift.placing import Place, backend_for, one_thread
from fedrift.planning import Task, UserMetric, is_ray, plan, workers_for
from fedrift.profiling import OFF, Meter, TimedSite
from fedrift.result import Result
from fedrift.results import RunFolder
from fedrift.room import check_room
from fedrift.rounds import Analyst
from fedrift.run_files import STATES
from fedrift.site import Site
from fedrift.store import Store

__all__ = ["Appoint", "Task", "UserMetric", "execute", "one_thread"]

Appoint = Callable[[Task, Store, Path | None, Progress], Analyst]
"""Makes the one who measures during a run, from what the run consists of."""


def execute(
    task: Task,
    *,
    workers: int | str = "auto",
    backend: str = "auto",
    out: Path | None = None,
    observer: Observer | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    pool: Pool | None = None,
    appoint: Appoint | None = None,
    until: int | None = None,
    origin: tuple[Task, int] | None = None,
    place: Place | None = None,
    profile: bool = False,
) -> Result:
    """Run the task, or go on with what its folder holds of it; on a pool or at a place if given.

    `until` stops it early; with an `origin`, its first rounds are those of another task, which
    needs a folder to hand its state over.
    """
    # Several runs share a pool and one generator: whoever made the pool restores it, not each run.
    with one_thread() if pool is None else nullcontext():
        torch.set_num_threads(1)
        _check(task)
        if origin is not None:
            check_fit(task, origin[0])
        number = 0
        if place is None:
            number = pool.workers if pool is not None else workers_for(task, workers, backend)
        if number:
            check_sendable(task.algorithm, task.problem, task.augment)
        if profile and (place is not None or is_ray(backend)):
            raise InputError("profile: times can be taken in this process and in workers only")
        folder, again = None, False
        if out is not None:
            identity = identity_of(task)
            if origin is not None:
                identity = f"{identity} from {identity_of(origin[0])} at {origin[1]}"
            environment = keeping.environment(identity, task.notes)
            folder, again = keeping.open_folder(
                out,
                task.spec,
                environment,
                lambda: keeping.clients(task.split, task.problem.classes),
                None if origin is None else Origin(origin[0].spec, origin[1]).to_toml(),
            )
        try:
            if folder is not None and again and is_complete(folder):
                return reread(task, folder)
            start = partial(
                _execute,
                number=number,
                kind=backend,
                observer=observer,
                pool=pool,
                place=place,
                meter=Meter(is_on=profile),
            )
            if origin is not None and folder is not None:
                first, at = origin[0], origin[1] if until is None else min(origin[1], until)
                _check(first)
                ended = start(first, folder, again, on_round=None, until=at, is_part=True)
                if ended is not None:  # it diverged on the way
                    return ended
                again = True
            ended = start(task, folder, again, on_round=on_round, until=until, appoint=appoint)
            assert ended is not None
            return ended
        finally:
            if folder is not None:
                folder.close()


def _check(task: Task) -> None:
    try:
        task.algorithm.check(task.problem)
    except InputError as error:
        raise InputError(f"{task.about['algorithm']}: {error}") from None


def _execute(
    task: Task,
    folder: RunFolder | None,
    again: bool,
    number: int,
    kind: str,
    observer: Observer | None,
    on_round: Callable[[RoundReport], bool | None] | None,
    pool: Pool | None,
    until: int | None = None,
    is_part: bool = False,
    appoint: Appoint | None = None,
    place: Place | None = None,
    meter: Meter = OFF,
) -> Result | None:
    """None if it was only a part of a run, and that part has been done."""
    problem = task.problem
    site = TimedSite if meter.is_on else Site
    visitor = Visitor(task.algorithm, problem, task.split, task.augment, site)
    rows = None
    if place is None:
        where = None if folder is None else folder.path / STATES
        store = rows = Store(task.algorithm, problem, where)
    else:
        store = place.states(visitor)
    evaluator = None
    if task.test is not None:
        evaluator = Evaluator(problem, *task.test, metrics.evaluate_chunk, bool(task.metrics))
    progress, said = begin(task, store, folder, again)
    if is_part and until is not None and progress.round >= until:
        store.close()
        return None
    planned = plan(task, store, number, progress.round, said)
    try:
        check_room(planned, Path(store.scratch), folder is not None)
    except InputError:
        store.close()
        if folder is not None and not again:  # the fix may be wanted in the same folder
            folder.withdraw()
        raise
    if observer is not None:
        observer.started(planned)
    analyst = None
    if rows is not None:
        where = None if folder is None else folder.path
        analyst = None if appoint is None else appoint(task, rows, where, progress)
        chosen = backend_for(visitor, rows, evaluator, number, task, kind, pool, meter)
    else:
        assert place is not None
        chosen = place.backend(visitor, evaluator)
    books = Books(
        task.algorithm,
        store,
        progress,
        lambda chunks: combined(task, chunks),
        recorder=None if folder is None else keeping.Keeper(folder),
        observer=observer,
        on_round=on_round,
        analyst=analyst,
        meter=meter,
    )
    settings = Settings(
        rounds=task.rounds,
        participation=task.participation,
        seed=task.seed,
        eval_every=task.eval_every,
        sizes=task.split.sizes,
        faults=task.faults,
        aggregation=task.aggregation,
        until=until,
        present=(lambda: None) if place is None else place.present,
    )
    engine = Engine(task.algorithm, problem, chosen, store, settings, books, meter)
    try:
        finished = engine.run()
        engine.save()
        meter.ended(number)
        if analyst is not None:
            analyst.ended()
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to tell
            engine.interrupted(evaluator)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(full(store.scratch, folder)) from error
        raise
    finally:
        chosen.close()
        store.close()
    if is_part and finished.status == "stopped":
        return None
    result = result_of(task, finished, folder, meter.rounds)
    if folder is not None:
        keeping.Keeper(folder).finish(result.tensors(), result.summary())
    return result
