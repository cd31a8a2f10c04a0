"""Runs of a trial as the front door makes them, and the path that the server's model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrift.backends.pool import Pool
from fedrift.conform.problem import Trial
from fedrift.conform.subject import Subject, subject_of
from fedrift.core.flat import Vec
from fedrift.engine import execute, task
from fedrift.engine.callbacks import OnRoundFunction, RoundReport, callbacks_of
from fedrift.engine.objects import objects_from_call, spec_from_call
from fedrift.engine.result import Result
from fedrift.errors import InputError


def make_task(what: Subject | str, trial: Trial) -> execute.Task:
    """The trial with everything decided but where it is computed."""
    subject = subject_of(what) if isinstance(what, str) else what
    algorithm = subject.make(trial.local, trial.rounds)
    settings = {key: getattr(trial, key) for key in SETTINGS}
    objects = {key: getattr(trial, key) for key in ("model", "test", "loss")}
    spec = spec_from_call(algorithm, settings)
    clients = list(trial.clients)
    made = objects_from_call(algorithm, spec.dtype, clients=clients, **objects)
    return task.make_task(spec, made)


SETTINGS = (
    "rounds per_round fraction participants sampling augment dtype seed stack adapter".split()
)


def refused(what: Subject | str, trial: Trial) -> str | None:
    """Why the trial's problem is none for the algorithm; None if it is one."""
    try:
        task = make_task(what, trial)
        task.algorithm.check(task.problem)
    except InputError as error:
        return str(error)
    return None


def run(
    what: Subject | str,
    trial: Trial,
    *,
    workers: int = 0,
    backend: str = "auto",
    out: Path | None = None,
    on_round: OnRoundFunction | None = None,
    pool: Pool | None = None,
) -> Result:
    """One run of the trial."""
    return execute.execute(
        make_task(what, trial),
        workers=workers,
        backend=backend,
        out=out,
        callbacks=callbacks_of([], on_round),
        pool=pool,
    )


def path(what: Subject | str, trial: Trial, inner: bool = False) -> list[Vec]:
    """The evaluated model after every round; `inner`: that of the algorithm inside a wrapper."""
    subject = subject_of(what) if isinstance(what, str) else what
    algorithm: Any = subject.make(trial.local, trial.rounds)
    points: list[Vec] = []

    def note(report: RoundReport) -> None:
        weights = algorithm.inner.model(report.state.inner) if inner else report.weights
        points.append(weights.clone())

    run(subject, trial, on_round=note)
    return points
