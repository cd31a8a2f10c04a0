"""The front door: run, compare and split, with one's own model and data or with named ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import backends, session, task
from fedrift.algorithm import Algorithm
from fedrift.comparison import Comparison, Item, Runner, Watch
from fedrift.data import given, hugging, partition
from fedrift.data.resident import Split
from fedrift.engine import Observer, RoundReport
from fedrift.errors import InputError, unknown
from fedrift.examinations import During, during
from fedrift.experiment import Spec
from fedrift.flat import count
from fedrift.grid import seeds_of, slug
from fedrift.origin import Origin
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
    "faults": None,
    "aggregate": None,
    "privacy": None,
}
"""What decides the result of a run besides the algorithm, with the defaults."""


def split(
    x: Any,
    y: Any,
    scheme: Any = "iid",
    *,
    clients: int = 10,
    seed: int = 0,
    users: Any = None,
    alpha: float | None = None,
    shift: str | None = None,
) -> Split:
    """Divide samples among clients: `fr.split(x, y, "dirichlet:0.1", clients=100)`.

    `scheme` may be a partitioner of flwr_datasets too, which brings its number of clients.
    """
    x_tree, y_tree = given.tensors(x, None, "x"), given.tensors(y, None, "y")
    if count(x_tree) != count(y_tree):
        raise InputError(f"x has {count(x_tree)} samples but y has {count(y_tree)}")
    labels = y_tree.numpy() if isinstance(y_tree, Tensor) and y_tree.dim() == 1 else None
    if labels is None or labels.dtype.kind == "f":
        labels = np.zeros(count(y_tree), dtype=np.int64)  # no classes to skew
    names = None if users is None else np.asarray(users)
    if isinstance(scheme, str):
        how: dict[str, Any] = {"clients": clients, "seed": seed, "users": names, "alpha": alpha}
        made = partition.partition(scheme, labels, **how)
    else:
        made = hugging.partition(scheme, labels, seed)
    if shift is not None:
        if not isinstance(x_tree, Tensor):
            raise InputError(f"shift '{shift}' needs one tensor of images as x")
        x_tree = torch.from_numpy(partition.shift(shift, x_tree.numpy(), made.parts, seed))
    note = scheme if isinstance(scheme, str) else made.name
    return Split(x_tree, y_tree, made.parts, note)


def run(
    algorithm: str | Algorithm[Any, Any],
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
    faults: Sequence[str] | str | None = None,
    aggregate: str | None = None,
    privacy: str | None = None,
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
    made = _settled(algorithm, settings)
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


def compare(
    algorithms: Sequence[str | Algorithm[Any, Any]],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int | str = "auto",
    out: str | Path | None = None,
    watch: Watch | None = None,
    track: str | Sequence[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Run several algorithms on the same task, with the same seeds; other arguments as for `run`.

    For one seed all of them start from the same weights, ask the same cohorts and see the same
    batches, so that differences are the algorithms' own.
    """
    for key in settings:
        if key not in SETTINGS or key == "seed":
            raise unknown("argument of compare", key, [k for k in SETTINGS if k != "seed"])
    numbers = seeds_of(list(seeds) if isinstance(seeds, Sequence) else seeds)
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number")
    folder, wanted = None if out is None else Path(out), tracks(track)
    items: list[Item] = []
    labels = _labels(algorithms)
    for seed in numbers:
        for algorithm, label in zip(algorithms, labels, strict=True):
            place = None if folder is None else folder / "runs" / slug(f"{label}-s{seed}")
            make = partial(_settled, algorithm, {**settings, "seed": seed})
            items.append(Item(label, {}, seed, make, place, settings.get("rounds", 0)))
    number = backends.cores() if workers == "auto" else int(workers)
    return Comparison(Runner(number, watch, wanted).run(items), folder)


def _labels(algorithms: Sequence[str | Algorithm[Any, Any]]) -> list[str]:
    """Texts as they are, objects by their class; a second one of a name gets a number."""
    names = [a if isinstance(a, str) else type(a).__name__.lower() for a in algorithms]
    return [
        f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name
        for i, name in enumerate(names)
    ]


def _settled(algorithm: str | Algorithm[Any, Any], given_: Mapping[str, Any]) -> session.Task:
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
        faults=said["faults"],
        aggregate=said["aggregate"],
        privacy=said["privacy"],
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
    until: int | None = None,
    origin: Origin | None = None,
) -> Result:
    """Run what a spec says: named data, partition and model; a fork begins as its origin."""
    spec.validate()
    wanted, place = tracks(track), out if out is not None else spec.out
    folder = None if place is None else Path(place)
    ready = prepared or prepare(spec)
    made = task.of_spec(spec, ready)
    before = None if origin is None else (task.of_spec(origin.spec, ready), origin.at)
    name = slug(f"{spec.algorithm}-s{spec.seed}" if folder is None else folder.name)
    execute = partial(
        session.execute,
        made,
        until=until,
        origin=before,
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
