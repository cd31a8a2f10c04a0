"""A run with everything settled, from the reader's objects or from a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedrift import build, checks, entrant, guard, losses, model_names, models
from fedrift.algorithm import local_of
from fedrift.binding import bind
from fedrift.converted import DTYPES, Tensors
from fedrift.data.augment import mixed_loss, parse_augment
from fedrift.data.resident import Split
from fedrift.described import described, given_work, work
from fedrift.errors import InputError
from fedrift.experiment import FIELDS, Spec
from fedrift.faults import parse_faults
from fedrift.flat import map_tree, take
from fedrift.participation import participation
from fedrift.prepare import Prepared
from fedrift.problem import Problem, define
from fedrift.session import Task, UserMetric
from fedrift.streams import torch_seed
from fedrift.together import together


def of_spec(spec: Spec, ready: Prepared, tensors: Tensors | None = None) -> Task:
    """The task a spec describes, on data that are loaded and divided."""
    data, kind, held = ready.data, DTYPES[spec.dtype], tensors or Tensors()
    scheme = spec.partition if spec.alpha is None else f"{spec.partition}, alpha {spec.alpha:g}"
    floats = model_names.choose(ready.model).attribute is None
    x, y, lazy = held.of(ready.x, kind, floats), held.of(data.y, kind), data.generated
    whole = Split(x, y, ready.partition.parts, scheme)
    if lazy is not None:
        whole = Split(x, y, (), scheme, lazy.make, lazy.sizes)
    test = held.of(data.x_test, kind, floats), held.of(data.y_test, kind)
    black = tuple(-m / s for m, s in zip(data.mean, data.std, strict=True))
    was = (data.mean, data.std) if data.mean else None
    make = models.factory(ready.model, ready.x.shape[1:], data.classes, was)
    remarks = checks.gaps(data.y, data.classes)
    return of_split(replace(spec, model=ready.model), make, whole, test, black, remarks)


def of_split(
    spec: Spec,
    make: Callable[[], nn.Module],
    whole: Split,
    test: tuple[Any, Any] | None,
    black: tuple[float, ...],
    remarks: tuple[str, ...] = (),
) -> Task:
    """The task a spec describes, on clients' data that are there."""
    local: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("epochs", "steps", "lr", "momentum", "weight_decay", "clip", "schedule")
    }
    if spec.batch_size is not None:
        local["batch_size"] = None if spec.batch_size == "full" else spec.batch_size
    return settle(
        spec.algorithm,
        make,
        whole,
        test,
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
        dtype=DTYPES[spec.dtype],
        device=spec.device,
        stack=spec.stack,
        seed=spec.seed,
        eval_every=spec.eval_every,
        head=spec.head,
        faults=spec.faults,
        aggregate=spec.aggregate,
        privacy=spec.privacy,
        spec=spec,
        black=black,
        remarks=remarks,
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
    stack: str = "auto",
    faults: Sequence[str] | str | None = None,
    aggregate: str | None = None,
    privacy: str | None = None,
    black: tuple[float, ...] = (),
    remarks: tuple[str, ...] = (),
) -> Task:
    """Everything both front doors share: checks, the model bound to its data, the algorithm."""
    build.check_numbers(local)
    checks.check_device(device)
    chosen_stack = checks.stack_of(stack)
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
        stack=chosen_stack,
        head=head,
        classification=checks.has_labels(held.y),
    )
    labels = partial(checks.check_labels, strict=loss is None)
    problem, held, test, notes = bind(partial(describe, make), held, test, labels, device)

    def describe_again(make: Callable[[], nn.Module], head: str) -> Problem:
        first = held.first(2)
        probe = map_tree(lambda t: t.cpu(), (take(held.x, first), take(held.y, first)))
        return describe(make, head=head, probe=probe)

    made, name = entrant.settled(algorithm, local, weights, rounds)
    used = local_of(made)
    if used is not None:
        checks.per_client({"epochs": used.epochs, "steps": used.steps}, len(held))
    if used is not None and used.batch_size == 1 and problem.model.has_batch_norm:
        raise InputError("batch_size=1 gives batch normalisation nothing to average; use 2 or more")
    problem = made.adapt(problem, describe_again)
    made = made.prepare(problem)
    if problem.stack == "on":
        together(problem)  # refuses a model that is to be stacked and cannot be
    trouble = parse_faults(faults)
    if trouble is not None:
        guard.check_faults(trouble, made)
    chosen, aggregation, promise = guard.settle(aggregate, privacy, made, problem, chosen, rounds)
    about: dict[str, Any] = {"algorithm": name, "rounds": rounds, "seed": seed}
    if promise is not None:
        about |= {"privacy": privacy, "epsilon": promise.epsilon, "delta": promise.delta}
        notes = (*notes, f"privacy: {promise}")
    if spec is None:
        more: dict[str, Any] = {
            "augment": augment,
            "dtype": dtype,
            "device": device,
            "stack": stack,
            "eval_every": eval_every,
        }
        by_hand = given_work(local)
        if not isinstance(algorithm, str):
            by_hand = {**work(used), **by_hand}
            about["algorithm_object"] = entrant.written(made)
        more |= {"clients": len(held), "head": head, "loss": losses.name_of(loss)}
        more |= {"faults": faults, "aggregate": aggregate, "privacy": privacy}
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
        faults=trouble,
        aggregation=aggregation,
    )
