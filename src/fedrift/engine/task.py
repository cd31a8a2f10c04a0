"""A run with everything settled, from the reader's objects or from a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import models
from fedrift.backends.stacking.scheduler import scheduler_for
from fedrift.config import models as model_names
from fedrift.config.spec import FIELDS, Spec
from fedrift.core.algorithm import local_of
from fedrift.core.faults import parse_faults
from fedrift.core.flat import copied, map_tree, take
from fedrift.core.local import Draw, Local
from fedrift.core.optim import SGD, Exponential, Staircase
from fedrift.core.problem import Problem, define
from fedrift.core.sampling import participation
from fedrift.data import arrays
from fedrift.data.arrays import SHIFTED
from fedrift.data.augment import mixed_loss, parse_augment
from fedrift.data.split import Split
from fedrift.engine import aggregation as guard
from fedrift.engine import build, validate
from fedrift.engine.plan import Task, UserMetric
from fedrift.engine.prepare import Prepared
from fedrift.engine.recorder import IN_PYTHON
from fedrift.engine.validate import bind
from fedrift.errors import InputError
from fedrift.models import losses
from fedrift.rng import torch_seed

# What users give, as torch has it: arrays as tensors, names as dtypes, modules as factories.

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Tensors:
    """Arrays as tensors, converted once however many runs use them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, torch.dtype, bool], tuple[np.ndarray, Any]] = {}

    def of(self, array: np.ndarray, kind: torch.dtype, floats: bool = False) -> Any:
        """In the run's dtype; whole numbers stay what they are unless `floats` are wanted."""
        key = (id(array), kind, floats)
        if key not in self._held:
            tensor = arrays.tensors(torch.from_numpy(array), kind, "data")
            tensor = tensor.to(kind) if floats else tensor
            self._held[key] = (array, arrays.channels_last(tensor))
        return self._held[key][1]


def factory_of(
    model: str | Callable[[], nn.Module] | nn.Module, held: Split, test: tuple[Any, Any] | None
) -> Callable[[], nn.Module]:
    """What makes the model; one by name is fitted to the samples and to the labels that occur."""
    if isinstance(model, str):
        targets = [held.y] if test is None else [held.y, test[1]]
        if not isinstance(held.x, Tensor) or not all(map(_are_labels, targets)):
            raise InputError(
                f"model='{model}': a model by name takes arrays of samples and of whole numbers "
                "as their labels; give a module or a function that returns one"
            )
        classes = max(int(y.max()) for y in targets) + 1
        return models.factory(model, tuple(held.x.shape[1:]), classes)
    if isinstance(model, nn.Module):
        return partial(copied, model)
    if not callable(model):
        raise InputError(
            f"model: {model!r} must be a module, a function that returns one, or a name"
        )
    return model


def _are_labels(y: Any) -> bool:
    is_list = isinstance(y, Tensor) and y.dim() == 1 and len(y) > 0
    return is_list and not y.is_floating_point()


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} must be 'float32' or 'float64'")
    return DTYPES[dtype]  # type: ignore[index]


def plain(value: Any) -> Any:
    """numpy's numbers as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def lists(schedule: Any) -> Any:
    """A schedule of participants as plain lists."""
    if isinstance(schedule, (np.ndarray, Tensor)):
        return schedule.tolist()
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        return schedule
    return [_list(ids) for ids in schedule]


def _list(ids: Any) -> Any:
    if isinstance(ids, (np.ndarray, Tensor)):
        return ids.tolist()
    return (
        [i.item() if isinstance(i, Tensor) else i for i in ids]
        if isinstance(ids, Sequence)
        else ids
    )


# What the spec of a run can say of a call in Python, so that reports and folders know it.

MOST_PARTICIPANTS = 20_000  # numbers; a longer schedule is left to the call


def spec_from_call(values: Mapping[str, Any], division: str) -> Spec:
    """A spec with every value that one can hold; functions and arrays are left to the call.

    `division` is the note of the clients' split; empty for clients that were given one by one.
    """
    scheme, _, shift = division.partition(SHIFTED)
    divided = {"partition": scheme or IN_PYTHON["data"], "shift": shift or None}
    said: dict[str, Any] = {}
    for key, value in {**values, **divided}.items():
        if value is None or value == ():
            continue
        try:
            said[key] = FIELDS[key].read(_plain(value, key), key)
        except InputError:
            continue
    return Spec.of(said | IN_PYTHON)


def where(spec: Spec, workers: object, backend: object) -> Spec:
    """The spec with the place where the run is computed, if a spec can name it."""
    given = {"workers": workers, "backend": backend}
    try:
        return replace(spec, **{k: FIELDS[k].read(v, k) for k, v in given.items()})  # type: ignore[arg-type]
    except InputError:  # "wire", or a mistake that the run names
        return spec


def _plain(value: Any, key: str) -> Any:
    if key in ("augment", "faults") and isinstance(value, str):
        return [value]
    if key == "dtype":
        return str(value).removeprefix("torch.")
    if key == "participants" and sum(map(len, value)) > MOST_PARTICIPANTS:
        raise InputError(f"participants holds more than {MOST_PARTICIPANTS} numbers")
    if isinstance(value, Draw):
        return f"uniform:{value.low},{value.high}"
    return list(value) if isinstance(value, tuple) else value


def given_work(local: Mapping[str, Any]) -> dict[str, Any]:
    """The local work that the call names; no batch size means all of the client's samples."""
    whole = {"batch_size": "full"} if local.get("batch_size", 0) is None else {}
    return {key: value for key, value in {**local, **whole}.items() if value is not None}


