"""The front door: run, with one's own model and data or with named ones."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedrift import backends
from fedrift.comparison import Comparison, Item, Runner, Watch
from fedrift.config.analyses import LivePlan, during
from fedrift.config.grid import seeds_of, slug
from fedrift.config.spec import FIELDS, Spec
from fedrift.core.algorithm import local_of
from fedrift.engine import execute as session
from fedrift.engine import task
from fedrift.engine.build import AlgorithmLike, instance, text_of
from fedrift.engine.callbacks import Observer, RoundReport
from fedrift.engine.plan import UserMetric
from fedrift.engine.prepare import Prepared, prepare
from fedrift.engine.result import Result
from fedrift.engine.task import where, work
from fedrift.engine.trackers import following, tracks
from fedrift.errors import InputError, unknown
from fedrift.storage.fork import Origin


def run(
    algorithm: AlgorithmLike,
    *,
    model: str | Callable[[], nn.Module] | nn.Module,
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
    batch_size: int | str | None = "default",
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    schedule: str | None = None,
    optimizer: str | None = None,
    weights: str | None = None,
    augment: Sequence[str] | str | None = None,
    faults: Sequence[str] | str | None = None,
    aggregate: str | None = None,
    privacy: str | None = None,
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    stack: str = "auto",
    workers: int | str = "auto",
    backend: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    eval_every: int = 1,
    head: str | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    observer: Observer | None = None,
    track: str | Sequence[str] | None = None,
    analyse: str | LivePlan | None = None,
    profile: bool = False,
) -> Result:
    """Simulate a federation and return its `Result`.

    algorithm: a text such as "fedprox:mu=0.3" or "my_module:MyAlgorithm,mu=0.3", an `Algorithm`
        object or its class. Local settings below fill an object that was given no `Local`.
    model: a function that returns a module (a class will do), a module, which is copied, or the
        name of one of ours such as "cnn"; it gets as many outputs as there are labels.
    clients: what `split` returns, or a list with one (x, y) or map-style Dataset per client. x may
        be a tuple of tensors (positional arguments of the model) or a dict (keyword arguments).
    test: (x, y) or a Dataset; without it nothing is evaluated.
    loss: f(output, target) → mean over the batch; cross-entropy of class labels unless given.
    metrics: {name: f(output, target)} → one number, on the whole test set at once.
    rounds, eval_every: how many; every how many is evaluated, and the last.
    per_round, fraction: clients in a round, as a number or a share; all unless given.
    sampling: "fixed" draws that many, "bernoulli" each with that probability, "cyclic" in turns.
    participants: instead of these, exactly who: one list of client numbers per round.
    epochs or steps: local work: a number, a list with one per client, or "uniform:2,5", drawn.
    batch_size: "full" or None takes all of a client's samples at once; 64 unless given.
    lr, momentum, weight_decay, clip: of the local steps; clip is the largest norm of one.
    schedule: of lr over rounds: "exp:0.9", "step:10,factor=0.5" or "cosine"; with ",per=step" (or
        "cosine:per=step") over the local steps of each visit.
    optimizer: of the local steps, by torch's name and with its options and defaults: "sgd", "adam",
        "adamw:betas=0.9|0.95,eps=1e-6", "adagrad", "rmsprop:momentum=0.5"; the run's lr, momentum
        and weight_decay are its own. What it remembers begins anew at every visit.
    weights: how replies are averaged: "samples" or "uniform"; the algorithm's own unless given.
    augment: such as ["crop:4", "flip"].
    faults: such as ["dropout:0.1", "stragglers:0.3,late=partial", "corrupt:0.2"].
    aggregate: in place of the mean: "median", "trimmed:0.1", "krum:2" or "multikrum:2".
    privacy: clips and noises what clients send: "gaussian:NOISE,clip=LENGTH,delta=1e-5".
    dtype, device: "float32" or "float64"; "cpu", "cuda" or "mps".
    stack: small models are trained many clients at once: "auto" where it pays, "off", or "on".
    workers, backend: processes that train clients, 0 for none; the bits do not depend on them.
    seed: fixes every random choice.
    out: a folder for the run; one that holds the beginning of the same run is continued.
    head: name of the last layer, for algorithms that need to know it.
    on_round: f(RoundReport), called after every round; the run stops if it returns True.
    observer: an object with started(plan) and finished_round(report).
    track: "tensorboard", "mlflow", or a list of these.
    analyse: what to measure on the way, such as "every=10,what=drift,classes"; needs `out`.
    profile: note where the time of every round goes, in `Result.profile`.
    """
    settings = {key: value for key, value in locals().items() if key in TASK}
    if on_round is not None and not callable(on_round):
        raise InputError(f"on_round={on_round!r} must be a function of a RoundReport")
    wanted, folder = tracks(track), None if out is None else Path(out)
    made = task_of(algorithm, settings)
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
        profile=profile,
    )
    return following(
        wanted, name, made.spec.to_dict(), folder, observer, lambda seen: execute(observer=seen)
    )


def _appointed(
    analyse: str | LivePlan | None, out: str | Path | None, observer: Observer | None = None
) -> session.Appoint | None:
    """Who measures during the run; what is found goes to the run's folder."""
    if analyse is None:
        return None
    if out is None:
        raise InputError(f"analyse='{analyse}' needs a folder for what it finds; give out")
    from fedrift.analysis.live import appointed

    plan = during(analyse) if isinstance(analyse, str) else analyse
    return appointed(plan, getattr(observer, "measuring", None))


