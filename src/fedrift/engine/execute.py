"""One run from its parts to its result: bind the model, choose a backend, go, keep, return."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrift.backends.backend import Backend, RunParts, made
from fedrift.backends.pool import Pool
from fedrift.backends.processes import check_sendable
from fedrift.backends.profiling import OFF, Meter, TimedSite
from fedrift.backends.visit import Visitor
from fedrift.config.backends import address_of, backend_kind
from fedrift.core import evaluation
from fedrift.core.alignment import dense
from fedrift.core.composition import local_of
from fedrift.core.evaluation import Chunk, Evaluator
from fedrift.core.flat import map_tree
from fedrift.core.isolation import at_server, one_thread
from fedrift.core.site import Site
from fedrift.data.sources.text import decode
from fedrift.engine import recorder
from fedrift.engine.build import work
from fedrift.engine.callbacks import Callback, telling_end
from fedrift.engine.client_models import ClientModels, Ended, has_models
from fedrift.engine.domains import domain_columns
from fedrift.engine.history import Finished, History, Progress
from fedrift.engine.identity import differences, identity_of
from fedrift.engine.ledger import Ledger
from fedrift.engine.loop import Engine, Settings
from fedrift.engine.plan import Task, check_fits, cost_of, gradients_of, plan, workers_for
from fedrift.engine.result import Result
from fedrift.engine.resume import (
    check_fit,
    has_more_rounds,
    is_complete,
    is_longer,
    prolong,
    resume,
    unwritable,
)
from fedrift.errors import InputError, RunError, is_of_disk
from fedrift.models.text import WRITTEN, continuations
from fedrift.storage.client_state import States, Store
from fedrift.storage.fork import Origin
from fedrift.storage.run_folder import STATES, RunFolder, holds_run
from fedrift.storage.run_record import load as load_folder

# How a run ends: its measurements put together, its result, and the result of one made before.


def combined(task: Task, chunks: Sequence[Chunk]) -> dict[str, Any]:
    if not chunks:
        return {}
    domains = task.domains
    if domains is not None:
        found = [evaluation.combine(some) for some in domains.by_number(chunks)]  # type: ignore[arg-type]
        chunks = domains.seen_chunks(chunks)
        of_domains = domain_columns(domains.layout, found)
    else:
        of_domains = {}
    measured = evaluation.combine(chunks) | of_domains  # type: ignore[arg-type]
    if task.metrics and task.test is not None:
        outputs = [c["output"] for c in chunks]
        output = map_tree(_joined, *outputs)
        with at_server(task.seed, "metrics"):  # the same draws in every round, as in evaluation
            for name, measure in task.metrics.items():
                measured[name] = float(measure(output, task.test[1]))
    return measured


def _joined(*parts: Any) -> Tensor:
    """Outputs of all chunks; row by row, because what came from workers is."""
    return dense(torch.cat([torch.as_tensor(part) for part in parts]), channels_last=False)


def result_of(
    task: Task,
    finished: Finished,
    folder: RunFolder | None,
    profile: list[dict[str, float]] | None = None,
    personal: ClientModels | None = None,
) -> Result:
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
        buffers=finished.rest,
        info={**task.about, **_written(task, finished)},
        notes=task.notes,
        folder=None if folder is None else folder.path,
        clients=recorder.clients(task.split, task.problem.classes),
        config=task.spec,
        profile=profile or [],
        client_rounds=progress.client_rows,
        personal=personal,
        training=progress.training_rows,
    )


def _written(task: Task, finished: Finished) -> dict[str, Any]:
    """What a finished model of text writes itself, going on from beginnings of the test text, and
    how many characters of each text are such a beginning."""
    if not task.alphabet or task.test is None or finished.status != "done":
        return {}
    module = task.problem.module(finished.weights, finished.rest)
    written = [tokens.numpy() for tokens in continuations(module, *task.test)]
    return {
        "continuations": [decode(tokens, task.alphabet) for tokens in written],
        "beginnings": [len(decode(tokens[:-WRITTEN], task.alphabet)) for tokens in written],
    }


def reread(task: Task, folder: RunFolder) -> Result:
    """The result of a run that was finished before."""
    record = load_folder(folder.path)
    weights = record.weights()
    layout = task.problem.layout
    names, wanted = layout.names, layout.named(task.problem.w0)
    kind = task.problem.w0.cpu()[:0].numpy().dtype
    if any(
        n not in weights or weights[n].shape != tuple(wanted[n].shape) or weights[n].dtype != kind
        for n in names
    ):
        raise InputError(f"'{folder.path}': its weights are not those of the model; start it anew")
    flat = torch.cat([torch.from_numpy(weights[n]).reshape(-1) for n in names])
    progress = Progress(
        None,
        (),
        task.rounds,
        seconds=float(record.summary.get("seconds", 0.0)),
        rows=list(record.rounds),
        ledger=Ledger.of(record.ledger),
        client_rows=list(record.client_rounds),
        training_rows=list(record.training),
    )
    summary = record.summary
    rest = {n: torch.from_numpy(v) for n, v in weights.items() if n not in names}
    done = Finished(summary["status"], summary.get("diverged_at"), progress, flat, rest)
    models = ClientModels(task, folder.path)
    return result_of(task, done, folder, personal=models)


# Where a run computes: with a backend, or at a place of its own.


class Place(Protocol):
    """Clients that are elsewhere: where their states lie, who runs their visits, who is there."""

    def states(self, visitor: Visitor) -> States: ...
    def backend(self, visitor: Visitor, evaluator: Evaluator | None) -> Backend: ...
    def present(self) -> np.ndarray | None: ...


def execute(
    task: Task,
    *,
    workers: int | str = "auto",
    backend: str = "auto",
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    pool: Pool | None = None,
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
    with telling_end(callbacks) as ended, one_thread() if pool is None else nullcontext():
        torch.set_num_threads(1)
        check(task)
        if origin is not None:
            check_fit(task, origin[0])
        number = 0
        if place is None:
            number = pool.workers if pool is not None else workers_for(task, workers, backend)
        if number:
            check_sendable(task.algorithm, task.problem, task.augment)
        if profile and (place is not None or not backend_kind(backend).is_timed):
            raise InputError("profile: times can be taken in this process and in workers only")
        folder, again = None, False
        if out is not None:
            folder, again = recorder.open_folder(
                out,
                task.spec,
                lambda: recorder.environment(identity_of(task, origin), task.notes),
                lambda: recorder.clients(task.split, task.problem.classes),
                lambda known: differences(known, task, origin),
                None if origin is None else Origin(origin[0].spec, origin[1]).to_toml(),
                lambda known: is_longer(task, out, known, origin),
            )
        try:
            if folder is not None and again and has_more_rounds(task, folder):
                prolong(task, folder, _settings(task), identity_of(task, origin))
            if folder is not None and again and is_complete(folder):
                return ended(reread(task, folder))
            start = partial(
                _execute,
                number=number,
                kind=backend,
                callbacks=callbacks,
                pool=pool,
                place=place,
                meter=Meter(is_on=profile),
            )
            if origin is not None and folder is not None:
                first, at = origin[0], origin[1] if until is None else min(origin[1], until)
                check(first)
                result = start(first, folder, again, until=at, is_origin=True)
                if result is not None:  # it diverged on the way
                    return ended(result)
                again = True
            result = start(task, folder, again, until=until)
            assert result is not None
            return ended(result)
        finally:
            if folder is not None:
                folder.close()


def check(task: Task) -> None:
    """Refuses a task that its algorithm cannot do."""
    try:
        task.algorithm.check(task.problem)
    except InputError as error:
        raise InputError(f"{task.about['algorithm']}: {error}") from None


def _settings(task: Task) -> Settings:
    """The engine's part of a task."""
    return Settings(
        rounds=task.rounds,
        participation=task.participation,
        seed=task.seed,
        eval_every=task.eval_every,
        sizes=task.split.sizes,
        faults=task.faults,
        aggregation=task.aggregation,
        eval_clients=task.eval_clients,
        test_sizes=None if task.split.test is None else task.split.test.sizes,
        at_clients=task.at_clients,
        clock=task.clock,
        cost=gradients_of(task),
    )


