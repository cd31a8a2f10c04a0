"""A run with everything settled, from the reader's objects or from a spec."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import build, checks, entrant, losses, model_names, models
from fedrift.algorithm import local_of
from fedrift.converted import DTYPES, Tensors
from fedrift.data import given
from fedrift.data.augment import mixed_loss, parse_augment
from fedrift.data.resident import Split
from fedrift.described import described, given_work, work
from fedrift.errors import InputError
from fedrift.experiment import FIELDS, Spec
from fedrift.flat import count, map_tree, take
from fedrift.participation import participation
from fedrift.prepare import Prepared
from fedrift.problem import Problem, define
from fedrift.session import Task, UserMetric
from fedrift.streams import torch_seed


def of_spec(spec: Spec, ready: Prepared, tensors: Tensors | None = None) -> Task:
    """The task a spec describes, on data that are loaded and divided."""
    data, kind, held = ready.data, DTYPES[spec.dtype], tensors or Tensors()
    scheme = spec.partition if spec.alpha is None else f"{spec.partition}, alpha {spec.alpha:g}"
    floats = model_names.choose(ready.model).attribute is None
    whole = Split(
        held.of(ready.x, kind, floats), held.of(data.y, kind), ready.partition.parts, scheme
    )
    local: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("epochs", "steps", "lr", "momentum", "weight_decay", "clip", "schedule")
    }
    if spec.batch_size is not None:
        local["batch_size"] = None if spec.batch_size == "full" else spec.batch_size
    return settle(
        spec.algorithm,
        models.factory(ready.model, ready.x.shape[1:], data.classes),
        whole,
        (held.of(data.x_test, kind, floats), held.of(data.y_test, kind)),
        local,
        rounds=spec.rounds,
        who={
            "per_round": spec.per_round,
            "fraction": spec.fraction,
            "participants": spec.participants and [list(p) for p in spec.participants],
            "sampling": spec.sampling,
        },
        weights=spec.weights,
        loss=losses.of(spec.loss),
        metrics={},
        augment=spec.augment,
        dtype=kind,
        device=spec.device,
        seed=spec.seed,
        eval_every=spec.eval_every,
        head=spec.head,
        spec=replace(spec, model=ready.model),
        black=tuple(-m / s for m, s in zip(data.mean, data.std, strict=True)),
        remarks=checks.gaps(data.y, data.classes),
    )


def settle(
    algorithm: entrant.Entrant,
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
    black: tuple[float, ...] = (),
    remarks: tuple[str, ...] = (),
) -> Task:
    """Everything both front doors share: checks, the model bound to its data, the algorithm."""
    build.check_numbers(local)
    checks.check_device(device)
    checks.check_kinds(loss, metrics, local.get("schedule"), augment)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number of at least 0")
    chosen = participation(len(held), rounds, **who)
    checks.per_client(local, len(held))
    changes = parse_augment(augment)
    if changes.crop is not None and black:
        changes = replace(changes, crop=replace(changes.crop, black=black))
    changes.check(held.x, held.y)
    objective = loss if loss is not None else nn.functional.cross_entropy
    describe = partial(
        define,
        loss=mixed_loss(objective) if changes.mixup is not None else objective,
        init_seed=torch_seed(seed, "init"),
        population=len(held),
        participation=chosen.share,
        samples=int(held.sizes.sum()),
        is_full=chosen.is_full,
        rounds=rounds,
        dtype=dtype,
        device=device,
        head=head,
        classification=checks.has_labels(held.y),
    )
    labels = partial(checks.check_labels, strict=loss is None)
    problem, held, test, notes = _bind(partial(describe, make), held, test, labels, device)

    def describe_again(make: Callable[[], nn.Module], head: str) -> Problem:
        first = np.concatenate(held.parts)[:2]
        return describe(make, head=head, probe=(take(held.x, first), take(held.y, first)))

    made, name = entrant.settled(algorithm, local, weights, rounds)
    used = local_of(made)
    if used is not None:
        checks.per_client({"epochs": used.epochs, "steps": used.steps}, len(held))
    if used is not None and used.batch_size == 1 and problem.model.has_batch_norm:
        raise InputError("batch_size=1 gives batch normalisation nothing to average; use 2 or more")
    problem = made.adapt(problem, describe_again)
    made = made.prepare(problem)
    about: dict[str, Any] = {"algorithm": name, "rounds": rounds, "seed": seed}
    if spec is None:
        more: dict[str, Any] = {
            "augment": augment,
            "dtype": dtype,
            "device": device,
            "eval_every": eval_every,
        }
        by_hand = given_work(local)
        if not isinstance(algorithm, str):
            by_hand = {**work(used), **by_hand}
            about["algorithm_object"] = entrant.written(made)
        more |= {"clients": len(held), "head": head, "loss": losses.name_of(loss)}
        values = {**about, **by_hand, **who, **more}
        kept = described({k: v for k, v in values.items() if k in FIELDS}, held.note)
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
        metrics={key: checks.measured(key, measure) for key, measure in metrics.items()},
        notes=(*remarks, *notes, *(() if test is not None else (checks.UNSEEN,))),
    )


def _bind(
    describe: Callable[..., Problem],
    held: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    device: str,
) -> tuple[Problem, Split, tuple[Any, Any] | None, tuple[str, ...]]:
    """Try the model on two samples: channels-last images first, then as they came."""
    first = np.concatenate(held.parts)[:2]
    try:
        return *_bound(describe, held, test, check, first, device, given.channels_last), ()
    except InputError:
        if not given.has_images(held.x):
            raise
    notes = ("the model takes no channels-last images: slower convolutions",)
    return *_bound(describe, held, test, check, first, device, given.contiguous), notes


def _bound(
    describe: Callable[..., Problem],
    held: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    first: np.ndarray,
    device: str,
    arrange: Callable[[Any], Any],
) -> tuple[Problem, Split, tuple[Any, Any] | None]:
    def placed(tree: Any) -> Any:
        return map_tree(lambda t: t.to(device), tree)

    data = Split(placed(arrange(held.x)), placed(held.y), held.parts, held.note)
    probe = take(data.x, first), take(data.y, first)
    problem = describe(probe=probe)
    check(problem, data, test)
    _try(problem, probe, "loss")
    if test is None or not count(test[0]):
        return problem, data, None
    test = placed(arrange(test[0])), placed(test[1])
    few = torch.arange(min(2, count(test[0])))
    _try(problem, (take(test[0], few), take(test[1], few)), "test")
    return problem, data, test


def _try(problem: Problem, probe: tuple[Any, Any], field: str) -> None:
    try:
        model = problem.model
        held = model.buffers()
        model.w.copy_(problem.w0)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # broadcast by mistake
            if field == "test":
                model.loss(problem.w0, probe)
            else:
                model.gradients(probe)
        model.load_buffers(held)
    except (RuntimeError, TypeError, ValueError, IndexError, UserWarning) as error:
        labels = probe[1].tolist() if isinstance(probe[1], Tensor) else "…"
        raise InputError(
            f"{field}: no loss can be computed from the model's output for two samples and the "
            f"targets {labels}: {error}{checks.classes_axis(problem, probe[0])}"
        ) from error
