"""From names and settings to an algorithm: `scaffold:option=I` and lr=0.05 become an object."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, TypeAlias

from fedrift.algorithms import NAMES
from fedrift.config import algorithms
from fedrift.config.algorithms import COMPARE, NOUNS, Kind
from fedrift.config.local_work import OPTIMIZERS, is_per_step, optimizer_of, schedule_of, uniform
from fedrift.config.own_code import load
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import map_local, parts
from fedrift.core.local import Amount, Draw, Local
from fedrift.core.optim import (
    ADAPTIVE,
    SGD,
    Cosine,
    Exponential,
    Optimizer,
    PerStep,
    Schedule,
    Staircase,
)
from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, parse

# The reader's own algorithm by `module:Class,mu=0.3`: options are the fields of its dataclass.


def make(named: Named, local: Local | None = None) -> Algorithm[Any, Any]:
    """The algorithm that a class, a function or an object of the reader's stands for; `local` is
    for a function that composes one around its parameter of that name, as those of ours do."""
    target = _loaded(named)
    text = f"{named.name}:{named.value}"
    if isinstance(target, Algorithm):
        if named.options:
            raise InputError(f"algorithm '{named}': {text} is an object; options need its class")
        return target
    if not callable(target):
        kind = type(target).__name__
        raise InputError(f"algorithm '{text}' is a {kind}; give a class derived from Algorithm")
    options = _typed(named, text, target)
    if local is not None:
        options["local"] = local
    try:
        made = target(**options)
    except TypeError as error:
        raise InputError(f"algorithm '{named}' cannot be made: {error}") from error
    if not isinstance(made, Algorithm):
        kind = type(made).__name__
        raise InputError(f"algorithm '{text}' gave a {kind}; derive it from fedrift.Algorithm")
    return made


def _loaded(named: Named) -> Any:
    return load(named.name, named.value or "", "algorithm", "; see: fedrift list algorithms")


def _local_parameter(target: Any) -> Local | None:
    """The default of a function's parameter `local`; None if it is no function, or has none."""
    if not inspect.isfunction(target):
        return None
    parameter = inspect.signature(target).parameters.get("local")
    return (
        None if parameter is None or not isinstance(parameter.default, Local) else parameter.default
    )


def _typed(named: Named, text: str, target: Any) -> dict[str, Any]:
    known = kinds(target)
    typed: dict[str, Any] = {}
    for key, value in named.options.items():
        if not known:
            raise InputError(f"algorithm '{named}': {text} has no option '{key}'; remove it")
        if key not in known:
            raise unknown(f"option of {text}", key, known)
        typed[key] = known[key].read(value, f"option {key} of {text}")
    return typed


def kinds(target: Any) -> dict[str, Kind]:
    """The options of a class or function: parameters that hold a number, a text or a choice."""
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError):  # names that only the type checker knows
        hints = {}
    options: dict[str, Kind] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        default = parameter.default
        kind = kind_of(hints.get(name, type(default)))
        if kind is not None:
            options[name] = kind
    return options


