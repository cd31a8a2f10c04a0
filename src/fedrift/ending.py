"""How a run ends: its measurements put together, its result, and the result of one made before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedrift import keeping, metrics
from fedrift.backends.evaluation import Chunk
from fedrift.errors import InputError
from fedrift.flat import map_tree
from fedrift.ledger import Ledger
from fedrift.planning import Task
from fedrift.result import Result
from fedrift.results import RunFolder
from fedrift.results import load as load_folder
from fedrift.rounds import Finished, Progress


def combined(task: Task, chunks: Sequence[Chunk]) -> dict[str, Any]:
    if not chunks:
        return {}
    measured = metrics.combine(chunks)  # type: ignore[arg-type]
    if task.metrics and task.test is not None:
        outputs = [c["output"] for c in chunks]
        output = map_tree(lambda *ts: torch.cat([torch.as_tensor(t) for t in ts]), *outputs)
        for name, measure in task.metrics.items():
            measured[name] = float(measure(output, task.test[1]))
    return measured


def result_of(
    task: Task,
    finished: Finished,
    folder: RunFolder | None,
    profile: list[dict[str, float]] | None = None,
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
        rest=finished.rest,
        about=task.about,
        notes=task.notes,
        folder=None if folder is None else folder.path,
        clients=keeping.clients(task.split, task.problem.classes),
        said=task.spec,
        profile=profile or [],
    )


def reread(task: Task, folder: RunFolder) -> Result:
    """The result of a run that was finished before."""
    record = load_folder(folder.path)
    weights = record.weights()
    layout = task.problem.layout
    names = layout.names
    if any(
        n not in weights or weights[n].shape != tuple(layout.named(task.problem.w0)[n].shape)
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
    )
    summary = record.summary
    rest = {n: torch.from_numpy(v) for n, v in weights.items() if n not in names}
    done = Finished(summary["status"], summary.get("diverged_at"), progress, flat, rest)
    return result_of(task, done, folder)
