"""The front door: run and split, with the reader's own model and data or with named ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import build, keeping, models, session
from fedrift.algorithm import Algorithm
from fedrift.data import given, partition
from fedrift.data.augment import mixed_loss, parse_augment
from fedrift.data.resident import Split
from fedrift.engine import Observer, RoundReport
from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.flat import count, take
from fedrift.participation import participation
from fedrift.prepare import Prepared, prepare
from fedrift.problem import Problem, define
from fedrift.result import Result
from fedrift.session import Task, UserMetric
from fedrift.streams import torch_seed

_UNSAID: Any = object()
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def split(
    x: Any,
    y: Any,
    scheme: str = "iid",
    *,
    clients: int = 10,
    seed: int = 0,
    users: Any = None,
    alpha: float | None = None,
    shift: str | None = None,
) -> Split:
    """Divide samples among clients: `fr.split(x, y, "dirichlet:0.1", clients=100)`."""
    x_tree = given.tensors(x, torch.get_default_dtype(), "x")
    y_tree = given.tensors(y, torch.get_default_dtype(), "y")
    if count(x_tree) != count(y_tree):
        raise InputError(f"x has {count(x_tree)} samples but y has {count(y_tree)}")
    labels = y_tree.numpy() if isinstance(y_tree, Tensor) and y_tree.dim() == 1 else None
    if labels is None or labels.dtype.kind == "f":
        labels = np.zeros(count(y_tree), dtype=np.int64)  # no classes to skew
    names = None if users is None else np.asarray(users)
    made = partition.partition(scheme, labels, clients=clients, seed=seed, users=names, alpha=alpha)
    if shift is not None:
        if not isinstance(x_tree, Tensor):
            raise InputError(f"shift '{shift}' needs one tensor of images as x")
        x_tree = torch.from_numpy(partition.shift(shift, x_tree.numpy(), made.parts, seed))
    return Split(x_tree, y_tree, made.parts, scheme)


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
) -> Result:
    """Simulate a federation and return its `Result`; every argument is described in the README."""
    local = {
        "epochs": epochs,
        "steps": steps,
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "clip": clip,
        "schedule": schedule,
    } | ({} if batch_size is _UNSAID else {"batch_size": batch_size})
    _whole(rounds, "rounds")
    _whole(eval_every, "eval_every")
    kind = _dtype(dtype)
    held = given.gather(clients, kind)
    task = _task(
        algorithm,
        _factory(model),
        held,
        None if test is None else given.pair(test, kind, "test"),
        local,
        rounds=rounds,
        who={
            "per_round": per_round,
            "fraction": fraction,
            "participants": None if participants is None else [list(p) for p in participants],
            "sampling": sampling,
        },
        weights=weights,
        loss=loss,
        metrics=metrics or {},
        augment=augment,
        dtype=kind,
        device=device,
        seed=seed,
        eval_every=eval_every,
        head=head,
        spec=None,
    )
    folder = None if out is None else Path(out)
    return session.execute(
        task, workers=workers, backend=backend, out=folder, observer=observer, on_round=on_round
    )


def run_spec(
    spec: Spec,
    *,
    observer: Observer | None = None,
    out: str | Path | None = None,
    prepared: Prepared | None = None,
) -> Result:
    """Run what a spec says: named data, partition and model."""
    spec.validate()
    folder = out if out is not None else spec.out
    ready = prepared or prepare(spec)
    data, kind = ready.data, DTYPES[spec.dtype]
    whole = Split(torch.from_numpy(ready.x), torch.from_numpy(data.y), ready.partition.parts)
    local: dict[str, Any] = {
        name: getattr(spec, name) for name in ("epochs", "steps", "lr", "momentum", "clip")
    } | {"weight_decay": spec.weight_decay, "schedule": spec.schedule}
    if spec.batch_size is not None:
        local["batch_size"] = None if spec.batch_size == "full" else spec.batch_size
    task = _task(
        spec.algorithm,
        models.factory(ready.model, ready.x.shape[1:], data.classes),
        given.gather(whole, kind),
        given.pair((data.x_test, data.y_test), kind, "test"),
        local,
        rounds=spec.rounds,
        who={
            "per_round": spec.per_round,
            "fraction": spec.fraction,
            "participants": None
            if spec.participants is None
            else list(map(list, spec.participants)),
            "sampling": spec.sampling,
        },
        weights=spec.weights,
        loss=None,
        metrics={},
        augment=spec.augment,
        dtype=kind,
        device=spec.device,
        seed=spec.seed,
        eval_every=spec.eval_every,
        head=spec.head,
        spec=replace(spec, model=ready.model),
    )
    return session.execute(
        task,
        workers=spec.workers,
        backend=spec.backend,
        out=None if folder is None else Path(folder),
        observer=observer,
    )


def _task(
    algorithm: str | Algorithm[Any, Any],
    make: Callable[[], nn.Module],
    held: Split,
    test: tuple[Any, Any] | None,
    local: Mapping[str, Any],
    *,
    rounds: int,
    who: Mapping[str, Any],
    weights: str | None,
    loss: Callable[[Any, Any], Tensor] | None,
    metrics: Mapping[str, UserMetric],
    augment: Sequence[str] | str | None,
    dtype: torch.dtype,
    device: str,
    seed: int,
    eval_every: int,
    head: str | None,
    spec: Spec | None,
) -> Task:
    """Everything both front doors share: checks, the model bound to its data, the algorithm."""
    build.check_numbers(local)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number of at least 0")
    chosen = participation(len(held), rounds, **who)
    _per_client(local, len(held))
    changes = parse_augment(augment)
    changes.check(held.x, held.y)
    objective = loss if loss is not None else nn.functional.cross_entropy
    describe = partial(
        define,
        loss=mixed_loss(objective) if changes.mixup is not None else objective,
        init_seed=torch_seed(seed, "init"),
        population=len(held),
        participation=chosen.share,
        rounds=rounds,
        dtype=dtype,
        device=device,
        head=head,
        classification=_has_labels(held.y),
    )
    problem, held, test, notes = _bind(partial(describe, make), held, test)

    def describe_again(make: Callable[[], nn.Module], head: str) -> Problem:
        first = np.concatenate(held.parts)[:2]
        return describe(make, head=head, probe=(take(held.x, first), take(held.y, first)))

    _check_labels(problem, held, test, loss is None)
    if isinstance(algorithm, Algorithm):
        said = [k for k, v in local.items() if v is not None] + (["weights"] if weights else [])
        if said:
            raise InputError(
                f"{said[0]}: an Algorithm object carries its own local settings; set it there"
            )
        made, name = algorithm, type(algorithm).__name__.lower()
    else:
        named = Spec(algorithm=algorithm, weights=weights).algorithm_named
        made, name = build.build(named, local, rounds), str(named)
    problem = made.adapt(problem, describe_again)
    made = made.prepare(problem)
    about = {"algorithm": name, "rounds": rounds, "seed": seed}
    if spec is None:
        kept = Spec.of({"algorithm": name, "rounds": rounds, "seed": seed} | keeping.IN_PYTHON)
    else:
        kept = spec
        about |= {k: getattr(spec, k) for k in ("data", "partition", "alpha", "model")}
    return Task(
        algorithm=made,
        problem=problem,
        split=held,
        test=test,
        participation=chosen,
        rounds=rounds,
        seed=seed,
        eval_every=eval_every,
        spec=kept,
        about=about,
        augment=changes if changes else None,
        metrics=metrics,
        notes=notes,
    )


def _bind(
    describe: Callable[..., Problem], held: Split, test: tuple[Any, Any] | None
) -> tuple[Problem, Split, tuple[Any, Any] | None, tuple[str, ...]]:
    """Try the model on two samples: channels-last images first, then as they came."""
    fast = Split(given.channels_last(held.x), held.y, held.parts, held.note)
    first = np.concatenate(held.parts)[:2]
    attempts = [(fast, True), (held, False)] if fast.x is not held.x else [(held, False)]
    for attempt, (data, is_fast) in enumerate(attempts):
        probe = take(data.x, first), take(data.y, first)
        try:
            problem = describe(probe=probe)
            _try(problem, probe)
        except InputError:
            if attempt + 1 == len(attempts):
                raise
            continue
        if test is not None and is_fast:
            test = given.channels_last(test[0]), test[1]
        slow = len(attempts) == 2 and not is_fast
        notes = (
            ("the model takes no channels-last images: convolutions are slower",) if slow else ()
        )
        return problem, data, test, notes
    raise AssertionError("unreachable")


def _try(problem: Problem, probe: tuple[Any, Any]) -> None:
    try:
        model = problem.model
        held = model.buffers()
        model.w.copy_(problem.w0)
        model.gradients(probe)
        model.load_buffers(held)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        labels = probe[1].tolist() if isinstance(probe[1], Tensor) else "…"
        raise InputError(
            f"loss: cannot be computed for the model's output and the targets {labels}: {error}"
        ) from error


def _has_labels(y: Any) -> bool:
    return isinstance(y, Tensor) and not y.is_floating_point()


def _check_labels(
    problem: Problem, held: Split, test: tuple[Any, Any] | None, strict: bool
) -> None:
    if problem.classes is None or not strict:
        return
    for name, y in (("clients", held.y), ("test", None if test is None else test[1])):
        if isinstance(y, Tensor) and y.numel() and not y.is_floating_point():
            low, high = int(y.min()), int(y.max())
            if high >= problem.classes or (low < 0 and low != -100):
                wrong = high if high >= problem.classes else low
                raise InputError(
                    f"{name}: label {wrong} is outside the model's {problem.classes} classes "
                    f"(0 to {problem.classes - 1})"
                )


def _per_client(local: Mapping[str, Any], clients: int) -> None:
    for name in ("epochs", "steps"):
        value = local.get(name)
        if isinstance(value, (list, tuple)) and len(value) != clients:
            raise InputError(f"{name} lists {len(value)} entries for {clients} clients; one each")


def _factory(model: Callable[[], nn.Module] | nn.Module) -> Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return partial(copy.deepcopy, model)
    if not callable(model):
        raise InputError(f"model: {model!r} must be a module or a function that returns one")
    return model


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} must be 'float32' or 'float64'")
    return DTYPES[dtype]  # type: ignore[index]


def _whole(value: Any, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{field}={value!r} must be a whole number of at least 1")