def kind_of(hint: Any) -> Kind | None:
    """What a type accepts as text; None if it is no option."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and hint.__name__ in NOUNS and hint.__module__ == "builtins":
        return Kind(types=(hint.__name__,))
    if hint is type(None):
        return Kind(choices=(None,))
    if origin is typing.Literal:
        return Kind(choices=inside)
    if origin is typing.Annotated:
        kind = kind_of(inside[0])
        bounds = tuple(b for b in inside[1:] if isinstance(b, str) and b.split(" ")[0] in COMPARE)
        return None if kind is None else Kind(kind.types, kind.choices, kind.bounds + bounds)
    if origin in (typing.Union, types.UnionType):
        several = [kind_of(one) for one in inside]
        if all(kind is not None for kind in several):
            return Kind(*(sum((getattr(k, f) for k in several), ()) for f in Kind.__annotations__))
    return None


def amount(value: Any, field: str) -> Amount:
    """An int, a list with one entry per client, or `uniform:2,5`."""
    if isinstance(value, str):
        return Draw(*uniform(value, field))
    return value if isinstance(value, int) else tuple(value)


def schedule(text: str, lr: float, rounds: int) -> float | Schedule:
    """A rate over rounds, or over steps: `exp:0.9`, `step:10,factor=0.5`, `cosine:per=step`."""
    name, numbers = schedule_of(text)
    if numbers.get("factor") == 0:
        raise InputError(f"schedule '{text}': a factor of 0 makes the rate 0; use a small number")
    if name == "constant":
        return lr
    if name == "exp":
        shape = Exponential(lr, numbers["factor"])
    elif name == "step":
        shape = Staircase(lr, int(numbers["every"]), numbers["factor"])
    else:
        shape = Cosine(lr, rounds, numbers["floor"])
    return PerStep(shape) if is_per_step(text) else shape


def local(default: Local, given: Mapping[str, Any], rounds: int) -> Local:
    """The default with what was said; what was not said stays."""
    changes: dict[str, Any] = {}
    for name in ("epochs", "steps"):
        if given.get(name) is not None:
            changes = {"epochs": None, "steps": None, name: amount(given[name], name)}
    if "batch_size" in given:
        size = given["batch_size"]
        changes["batch_size"] = None if size == "full" else size
    if given.get("clip") is not None:
        changes["clip"] = given["clip"]
    optimizer = changes["optimizer"] = _optimizer(default.optimizer, given)
    rate = given.get("lr")
    if rate is None and given.get("optimizer") and not isinstance(optimizer, SGD):
        rate = optimizer.lr  # torch's default
    if given.get("schedule") is not None:
        base = rate if rate is not None else default.lr
        changes["lr"] = schedule(given["schedule"], base, rounds)  # type: ignore[arg-type]
    elif rate is not None:
        changes["lr"] = float(rate)
    return replace(default, **changes)


def _optimizer(default: Optimizer, given: Mapping[str, Any]) -> Optimizer:
    """The one that is named, else the default, with the run's momentum and weight decay."""
    name, options = optimizer_of(given.get("optimizer") or "sgd")
    for key in ("momentum", "weight_decay"):
        if given.get(key) is not None and key in OPTIMIZERS[name].split():
            options[key] = given[key]
    if name != "sgd":
        return ADAPTIVE[name](**options)
    if not isinstance(default, SGD) and given.get("optimizer") is None:
        return default
    return replace(default if isinstance(default, SGD) else SGD(), **options)


def work(local: Local | None) -> dict[str, Any]:
    """The other way: the local work of an algorithm, as settings say it."""
    if local is None:
        return {}
    optimizer = local.optimizer
    decays = (
        {k: getattr(optimizer, k) or None for k in ("momentum", "weight_decay")}
        if isinstance(optimizer, SGD)
        else {}
    )
    return {
        "epochs": _written_amount(local.epochs) if local.steps is None else None,
        "steps": _written_amount(local.steps),
        "batch_size": "full" if local.batch_size is None else local.batch_size,
        **_written_rate(local.lr),
        "clip": local.clip,
        **decays,
    }


def _written_amount(amount: Amount | None) -> int | str | tuple[int, ...] | None:
    return f"uniform:{amount.low},{amount.high}" if isinstance(amount, Draw) else amount


def _written_rate(lr: Any) -> dict[str, Any]:
    """The rate and its schedule, where a text can say it."""
    if isinstance(lr, Exponential):
        return {"lr": lr.lr, "schedule": f"exp:{lr.factor!r}"}
    if isinstance(lr, Staircase):
        return {"lr": lr.lr, "schedule": f"step:{lr.every},factor={lr.factor!r}"}
    if isinstance(lr, PerStep):
        told = _written_rate(lr.shape)
        return {**told, "schedule": f"{told['schedule']},per=step"} if told else {}
    return {"lr": lr} if isinstance(lr, (int, float)) else {}


def build(named: Named | str, given: Mapping[str, Any], rounds: int) -> Algorithm[Any, Any]:
    """The algorithm a text names, with the run's local settings inside."""
    parsed = parse(named, "algorithm") if isinstance(named, str) else named
    if algorithms.is_own(parsed):
        default = _local_parameter(_loaded(parsed))
        if default is None:
            return filled(make(parsed), given, rounds)
        return checked(make(parsed, local(default, given, rounds)))
    options = algorithms.check(parsed)
    target = NAMES[parsed.name]
    if parsed.inner is not None:
        return target(inner=build(parsed.inner, given, rounds), **options)
    parameters = inspect.signature(target).parameters
    if "local" not in parameters:  # no local training: its settings have nothing to say
        return target(**options)
    return target(local=local(parameters["local"].default, given, rounds), **options)


