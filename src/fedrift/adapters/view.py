"""A task with an adapter: another problem, in which few parameters are trained and sent.

Whoever trains, sends, keeps or counts vectors does it with shorter ones; nothing else changes. The
base stands in `Problem.rest`, as frozen parameters do. Running statistics are the base's too, so
the layers that have them are in evaluation mode while the adapter is trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from fedrift.adapters import layers
from fedrift.adapters.layers import A, B
from fedrift.config.adapters import Adapter
from fedrift.core.flat import Inputs, Layout, flatten
from fedrift.core.flat_model import fresh
from fedrift.core.isolation import drawing_alone
from fedrift.core.problem import Problem
from fedrift.errors import InputError
from fedrift.storage.shared_memory import Base

SHOWN = 6  # names in a sentence


def adapted(problem: Problem, adapter: Adapter, probe: Inputs, seed: int) -> Problem:
    """The task in which only the adapter is trained; `seed` draws the factors A."""
    if adapter.kind == "head":
        _check_head(problem)
        view = replace(problem.view("head"), moving=_without_norms(problem), is_base_still=True)
    elif adapter.kind == "bitfit":
        view = _frozen_base(problem, _biases(problem, adapter))
    else:
        view = _with_lora(problem, adapter, probe, seed)
    size = sum(t.nbytes for t in view.rest.values()) if adapter.base == "once" else 0
    base = Base.of(view.rest)
    rest = view.rest if base is None else base.tensors()
    return replace(view, sent_once=size, rest=rest, base=base, _bound=[])


def _check_head(problem: Problem) -> None:
    if problem.head is None:
        raise InputError(
            "adapter 'head': the model has no classifier head, a last Linear whose output is the "
            "model's with one row for each sample; name the layer with head='…', or use lora or "
            "bitfit"
        )
    weight, _ = problem.head_names()
    if weight not in problem.layout.names:
        raise InputError(f"adapter 'head': the model's head '{problem.head}' is frozen already")


def _biases(problem: Problem, adapter: Adapter) -> set[str]:
    found = {
        name
        for name in problem.layout.names
        if name.rpartition(".")[2] == "bias" and _matches(name, adapter.on)
    }
    if not found:
        raise InputError(
            f"adapter 'bitfit' matches no bias of the model{_where(adapter)}; it has "
            f"{_some([n for n in problem.layout.names if n.endswith('bias')]) or 'none'}"
        )
    return found | _also(problem, adapter)


def _also(problem: Problem, adapter: Adapter) -> set[str]:
    """Parameters that are trained as they are."""
    found: set[str] = set()
    for pattern in filter(None, adapter.also.split("+")):
        here = [name for name in problem.matching(pattern) if name in problem.layout.names]
        if not here:
            raise InputError(
                f"adapter '{adapter.kind}': also={pattern} matches no trained parameter of the "
                f"model; it has {_some(problem.layout.names)}"
            )
        found.update(here)
    return found


def _frozen_base(problem: Problem, trained: set[str]) -> Problem:
    """The task with these parameters in the vector and statistics that stand still."""
    view = problem.cut(lambda name: name in trained)
    return replace(view, moving=_without_norms(problem), is_base_still=True)


def _without_norms(problem: Problem) -> tuple[str, ...]:
    """What training moves beside the running statistics of batch normalisation."""
    norms = set(problem.matching("norm"))
    return tuple(name for name in problem.moving if name not in norms)


def _with_lora(problem: Problem, adapter: Adapter, probe: Inputs, seed: int) -> Problem:
    also = _also(problem, adapter)
    names = _layers(problem, adapter, also)
    make = partial(
        layers.with_factors, problem.make, names, adapter.rank, adapter.scale, problem.example
    )
    with drawing_alone():
        module = fresh(make).to(dtype=problem.w0.dtype)
        torch.default_generator.manual_seed(seed)
        factors = {
            layers.weight_of(name, part): _begin(layer, part)
            for name, layer in layers.adapted_layers(module)
            for part in (A, B)
        }
        left_out = layers.passed_by(module, probe)
    if left_out:
        raise InputError(
            f"adapter 'lora': layer '{left_out[0]}' is not called when the model is evaluated, so "
            "that its factors would be left out; choose other layers with on=…"
        )
    base = _frozen_base(problem, also)
    trained = also | {n for n in factors if adapter.how != "freeze-A" or f".{A}." not in f".{n}"}
    shapes = {n: tuple(p.shape) for n, p in module.named_parameters() if n in trained}
    layout = Layout(tuple(shapes), tuple(shapes.values()))
    values = {**base.layout.named(base.w0), **factors}
    return replace(
        base,
        make=make,
        example=None,
        layout=layout,
        w0=flatten([values[name] for name in layout.names]),
        rest={**base.rest, **{n: v for n, v in factors.items() if n not in trained}},
        finished=layers.merged,
        _bound=[],
    )


def _begin(layer: nn.Module, part: str) -> Tensor:
    """A as torch begins a linear layer, B = 0."""
    weight: Tensor = getattr(layer, part).weight.detach().clone()
    if part == A:
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight


def _layers(problem: Problem, adapter: Adapter, also: set[str]) -> tuple[str, ...]:
    """Names of the layers that get factors; refuses a rank that one of them cannot hold."""
    module = problem.model.module
    shapes = {
        name: shape
        for name, layer in module.named_modules()
        if (shape := layers.shape_of(layer)) is not None and layers.weight_of(name) not in also
    }
    found = {name: shape for name, shape in shapes.items() if _matches(name, adapter.on)}
    if not found:
        strange = _some([name for name in layers.unknown(module) if _matches(name, adapter.on)])
        raise InputError(
            f"adapter 'lora' matches no layer of the model{_where(adapter)}; linear and "
            f"convolutional layers are {_some(list(shapes)) or 'none'}"
            + (f", and LoRA knows no factors for {strange}" if strange else "")
        )
    smallest = min(min(shape) for shape in found.values())
    for name, (rows, columns) in found.items():
        if adapter.rank > min(rows, columns):
            raise InputError(
                f"adapter 'lora': rank={adapter.rank} is larger than layer '{name}' ({rows} × "
                f"{columns}) can hold; use rank={smallest}, or choose layers with on=…"
            )
    return tuple(found)


def without_factors(module: nn.Module, adapter: Adapter, trained: Sequence[str]) -> str:
    """Layers that were asked for and have matrices of which LoRA knows nothing, as part of a
    sentence."""
    owners = {name.rpartition(".")[0] for name in trained}
    return _some([n for n in layers.unknown(module) if n not in owners and _matches(n, adapter.on)])


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split("+"))


def _where(adapter: Adapter) -> str:
    return "" if adapter.on == "*" else f" with on={adapter.on}"


def _some(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