def _execute(
    task: Task,
    folder: RunFolder | None,
    again: bool,
    number: int,
    kind: str,
    callbacks: Sequence[Callback],
    pool: Pool | None,
    until: int | None = None,
    is_origin: bool = False,
    place: Place | None = None,
    meter: Meter = OFF,
) -> Result | None:
    """None if it was only the origin of a fork, and its rounds have been done."""
    problem = task.problem
    site = TimedSite if meter.is_on else Site
    visitor = Visitor(task.algorithm, problem, task.split, task.augment, site)
    rows = None
    if place is None:
        where = None if folder is None else folder.path / STATES
        store = rows = Store(task.algorithm, problem, where)
    else:
        store = place.states(visitor)
    with ExitStack() as unused:  # given back if it does not come to the first round
        unused.callback(store.close)
        evaluator = None
        if task.evaluated is not None:
            sizes = () if task.domains is None else task.domains.sizes
            evaluator = Evaluator(
                problem, *task.evaluated, evaluation.evaluate_chunk, bool(task.metrics), sizes
            )
        progress, remarks = resume(task, store, folder, again)
        has_diverged = progress.diverged_at is not None
        if is_origin and until is not None and progress.round >= until and not has_diverged:
            return None
        planned = plan(task, store, number, progress.round, remarks)
        planned = replace(planned, local=work(local_of(task.algorithm)), is_origin=is_origin)
        try:
            check_fits(planned, Path(store.scratch), folder is not None)
            for callback in callbacks:
                callback.on_start(planned)
            if rows is not None:
                at, cost = address_of(kind), cost_of(task)
                parts = RunParts(visitor, rows, evaluator, cost, number, at, pool, meter)
                chosen = made(kind, parts)
            else:
                assert place is not None
                chosen = place.backend(visitor, evaluator)
        except InputError:
            unused.close()
            if folder is not None and not again:  # the fix may be wanted in the same folder
                folder.withdraw()
            raise
        unused.callback(chosen.close)
        history = History(
            task.algorithm,
            store,
            progress,
            lambda chunks: combined(task, chunks),
            recorder=None if folder is None else recorder.RunRecorder(folder),
            callbacks=callbacks,
            meter=meter,
            at_clients=task.at_clients,
        )
        present = (lambda: None) if place is None else place.present
        settings = replace(_settings(task), until=until, present=present)
        # Without a folder, clients' models are in the store, which goes with the result.
        lives_on = rows is not None and folder is None and has_models(task)
        engine = Engine(task.algorithm, problem, chosen, store, settings, history, meter)
        unused.pop_all()
    is_refused = False
    try:
        finished = engine.run()
        engine.save()
        meter.ended(number)
    except BaseException as error:
        is_refused = isinstance(error, InputError) and not again and not progress.round
        with suppress(Exception):  # the first error is the one to tell
            engine.interrupted(evaluator)
            if pool is None:  # else it is the comparison that is interrupted
                models = None if rows is None or folder is None else ClientModels(task, folder.path)
                so_far = result_of(task, engine.so_far(), folder, meter.rounds, models)
                vars(error)["result"] = so_far
        if isinstance(error, OSError) and is_of_disk(error):
            raise RunError(unwritable(error, store.scratch, folder)) from error
        if (
            isinstance(error, FileNotFoundError)
            and folder is not None
            and not holds_run(folder.path)
        ):
            raise RunError(
                f"out '{folder.path}' is not there any more: it was moved or removed while the run "
                "wrote to it, or the program went to another folder"
            ) from error
        raise
    finally:
        chosen.close()
        if not lives_on or sys.exception() is not None:
            store.close()
        if folder is not None and is_refused:  # as if it had been refused at once
            folder.withdraw()
    if is_origin and finished.status == "stopped":
        return None
    models = None
    if rows is not None:
        end = Ended(progress.state, progress.buffers, progress.round, rows) if lives_on else None
        models = ClientModels(task, end or (None if folder is None else folder.path))
    result = result_of(task, finished, folder, meter.rounds, models)
    if folder is not None:
        try:
            recorder.RunRecorder(folder).finish(result.tensors(), result.summary())
        except OSError as error:
            raise RunError(unwritable(error, store.scratch, folder)) from error
    return result
