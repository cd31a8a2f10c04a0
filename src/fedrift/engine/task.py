"""A run with everything settled, from a spec and its objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from torch import nn

from fedrift import models
from fedrift.adapters import adapted_note, with_adapter
from fedrift.backends.stacking.scheduler import scheduler_for
from fedrift.config import models as model_names
from fedrift.config import own_code
from fedrift.config.client_evaluation import OWN, ClientEvaluation
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.participation import sampling_of
from fedrift.config.privacy import Stretch, parse_privacy
from fedrift.config.spec import FIELDS, Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import local_of
from fedrift.core.compression import parse_compression
from fedrift.core.faults import parse_faults
from fedrift.core.flat import map_tree, take
from fedrift.core.problem import Problem, define
from fedrift.core.sampling import LOOKS, Chooser, Kind, Participation, participation
from fedrift.data.arrays import SHIFTED
from fedrift.data.augment import Augment, mixed_loss, parse_augment
from fedrift.data.hold_out import remark
from fedrift.data.shift import Domains, domains_of
from fedrift.data.split import Split
from fedrift.engine import aggregation as guard
from fedrift.engine import build, check_objects
from fedrift.engine.check_objects import bind
from fedrift.engine.clock import clock_of
from fedrift.engine.domains import TestDomains
from fedrift.engine.objects import DTYPES, Objects, Tensors, are_tested
from fedrift.engine.plan import Task
from fedrift.engine.prepare import Prepared, own_inputs, own_tests
from fedrift.errors import InputError
from fedrift.grammar import parse
from fedrift.models import losses
from fedrift.rng import torch_seed
from fedrift.storage.fork import Origin

# What the spec of a run can say of a call in Python, so that reports and folders know it.

MOST_PARTICIPANTS = 20_000  # numbers; a longer schedule is left to the call


def recorded(spec: Spec, objects: Objects, made: Algorithm[Any, Any], name: str) -> Spec:
    """The spec with what the objects tell, as far as one can hold it."""
    scheme, _, shift = objects.clients.note.partition(SHIFTED)
    facts = {
        "algorithm": name,
        "clients": len(objects.clients),
        "partition": scheme,
        "shift": shift,
    }
    facts |= {"loss": losses.name_of(objects.loss)}
    if objects.algorithm is not None:
        facts = {**build.work(local_of(made)), **spec.local_work(), **facts}
    changes: dict[str, Any] = {"weights": None}  # in the algorithm's text
    for key, value in facts.items():
        with suppress(InputError):
            changes |= {key: FIELDS[key].read(value, key)} if value else {}
    if spec.participants is not None and sum(map(len, spec.participants)) > MOST_PARTICIPANTS:
        changes["participants"] = None
    return replace(spec, **changes)


def where(spec: Spec, workers: object, backend: object) -> Spec:
    """The spec with the place where the run is computed, if a spec can name it."""
    given = {"workers": workers, "backend": backend}
    try:
        return replace(spec, **{k: FIELDS[k].read(v, k) for k, v in given.items()})  # type: ignore[arg-type]
    except InputError:  # "wire", or a mistake that the run names
        return spec


# The task itself: of a spec on named data, and of any spec with objects.


def task_from_spec(
    spec: Spec, ready: Prepared, tensors: Tensors | None = None, origin: Origin | None = None
) -> Task:
    """The task a spec describes, on data that are loaded and divided; a fork has an origin."""
    data, kind, cache = ready.data, DTYPES[spec.dtype], tensors or Tensors()
    scheme = spec.partition if spec.alpha is None else f"{spec.partition}, alpha {spec.alpha:g}"
    choice = model_names.choose_model(ready.model)
    floats = choice.attribute is None and not choice.takes_tokens
    once = Tensors()  # shifted for this run alone
    x = (cache if ready.x is data.x else once).of(ready.x, kind, floats)
    y, lazy = cache.of(data.y, kind), data.generated
    domains = None if spec.shift is None else domains_of(spec.shift, ready.partition.clients)
    whole = Split(x, y, ready.partition.parts, scheme, domains=domains)
    if lazy is not None:
        whole = Split(x, y, (), scheme, lazy.make, lazy.sizes)
    plain = cache.of(data.x_test, kind, floats), cache.of(data.y_test, kind)
    test = cache.tested_in(plain, domains)
    if spec.client_test == OWN:
        seen = plain[0] if spec.shift is None else once.of(own_inputs(spec, ready), kind, floats)
        whole = whole.with_data(x, y, Split(seen, plain[1], own_tests(ready)))
    elif spec.client_test is not None:
        whole = whole.held_out(float(spec.client_test), spec.seed)
    was = (data.mean, data.std) if data.mean else None
    objects = Objects(
        models.factory(ready.model, ready.x.shape[1:], data.classes, was),
        whole,
        test,
        losses.loss_by_name(spec.loss),
        black=tuple(-m / s for m, s in zip(data.mean, data.std, strict=True)),
        notes=check_objects.gaps(data.y, data.classes),
        alphabet=data.class_names if data.is_text else (),
    )
    return make_task(replace(spec, model=ready.model), objects, origin)


def make_task(spec: Spec, objects: Objects, origin: Origin | None = None) -> Task:
    """The task of a spec and its objects: the model bound to its data, the algorithm made.

    A spec whose model is "python" gets what the objects tell. What is guaranteed of a fork counts
    the rounds of its origin.
    """
    split, rounds = objects.clients, spec.rounds
    spec.check_clients(len(split))
    check_objects.check_device(spec.device)
    chosen = participation_of(spec, split.sizes, objects.sampling)
    changes = _augment(spec, objects)
    loss = objects.loss if objects.loss is not None else nn.functional.cross_entropy
    describe = partial(
        define,
        loss=mixed_loss(loss) if changes.mixup is not None else loss,
        init_seed=torch_seed(spec.seed, "init"),
        population=len(split),
        participation=chosen.share,
        samples=int(split.sizes.sum()),
        is_full=chosen.is_full,
        rounds=rounds,
        dtype=DTYPES[spec.dtype],
        device=spec.device,
        stack=spec.stack,
        head=spec.head,
        classification=check_objects.has_labels(split.y),
    )
    labels = partial(check_objects.check_labels, strict=objects.loss is None)
    problem, split, test, notes = bind(
        partial(describe, objects.model), split, objects.test, labels, spec.device
    )

    check_objects.check_own_metrics(problem, test, objects.metrics)

    def describe_again(make: Callable[[], nn.Module], head: str) -> Problem:
        first = split.first(2)
        probe = map_tree(lambda t: t.cpu(), (take(split.x, first), take(split.y, first)))
        return describe(make, head=head, probe=probe)

    algorithm, name = build.build_algorithm(spec, objects.algorithm)
    check_objects.check_local(local_of(algorithm), len(split), problem)
    problem = algorithm.adapt(problem, describe_again)
    problem = replace(problem, compression=parse_compression(spec.compress))
    if spec.adapter is not None:
        probe = map_tree(lambda t: t.cpu(), take(split.x, split.first(2)))
        algorithm, problem = with_adapter(spec, algorithm, problem, probe)
        notes = (*notes, adapted_note(spec.adapter, problem))
    algorithm = algorithm.prepare(problem)
    guard.check_compression(algorithm, problem)
    if problem.stack == "on":
        scheduler_for(problem)  # refuses a model that is to be stacked and cannot be
    faults = parse_faults(spec.faults)
    if faults is not None:
        guard.check_faults(faults, algorithm)
    asked, clock = clock_of(spec, algorithm, chosen)
    _check_choice(spec, algorithm, problem, asked)
    asked, aggregation, promise = guard.check_protection(
        spec.aggregate,
        spec.privacy,
        algorithm,
        problem,
        asked,
        rounds,
        _before(origin, split.sizes),
    )
    domains = None
    if test is not None and are_tested(split.domains):
        domains = TestDomains(split.domains, *test)
        test = domains.seen
        notes = (*notes, _domains_note(split.domains))
    about: dict[str, Any] = {"algorithm": name, "rounds": rounds, "seed": spec.seed}
    if promise is not None:
        about |= {"privacy": spec.privacy, "epsilon": promise.epsilon, "delta": promise.delta}
        notes = (*notes, f"privacy: {promise}")
    looks = check_objects.client_evaluation(spec, split, test is not None, algorithm, problem)
    if looks is None and not algorithm.has_global_model():
        notes = (*notes, check_objects.UNTESTED)
    if looks is not None and promise is not None:
        notes = (*notes, check_objects.UNACCOUNTED)
    if split.test is not None:
        notes = (*notes, *remark(split.test.sizes))
    if test is None:
        notes = (*notes, *_without_test(objects, split, looks))
    if objects.algorithm is not None:
        about["algorithm_object"] = build.written(algorithm)
    if spec.model == IN_PYTHON:
        kept = recorded(spec, objects, algorithm, name)
    else:
        kept = spec
        about |= {k: getattr(spec, k) for k in ("data", "partition", "alpha", "model")}
    return Task(
        algorithm=algorithm,
        problem=problem,
        split=split,
        test=test,
        participation=asked,
        rounds=rounds,
        seed=spec.seed,
        eval_every=spec.eval_every,
        spec=kept,
        about=about,
        augment=changes if changes else None,
        metrics={k: check_objects.measured(k, measure) for k, measure in objects.metrics.items()},
        notes=(*objects.notes, *_unused(spec), *notes),
        eval_clients=looks,
        faults=faults,
        clock=clock,
        aggregation=aggregation,
        alphabet=objects.alphabet,
        domains=domains,
    )


def _without_test(
    objects: Objects, split: Split, looks: ClientEvaluation | None
) -> tuple[str, ...]:
    """What to say of a run whose server has no test data."""
    is_unmeasured = split.test is not None and objects.metrics
    notes = (check_objects.unmeasured(objects.metrics),) if is_unmeasured else ()
    return notes if looks is not None else (*notes, check_objects.UNSEEN)


def _domains_note(domains: Domains) -> str:
    names = domains.names
    text = (
        f"domains: accuracy is of {len(domains.seen)} that clients have ({names[domains.seen[0]]}"
    )
    text += f" to {names[domains.seen[-1]]})" if len(domains.seen) > 1 else ")"
    held = ", ".join(names[d] for d in domains.unseen)
    return f"{text}; unseen: {held}" if held else text


def participation_of(
    spec: Spec, sizes: np.ndarray, function: Chooser | None = None
) -> Participation:
    """Who takes part, of clients with so many samples; `function` is what the spec names."""
    how = sampling_of(spec.sampling)
    if how.code is not None and function is None:
        function = own_code.load(*how.code, "sampling")
        if not callable(function):
            kind = type(function).__name__
            raise InputError(f"sampling '{spec.sampling}' is a {kind}, not a function")
    return participation(
        len(sizes),
        spec.rounds,
        per_round=spec.per_round,
        fraction=spec.fraction,
        participants=spec.participants,
        sampling=cast("Kind", how.kind),
        samples=sizes.tolist(),
        candidates=how.candidates,
        function=function,
        name=spec.sampling if how.code is not None else "",
    )


def _check_choice(
    spec: Spec, algorithm: Algorithm[Any, Any], problem: Problem, who: Participation
) -> None:
    """Refuses to choose clients of an algorithm by what it does not have."""
    if who.kind not in LOOKS:
        return
    name = parse(spec.algorithm, "algorithm").name
    if algorithm.sampling(algorithm.server(problem)) == "once":
        raise InputError(f"sampling '{spec.sampling}': {name} asks every client once; use fixed")
    if who.kind == "power" and local_of(algorithm) is None:
        raise InputError(
            f"sampling '{spec.sampling}': clients of {name} report no training loss; use size"
        )


def _before(origin: Origin | None, sizes: np.ndarray) -> Stretch | None:
    if origin is None:
        return None
    who = participation_of(origin.spec, sizes)
    return Stretch(parse_privacy(origin.spec.privacy), who, origin.at)


def _augment(spec: Spec, objects: Objects) -> Augment:
    changes = parse_augment(spec.augment)
    if changes.crop is not None and objects.black:
        changes = replace(changes, crop=replace(changes.crop, black=objects.black))
    changes.check(objects.clients.x, objects.clients.y)
    return changes


def _unused(spec: Spec) -> tuple[str, ...]:
    """What to say of a schedule for more rounds than there are."""
    number = len(spec.participants or ())
    if number <= spec.rounds:
        return ()
    return (f"participants lists {number} rounds; only the first {spec.rounds} are used",)
