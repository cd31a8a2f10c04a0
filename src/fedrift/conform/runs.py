"""Runs of a trial through the front door, and the path that the server's model takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrift import front
from fedrift.conform.problem import Trial
from fedrift.conform.subject import Subject, subject_of
from fedrift.engine import RoundReport
from fedrift.flat import Vec
from fedrift.result import Result


def run(
    what: Subject | str,
    trial: Trial,
    *,
    workers: int = 0,
    backend: str = "auto",
    out: Path | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
) -> Result:
    """One run of the trial."""
    subject = subject_of(what) if isinstance(what, str) else what
    return front.run(
        subject.make(trial.local, trial.rounds),
        model=trial.model,
        loss=trial.loss,
        clients=list(trial.clients),
        test=trial.test,
        rounds=trial.rounds,
        per_round=trial.per_round,
        fraction=trial.fraction,
        participants=trial.participants,
        sampling=trial.sampling,
        augment=trial.augment,
        dtype=trial.dtype,
        seed=trial.seed,
        workers=workers,
        backend=backend,
        out=out,
        on_round=on_round,
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
