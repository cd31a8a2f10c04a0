"""The front door: run, with one's own model and data or with named ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import session, task
from fedrift.data import given
from fedrift.described import where
from fedrift.engine import Observer, RoundReport
from fedrift.entrant import Entrant
from fedrift.errors import InputError
from fedrift.examinations import During, during
from fedrift.experiment import Spec
from fedrift.grid import slug
from fedrift.prepare import Prepared, prepare
from fedrift.result import Result
from fedrift.session import UserMetric
from fedrift.track import following, tracks

_UNSAID: Any = object()
LOCAL = ("epochs", "steps", "lr", "momentum", "weight_decay", "clip", "schedule")
SETTINGS: dict[str, Any] = {
    "model": None,
    "clients": None,
    "test": None,
    "loss": None,
    "metrics": None,
    "rounds": None,
    "per_round": None,
    "fraction": None,
    "participants": None,
    "sampling": "fixed",
    **dict.fromkeys(LOCAL),
    "batch_size": _UNSAID,
    "weights": None,
    "augment": None,
    "dtype": "float32",
    "device": "cpu",
    "seed": 0,
    "eval_every": 1,
    "head": None,
}
"""What decides the result of a run besides the algorithm, with the defaults."""


def run(
    algorithm: Entrant,
    *,
    model: Callable[[], nn.Module] | nn.Module,
    clients: Any,
    test: Any = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    metrics: Mapping[str, UserMetric] | None = None,
    rounds: int,
    per_round: int | None = None,
    fraction: float | None = None,
    participants: Sequence[Sequence[int]] | None = None,
    sampling: str = "fixed",
    epochs: Any = None,
    steps: Any = None,
    batch_size: Any = _UNSAID,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    schedule: str | None = None,
    weights: str | None = None,
    augment: Sequence[str] | str | None = None,
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    workers: int | str = "auto",
    backend: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    eval_every: int = 1,
    head: str | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    observer: Observer | None = None,
    track: str | Sequence[str] | None = None,
    analyse: str | During | None = None,
) -> Result:
    """Simulate a federation and return its `Result`; docs/api.md describes every argument."""
    settings = {key: value for key, value in locals().items() if key in SETTINGS}
    if on_round is not None and not callable(on_round):
        raise InputError(f"on_round={on_round!r} must be a function of a RoundReport")
    wanted, folder = tracks(track), None if out is None else Path(out)
    made = settled(algorithm, settings)
    made = replace(made, spec=where(made.spec, workers, backend))
    name = slug(f"{made.about['algorithm']}-s{made.seed}" if folder is None else folder.name)
    execute = partial(
        session.execute,
        made,
        workers=workers,
        backend=backend,
        out=folder,
        on_round=on_round,
        appoint=_appointed(analyse, folder),
    )
    return following(
        wanted, name, made.spec.said(), folder, observer, lambda seen: execute(observer=seen)
    )


def _appointed(analyse: str | During | None, out: str | Path | None) -> session.Appoint | None:
    """Who measures during the run; what is found goes to the run's folder."""
    if analyse is None:
        return None
    if out is None:
        raise InputError(f"analyse='{analyse}' needs a folder for what it finds; give out")
    from fedrift.analysis.during import appointed

    return appointed(during(analyse) if isinstance(analyse, str) else analyse)


def settled(algorithm: Entrant, given_: Mapping[str, Any]) -> session.Task:
    said = {key: _plain(given_.get(key, default)) for key, default in SETTINGS.items()}
    for key in ("model", "clients", "rounds"):
        if said[key] is None:
            raise InputError(f"{key} is missing")
    for key in ("rounds", "eval_every"):
        _whole(said[key], key)
    local = {key: said[key] for key in LOCAL}
    if said["batch_size"] is not _UNSAID:
        local["batch_size"] = said["batch_size"]
    kind, schedule = task.dtype_of(said["dtype"]), said["participants"]
    return task.settle(
        algorithm,
        task.factory_of(said["model"]),
        given.gather(said["clients"], kind),
        None if said["test"] is None else given.pair(said["test"], kind, "test"),
        local,
        rounds=said["rounds"],
        who={
            "per_round": said["per_round"],
            "fraction": said["fraction"],
            "participants": _lists(schedule),
            "sampling": said["sampling"],
        },
        weights=said["weights"],
        loss=said["loss"],
        metrics=said["metrics"] or {},
        augment=said["augment"],
        dtype=kind,
        device=said["device"],
        seed=said["seed"],
        eval_every=said["eval_every"],
        head=said["head"],
        spec=None,
    )


def run_spec(
    spec: Spec,
    *,
    observer: Observer | None = None,
    out: str | Path | None = None,
    prepared: Prepared | None = None,
    track: str | Sequence[str] | None = None,
    analyse: str | During | None = None,
) -> Result:
    """Run what a spec says: named data, partition and model."""
    spec.validate()
    wanted, place = tracks(track), out if out is not None else spec.out
    folder = None if place is None else Path(place)
    made = task.of_spec(spec, prepared or prepare(spec))
    name = slug(f"{spec.algorithm}-s{spec.seed}" if folder is None else folder.name)
    execute = partial(
        session.execute,
        made,
        workers=spec.workers,
        backend=spec.backend,
        out=folder,
        appoint=_appointed(analyse, folder),
    )
    return following(
        wanted, name, made.spec.said(), folder, observer, lambda seen: execute(observer=seen)
    )


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _lists(schedule: Any) -> Any:
    if isinstance(schedule, np.ndarray):
        return schedule.tolist()
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        return schedule
    several = (Sequence, np.ndarray)
    return [list(ids) if isinstance(ids, several) else ids for ids in schedule]


def _whole(value: Any, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{field}={value!r} must be a whole number of at least 1")
