"""The models that are put together, by `merge` or behind a router: read, given data, held against
each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedrift.analysis.saved import Loader, final_model
from fedrift.config import algorithms
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.flat import Batch, Vec, count, take
from fedrift.core.isolation import drawing_alone
from fedrift.core.problem import Problem
from fedrift.data import arrays
from fedrift.data.augment import plain_loss
from fedrift.engine import build, check_objects
from fedrift.engine.identity import known_parts, model_part
from fedrift.engine.prepare import load
from fedrift.engine.result import Result
from fedrift.errors import InputError
from fedrift.report.saved import SavedRun
from fedrift.rng import generator
from fedrift.storage import run_record


@dataclass(frozen=True, eq=False)
class Specialist:
    """One of the models that are merged, its data to look at, and the test of its own task."""

    name: str
    problem: Problem
    w: Vec
    buffers: tuple[Tensor, ...] = ()
    frozen: Mapping[str, Tensor] | None = None
    data: Batch | None = None
    test: Batch | None = None
    alphabet: tuple[str, ...] = ()
    """What the tokens of its text stand for; empty for other data."""
    is_start_known: bool = True
    """Whether it began with the start of its problem, which may be that of a result beside it."""

    def some(self, samples: int, seed: int) -> Batch:
        """Some of its data, drawn once."""
        if self.data is None:
            raise InputError(f"merge: '{self.name}' has no data to look at; give data=…")
        x, y = self.data
        chosen = generator(seed, "merge").permutation(count(x))[:samples]
        return take(x, torch.from_numpy(np.sort(chosen))), take(
            y, torch.from_numpy(np.sort(chosen))
        )


def check_models(models: Any, who: str) -> None:
    """Refuses what is no list of models."""
    kinds = "run folders, results of fr.run or what fr.load returns"
    if isinstance(models, str) or not isinstance(models, Sequence):
        raise InputError(
            f"{who}: models must be a list of {kinds}, such as [one, two], not one "
            f"{type(models).__name__}"
        )
    if len(models) < 1:  # type: ignore[reportUnknownArgumentType]
        raise InputError(f"{who}: no model is given; name run folders or give results")
    for i, model in enumerate(models):  # type: ignore[reportUnknownArgumentType]
        if not isinstance(model, (str, Path, Result, SavedRun)):
            name = type(model).__name__  # type: ignore[reportUnknownArgumentType]
            raise InputError(f"{who}: models[{i}] is a {name}; give {kinds}")


def specialists_of(
    models: Sequence[str | Path | Result | SavedRun],
    data: Sequence[Any] | None,
    tests: Sequence[Any] | None,
    data_dir: str | None,
    who: str = "merge",
) -> list[Specialist]:
    """Run folders and results as models with their data and tests."""
    check_models(models, who)
    given = _each(data, len(models), f"{who}: data"), _each(tests, len(models), f"{who}: tests")
    loader, results = Loader(data_dir), [one for one in models if isinstance(one, Result)]
    made = [
        _of_result(model, i, who)
        if isinstance(model, Result)
        else _of_folder(model, loader, results, who)
        for i, model in enumerate(models)
    ]
    for one in made:
        if not bool(torch.isfinite(one.w).all()):
            raise InputError(
                f"{who}: '{one.name}' has weights that are no finite numbers; use another run"
            )
    return [
        with_data(one, own, test, f"{who}: data[{i}]", f"{who}: tests[{i}]")
        for i, (one, own, test) in enumerate(zip(made, *given, strict=True))
    ]


def _each(value: Any, models: int, field: str) -> Sequence[Any]:
    """What is given for every model; None where there is nothing."""
    if value is None:
        return [None] * models
    kinds = (Dataset, tuple, list, type(None))
    fix = "give a list with an (x, y) or Dataset per model, None where there is none"
    if not isinstance(value, Sequence) or not all(isinstance(one, kinds) for one in value):  # type: ignore[reportUnknownVariableType]
        raise InputError(f"{field} is one {type(value).__name__} for {models} models; {fix}")  # type: ignore[reportUnknownArgumentType]
    if len(value) != models:  # type: ignore[reportUnknownArgumentType]
        raise InputError(f"{field} has {len(value)} entries for {models} models; {fix}")  # type: ignore[reportUnknownArgumentType]
    return value  # type: ignore[reportUnknownVariableType]


def with_data(one: Specialist, data: Any, test: Any, *fields: str) -> Specialist:
    """With the data and the test that are given; else those it brings. Errors name the fields."""
    seen = one.data if data is None else _batch(one.problem, data, fields[0])
    return replace(
        one, data=seen, test=one.test if test is None else _batch(one.problem, test, fields[1])
    )


def on_unseen(
    specialists: Sequence[Specialist], name: str, data_dir: str | None
) -> list[Specialist]:
    """A task that no model has seen stands for that of each."""
    found = load(Spec(data=name, data_dir=data_dir))
    for one in specialists:
        if one.alphabet and one.alphabet != found.class_names:
            raise InputError(
                f"merge: '{one.name}' and data '{name}' are texts of other alphabets, so that "
                "equal tokens mean other characters; run it on data with alphabet=bytes"
            )
    train, test = (found.x, found.y), (found.x_test, found.y_test)
    field = f"merge: data '{name}'"
    return [with_data(one, train, test, field, field) for one in specialists]


@drawing_alone()
def _batch(problem: Problem, value: Any, field: str) -> Batch:
    """What the reader gave, as `run` reads it, tried on the model."""
    x, y = arrays.pair(value, problem.w0.dtype, field)
    if not count(y):
        raise InputError(f"{field} has no samples; give some, or None")
    if plain_loss(problem.loss) is nn.functional.cross_entropy:
        check_objects.check_range(problem, [(field, y)], x)
    few = slice(2)
    check_objects.check_embedded(problem, {field: x}, take(x, few))
    check_objects.try_loss(problem, (take(x, few), take(y, few)), field)
    return x, y


def _of_folder(
    model: str | Path | SavedRun, loader: Loader, results: Sequence[Result], who: str
) -> Specialist:
    run = model if isinstance(model, SavedRun) else SavedRun(run_record.load(model))
    if run.status == "unfinished":
        raise InputError(
            f"{who}: '{run.folder}' is not finished, so that its model is not the one that was "
            f"asked for; finish it first: fedrift resume {run.folder}"
        )
    if run.config.data == IN_PYTHON:
        return _made_in_python(run, results, who)
    case = loader.case(run.folder, str(run.folder))
    split = case.task.split
    own = None if split.make is not None else (split.x, split.y)
    _check_global(case.task.algorithm, str(run.folder), who)
    shown = case.shown
    return Specialist(
        str(run.folder),
        case.task.problem,
        shown.w,
        shown.buffers,
        shown.frozen,
        own,
        case.task.test,
        case.task.alphabet,
    )


def _check_global(algorithm: Algorithm[Any, Any], name: str, who: str) -> None:
    """Refuses a run whose model is no model without what its clients keep."""
    if not algorithm.has_global_model():
        raise InputError(
            f"{who}: '{name}' has no model for all: its clients keep a part of theirs, or all of "
            "it, for themselves; use runs of an algorithm whose server has a whole model, such as "
            "fedavg or ditto(fedavg)"
        )


def _made_in_python(run: SavedRun, results: Sequence[Result], who: str) -> Specialist:
    """Its weights are in its folder; its model is that of a result beside it."""
    shapes = {name: t.shape for name, t in run.tensors().items()}
    alike = [
        one for one in results if {name: t.shape for name, t in one.tensors().items()} == shapes
    ]
    if not alike:
        raise InputError(
            f"'{run.folder}' was made in Python, and its model is not in it; in Python, give "
            f"fr.{who} its result, which the same call of fr.run with out='{run.folder}' returns, "
            "or a result of the same model beside it"
        )
    problem = alike[0].problem
    shown = final_model(problem, run.record.weights(), run.folder)
    begun = known_parts(run.record.environment).get("model")
    mine = model_part(problem, run.config.model)
    return Specialist(
        str(run.folder),
        problem,
        shown.w,
        shown.buffers,
        shown.frozen,
        is_start_known=isinstance(begun, list) and begun[:1] == [mine[0]],
    )


def _of_result(result: Result, i: int, who: str) -> Specialist:
    problem, name = result.problem, f"{result.info.get('algorithm', 'run')} {i + 1}"
    named = None if result.config is None else result.config.algorithm_named
    if named is not None and named.name in algorithms.names():
        _check_global(build.build(named, {}, 1).prepare(problem), name, who)
    buffers = tuple(result.buffers[name] for name in problem.moving)
    return Specialist(
        name,
        problem,
        result.weights,
        buffers,
        {n: t for n, t in result.buffers.items() if n not in problem.moving},
    )


def check_alike(specialists: Sequence[Specialist], who: str) -> None:
    """Refuses models that are not of one kind."""
    first = specialists[0]
    for other in specialists[1:]:
        if first.alphabet and other.alphabet and other.alphabet != first.alphabet:
            raise InputError(
                f"{who}: '{first.name}' and '{other.name}' read texts of other alphabets, so that "
                "equal tokens mean other characters; run them on data with alphabet=bytes"
            )
        if other.problem.layout != first.problem.layout:
            raise InputError(
                f"{who}: '{first.name}' and '{other.name}' are models of different architectures "
                f"({first.w.numel():,} and {other.w.numel():,} trained parameters); use runs of "
                "one model, with the same adapter or none"
            )
        if not _same_base(first, other):
            raise InputError(
                f"{who}: '{first.name}' and '{other.name}' stand on other frozen parameters; merge "
                "adapters of one base (the same model and seed)"
            )


def _same_base(one: Specialist, other: Specialist) -> bool:
    """The frozen parameters are the same numbers; buffers are what training made of them."""
    mine, theirs = ({**s.problem.rest, **(s.frozen or {})} for s in (one, other))
    named = one.problem.model.module.named_parameters()
    return all(torch.equal(mine[name], theirs[name]) for name, _ in named if name in mine)


def check_trained_whole(specialists: Sequence[Specialist]) -> None:
    """Refuses models with frozen parameters, whose neurons cannot be renumbered with the others."""
    one = specialists[0]
    frozen = [n for n, _ in one.problem.model.module.named_parameters() if n in one.problem.rest]
    if frozen:
        raise InputError(
            f"'aligned' renumbers neurons, and '{one.name}' has frozen parameters, such as "
            f"{frozen[0]}, which stay in their order; use mean, or another rule"
        )


def check_start(specialists: Sequence[Specialist], rule: str) -> None:
    """Refuses models that did not begin with the same weights."""
    other_way = "merge them by mean or aligned" if rule == "experts" else "use mean or aligned"
    first = specialists[0]
    for one in specialists:
        if not one.is_start_known:
            raise InputError(
                f"'{rule}' needs a common start, and that of '{one.name}' is not known to be the "
                f"results'; give the result that its call of fr.run returns, or {other_way}"
            )
    for other in specialists[1:]:
        if not torch.equal(other.problem.w0, first.problem.w0):
            raise InputError(
                f"'{rule}' needs a common start, and '{first.name}' and '{other.name}' "
                f"began with other weights; run them with the same seed, or {other_way}"
            )
