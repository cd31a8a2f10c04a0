"""Runs of a trial as the front door makes them, and the path that the server's model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrift.backends.pool import Pool
from fedrift.conform.problem import Trial
from fedrift.conform.subject import Subject, subject_of
from fedrift.core.flat import Vec
from fedrift.data import arrays
from fedrift.engine import execute, task
from fedrift.engine.callbacks import RoundReport
from fedrift.engine.result import Result


def make_task(what: Subject | str, trial: Trial) -> execute.Task:
    """The trial with everything decided but where it is computed."""
    subject = subject_of(what) if isinstance(what, str) else what
    dtype = task.DTYPES[trial.dtype]
    return task.make_task(
        subject.make(trial.local, trial.rounds),
        trial.model,
        arrays.gather(list(trial.clients), dtype),
        None if trial.test is None else arrays.pair(trial.test, dtype, "test"),
        {},
        rounds=trial.rounds,
        who={
            "per_round": trial.per_round,
            "fraction": trial.fraction,
            "participants": trial.participants and [list(p) for p in trial.participants],
            "sampling": trial.sampling,
        },
        weights=None,
        loss=trial.loss,
        metrics={},
        augment=trial.augment,
        dtype=dtype,
        device="cpu",
        seed=trial.seed,
        eval_every=1,
        head=None,
        spec=None,
    )


def run(
    what: Subject | str,
    trial: Trial,
    *,
    workers: int = 0,
    backend: str = "auto",
    out: Path | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    pool: Pool | None = None,
) -> Result:
    """One run of the trial."""
    return execute.execute(
        make_task(what, trial),
        workers=workers,
        backend=backend,
        out=out,
        on_round=on_round,
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