def work(local: Local | None) -> dict[str, Any]:
    """The local work of an algorithm that was given as an object."""
    if local is None:
        return {}
    optimizer = local.optimizer
    decays = (
        {k: getattr(optimizer, k) or None for k in ("momentum", "weight_decay")}
        if isinstance(optimizer, SGD)
        else {}
    )
    return {
        "epochs": local.epochs if local.steps is None else None,
        "steps": local.steps,
        "batch_size": "full" if local.batch_size is None else local.batch_size,
        **_rate(local.lr),
        "clip": local.clip,
        **decays,
    }


def _rate(lr: Any) -> dict[str, Any]:
    """The rate and its schedule, where a text can say it."""
    if isinstance(lr, Exponential):
        return {"lr": lr.lr, "schedule": f"exp:{lr.factor!r}"}
    if isinstance(lr, Staircase):
        return {"lr": lr.lr, "schedule": f"step:{lr.every},factor={lr.factor!r}"}
    return {"lr": lr} if isinstance(lr, (int, float)) else {}


def task_from_spec(spec: Spec, ready: Prepared, tensors: Tensors | None = None) -> Task:
    """The task a spec describes, on data that are loaded and divided."""
    data, kind, held = ready.data, DTYPES[spec.dtype], tensors or Tensors()
    scheme = spec.partition if spec.alpha is None else f"{spec.partition}, alpha {spec.alpha:g}"
    floats = model_names.choose_model(ready.model).attribute is None
    x, y, lazy = held.of(ready.x, kind, floats), held.of(data.y, kind), data.generated
    whole = Split(x, y, ready.partition.parts, scheme)
    if lazy is not None:
        whole = Split(x, y, (), scheme, lazy.make, lazy.sizes)
    test = held.of(data.x_test, kind, floats), held.of(data.y_test, kind)
    black = tuple(-m / s for m, s in zip(data.mean, data.std, strict=True))
    was = (data.mean, data.std) if data.mean else None
    make = models.factory(ready.model, ready.x.shape[1:], data.classes, was)
    remarks = validate.gaps(data.y, data.classes)
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
    return make_task(
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
        loss=losses.loss_by_name(spec.loss),
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


def make_task(
    algorithm: build.AlgorithmLike,
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
    validate.check_device(device)
    chosen_stack = validate.stack_of(stack)
    validate.check_kinds(loss, metrics, local.get("schedule"), augment)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r} must be a whole number of at least 0")
    chosen = participation(len(held), rounds, **who)
    validate.per_client(local, len(held))
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
        classification=validate.has_labels(held.y),
    )
    labels = partial(validate.check_labels, strict=loss is None)
    problem, held, test, notes = bind(partial(describe, make), held, test, labels, device)

    def describe_again(make: Callable[[], nn.Module], head: str) -> Problem:
        first = held.first(2)
        probe = map_tree(lambda t: t.cpu(), (take(held.x, first), take(held.y, first)))
        return describe(make, head=head, probe=probe)

    made, name = build.build_algorithm(algorithm, local, weights, rounds)
    used = local_of(made)
    if used is not None:
        validate.per_client({"epochs": used.epochs, "steps": used.steps}, len(held))
    if used is not None and used.batch_size == 1 and problem.model.has_batch_norm:
        raise InputError("batch_size=1 gives batch normalisation nothing to average; use 2 or more")
    problem = made.adapt(problem, describe_again)
    made = made.prepare(problem)
    if problem.stack == "on":
        scheduler_for(problem)  # refuses a model that is to be stacked and cannot be
    trouble = parse_faults(faults)
    if trouble is not None:
        guard.check_faults(trouble, made)
    chosen, aggregation, promise = guard.check_protection(
        aggregate, privacy, made, problem, chosen, rounds
    )
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
            about["algorithm_object"] = build.written(made)
        more |= {"clients": len(held), "head": head, "loss": losses.name_of(loss)}
        more |= {"faults": faults, "aggregate": aggregate, "privacy": privacy}
        values = {**about, **by_hand, **who, **more}
        kept = spec_from_call({k: v for k, v in values.items() if k in FIELDS}, held.note)
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
        metrics={key: validate.measured(key, measure) for key, measure in metrics.items()},
        notes=(*remarks, *notes, *(() if test is not None else (validate.UNSEEN,))),
        faults=trouble,
        aggregation=aggregation,
    )