OBJECTS = ("model", "clients", "test", "loss", "metrics")
TASK = tuple(
    key
    for key in inspect.signature(run).parameters
    if key in (*FIELDS, *OBJECTS) and key not in ("algorithm", "workers", "backend", "out")
)
"""The arguments of `run` that decide its result, besides the algorithm."""


def task_of(algorithm: AlgorithmLike, settings: Mapping[str, Any]) -> session.Task:
    """What these arguments of `run` describe."""
    for key in ("model", "clients", "rounds"):
        if settings.get(key) is None:
            raise InputError(f"{key} is missing")
    objects = {key: value for key, value in settings.items() if key in OBJECTS}
    said = {key: value for key, value in settings.items() if key not in OBJECTS}
    spec = task.spec_from_call(algorithm, said)
    return task.make_task(spec, task.objects_from_call(algorithm, spec.dtype, **objects))


def run_spec(
    spec: Spec,
    *,
    observer: Observer | None = None,
    out: str | Path | None = None,
    prepared: Prepared | None = None,
    track: str | Sequence[str] | None = None,
    analyse: str | LivePlan | None = None,
    until: int | None = None,
    origin: Origin | None = None,
    profile: bool = False,
) -> Result:
    """Run what a spec says: named data, partition and model; a fork begins as its origin."""
    spec.validate()
    wanted, place = tracks(track), out if out is not None else spec.out
    folder = None if place is None else Path(place)
    ready = prepared or prepare(spec)
    made = task.task_from_spec(spec, ready)
    before = None if origin is None else (task.task_from_spec(origin.spec, ready), origin.at)
    name = slug(f"{spec.algorithm}-s{spec.seed}" if folder is None else folder.name)
    execute = partial(
        session.execute,
        made,
        until=until,
        origin=before,
        workers=spec.workers,
        backend=spec.backend,
        out=folder,
        appoint=_appointed(analyse, folder, observer),
        profile=profile,
    )
    return following(
        wanted, name, made.spec.to_dict(), folder, observer, lambda seen: execute(observer=seen)
    )


# Several algorithms on one task: `fr.compare`.

LONGEST = 60  # characters of a label in the name of a folder


def compare(
    algorithms: AlgorithmLike | Sequence[AlgorithmLike] | Mapping[str, AlgorithmLike],
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
    batches, so that differences are the algorithms' own. There are as many runs as algorithms
    times seeds, each as long as one `run`; `workers` of them are under way at a time.

    algorithms: texts, objects or classes; `{label: algorithm}` says what each is called. Objects
        of one class are told apart by the fields in which they differ.
    seeds: how many (0, 1, …), or which.
    out: a folder for the runs; the same call goes on where it was stopped.
    watch: is told when runs start, finish a round and end.
    """
    for key in settings:
        if key not in TASK or key == "seed":
            raise unknown("argument of compare", key, [k for k in TASK if k != "seed"])
    numbers = seeds_of(list(seeds) if isinstance(seeds, Sequence) else seeds)
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number")
    folder, wanted = None if out is None else Path(out), tracks(track)
    items: list[Item] = []
    entrants = named(algorithms)
    places = _places(list(entrants))
    for seed in numbers:
        for label, algorithm in entrants.items():
            place = None if folder is None else folder / "runs" / f"{places[label]}-s{seed}"
            make = partial(task_of, algorithm, {**settings, "seed": seed})
            shown = "" if label == algorithm else label
            items.append(Item(label, {}, seed, make, place, settings.get("rounds", 0), shown))
    number = backends.cores() if workers == "auto" else int(workers)
    return Comparison(Runner(number, watch, wanted).run(items), folder)


def named(algorithms: Any) -> dict[str, AlgorithmLike]:
    """Every algorithm under a label of its own."""
    if isinstance(algorithms, Mapping):
        for label, one in algorithms.items():
            if not isinstance(label, str) or not label.strip():
                raise InputError(f"algorithms: the label {label!r} must be a text")
            _ = one if isinstance(one, str) else instance(one)
        found: dict[str, AlgorithmLike] = dict(algorithms)  # type: ignore[reportUnknownArgumentType]
    else:
        listed = algorithms if isinstance(algorithms, (list, tuple)) else [algorithms]
        made = [one if isinstance(one, str) else instance(one) for one in listed]
        found = dict(zip(_labels(made), made, strict=True))
    if not found:
        raise InputError("algorithms is empty: name at least one")
    return found


def _labels(algorithms: Sequence[Any]) -> list[str]:
    """Texts as they are, objects by their class and options, then by the local work in which they
    differ; a second one of a name gets a number."""
    texts = [a if isinstance(a, str) else text_of(a) for a in algorithms]
    works = [{} if isinstance(a, str) else work(local_of(a)) for a in algorithms]
    names: list[str] = []
    for i, (text, mine) in enumerate(zip(texts, works, strict=True)):
        rivals = [works[j] for j, other in enumerate(texts) if other == text and j != i]
        own = [k for k, v in mine.items() if any(r and r.get(k) != v for r in rivals)]
        if own:
            text += f" ({', '.join(f'{k} {mine[k]}' for k in own)})"
        names.append(text)
    return [
        f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name
        for i, name in enumerate(names)
    ]


def _places(labels: Sequence[str]) -> dict[str, str]:
    """A folder for each: readable, and with a digest where that alone would not tell them apart."""
    short = [slug(label) for label in labels]
    places: dict[str, str] = {}
    for label, name in zip(labels, short, strict=True):
        digest = hashlib.sha256(label.encode()).hexdigest()[:8]
        is_plain = short.count(name) == 1 and len(label) <= LONGEST
        places[label] = name if is_plain else f"{name[:LONGEST]}-{digest}"
    return places