def checked(made: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    if not is_dataclass(made):
        raise InputError(f"algorithm: {type(made).__name__} must be a frozen dataclass")
    return made


def filled(made: Algorithm[Any, Any], given: Mapping[str, Any], rounds: int) -> Algorithm[Any, Any]:
    """An object with the run's local settings, which only fill what it leaves unsaid."""
    settings = [key for key, value in given.items() if value is not None or key == "batch_size"]
    if not settings:
        return checked(made)
    _check_local(checked(made), settings[0], given[settings[0]])
    return map_local(made, lambda old: local(old, given, rounds))


def _check_local(made: Algorithm[Any, Any], key: str, value: object) -> None:
    """A setting of the run may fill the local settings only where the object says nothing."""
    has_local = False
    for _, node in parts(made):
        for field in fields(node):  # type: ignore[arg-type]
            own = getattr(node, field.name)
            if not isinstance(own, Local):
                continue
            has_local = True
            if own != default_of(field):
                raise InputError(
                    f"{key}={value!r} and {type(node).__name__}({field.name}=Local(…)) are both "
                    f"given; keep one of the two"
                )
    if not has_local and not type(made).__module__.startswith("fedrift."):
        name = type(made).__name__
        raise InputError(
            f"{key}={value!r}: {name} has no field for it; write local: Local = Local() in {name} "
            "and train with self.local"
        )


def default_of(field: Field[Any]) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


# Who runs: an algorithm from its text, its class or an object, with the run's local settings.

AlgorithmLike: TypeAlias = str | Algorithm[Any, Any] | type[Algorithm[Any, Any]]
"""A text such as `fedprox:mu=0.3`, an object, or its class, which stands for the object of its
defaults."""

PLAIN = re.compile(r"[\w.+-]+")


def build_algorithm(
    spec: Spec, given: Algorithm[Any, Any] | None = None
) -> tuple[Algorithm[Any, Any], str]:
    """The algorithm of the spec, or the one given, with the run's settings inside, and its text."""
    if given is None:
        named = spec.algorithm_named
        return build(named, spec.local_work(), spec.rounds), str(named)
    made = filled(given, spec.local_work(), spec.rounds)
    if spec.mean_weights is not None:
        made = _weighted(made, spec.mean_weights)
    return made, text_of(made)


def instance(given: Any) -> Algorithm[Any, Any]:
    """The object itself, or one of the class with its defaults."""
    made = given
    if isinstance(given, type) and issubclass(given, Algorithm):
        try:
            made = given()
        except TypeError as error:
            raise InputError(f"algorithm: {given.__name__}() cannot be made: {error}") from None
    if not isinstance(made, Algorithm):
        raise InputError(
            f"algorithm={given!r} must be a text such as 'fedavg', an Algorithm or its class"
        )
    return checked(made)


def _weighted(made: Algorithm[Any, Any], weights: str) -> Algorithm[Any, Any]:
    for field in fields(made):  # type: ignore[arg-type]
        inner = getattr(made, field.name)
        if isinstance(inner, Algorithm):  # a wrapper averages nothing itself
            return replace(made, **{field.name: _weighted(inner, weights)})  # type: ignore[type-var]
    name = type(made).__name__
    known = {field.name: field for field in fields(made)}  # type: ignore[arg-type]
    if "weights" not in known:
        raise InputError(
            f"weights={weights!r}: {name} has no field 'weights'; add one, or leave it"
        )
    if made.weights not in (default_of(known["weights"]), weights):
        raise InputError(
            f"weights={weights!r} and {name}(weights={made.weights!r}) are both given; keep one"
        )
    return replace(made, weights=weights)  # type: ignore[type-var]


def text_of(made: Algorithm[Any, Any]) -> str:
    """`scaffold:server_lr=0.5`: the class, and every plain field that is not at its default."""
    head, options = type(made).__name__.lower(), dict[str, str]()
    for field in fields(made):  # type: ignore[arg-type]
        value = getattr(made, field.name)
        if isinstance(value, Algorithm):
            head += f"({text_of(value)})"
        elif isinstance(value, (bool, int, float, str)) and value != default_of(field):
            text = _spelled(value)
            if PLAIN.fullmatch(text):
                options[field.name] = text
    pieces = ",".join(f"{key}={options[key]}" for key in sorted(options))
    return f"{head}:{pieces}" if pieces else head


def _spelled(value: float | str) -> str:
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def written(made: Algorithm[Any, Any]) -> str:
    """Every field of an object, its local settings included, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(made))


def has_personal_models(algorithm: AlgorithmLike) -> bool:
    """Whether its clients have models of their own; what cannot be made is for the run to say."""
    try:
        made = build(algorithm, {}, 1) if isinstance(algorithm, str) else instance(algorithm)
    except InputError:
        return False
    return any(type(node).personal is not Algorithm.personal for _, node in parts(made))
