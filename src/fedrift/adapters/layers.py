"""LoRA: two thin matrices beside a layer, whose product is added to its weight.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W + (α/r) B A. A layer
keeps its name, its weight and its place in the model; what is added has the names that the library
PEFT gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedrift.core.flat import Inputs, cloned
from fedrift.core.flat_model import call, fresh

A, B = "lora_A", "lora_B"


def weight_of(layer: str, part: str = "") -> str:
    """The name of a layer's weight, or of a factor's; the layer may be the whole model."""
    return ".".join(filter(None, (layer, part, "weight")))


def shape_of(layer: nn.Module) -> tuple[int, int] | None:
    """Outputs and inputs of a layer's weight as a matrix; None if LoRA does not know the layer.

    A subclass may use its weight in a way of its own, so a type must be known exactly; `Conv1D` of
    the library transformers is a linear layer whose weight is transposed.
    """
    if type(layer) is nn.Linear:
        return layer.out_features, layer.in_features
    if type(layer) is nn.Conv2d and layer.groups == 1:
        return layer.out_channels, math.prod(layer.weight.shape[1:])
    if is_transposed(layer):
        weight = cast("Tensor", layer.weight)
        return weight.shape[1], weight.shape[0]
    return None


def is_transposed(layer: nn.Module) -> bool:
    """Inputs × outputs."""
    kind = getattr(type(layer), "plain", type(layer))
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def unknown(module: nn.Module) -> list[str]:
    """Layers with matrices that LoRA leaves as they are, by name: the packed projections of
    `nn.MultiheadAttention`, recurrent layers, grouped convolutions, subclasses. Not embeddings."""
    return [
        name
        for name, layer in module.named_modules()
        if any(p.dim() > 1 for p in layer.parameters(recurse=False))
        and shape_of(layer) is None
        and not hasattr(type(layer), "plain")
        and not isinstance(layer, (nn.Embedding, nn.EmbeddingBag))
    ]


_watching: list[set[int]] = []
"""Where calls are noted, while somebody looks."""


def _forward(layer: Any, x: Tensor) -> Tensor:
    for calls in _watching:
        calls.add(id(layer))
    added = layer.lora_B(layer.lora_A(x))
    return layer.plain.forward(layer, x) + layer.scale * added


@cache
def _with_factors(plain: type[nn.Module]) -> type[nn.Module]:
    """The class of such a layer once it has factors; its objects can become plain again."""
    names = {"forward": _forward, "plain": plain, "__module__": __name__}
    return type(f"Lora{plain.__name__}", (plain,), names)


def attach(layer: nn.Module, rank: int, scale: float) -> None:
    """Give a layer its factors: A as zeros for now, B = 0, which leaves the function as it is."""
    rows, columns = shape_of(layer) or (0, 0)
    if isinstance(layer, nn.Conv2d):
        form: dict[str, Any] = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
            "padding_mode": layer.padding_mode,
        }
        window: Any = layer.kernel_size
        into: Any = nn.Conv2d(layer.in_channels, rank, window, bias=False, **form)
        out: Any = nn.Conv2d(rank, rows, 1, bias=False)
    else:
        into, out = nn.Linear(columns, rank, bias=False), nn.Linear(rank, rows, bias=False)
    for factor in (into, out):
        nn.init.zeros_(factor.weight)
    weight = cast("Tensor", layer.weight)
    layer.lora_A, layer.lora_B = into.to(weight), out.to(weight)
    layer.scale = scale  # type: ignore[assignment]
    layer.__class__ = _with_factors(type(layer))  # type: ignore[assignment]
    # torch's fused transformer layers read weights past `forward`, unless there is a hook.
    layer.register_forward_pre_hook(_called)


def _called(layer: nn.Module, given: Any) -> None:
    """Changes nothing."""


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that have factors, by name."""
    for name, layer in module.named_modules():
        if hasattr(type(layer), "plain") and type(layer).__module__ == __name__:
            yield name, layer


def product(a: Tensor, b: Tensor, form: tuple[int, ...], transposed: bool) -> Tensor:
    """B A in the form of a layer's weight."""
    made = b.flatten(1) @ a.flatten(1)
    return made.T if transposed else made.view(form)


@torch.no_grad()
def merged(module: nn.Module) -> nn.Module:
    """The module with every product added to its weight: plain layers again, the same function up
    to rounding. A weight that is tied to another is no longer, since only one of them has changed.
    """
    for _, layer in list(adapted_layers(module)):
        layer.__class__ = type(layer).plain
        hooks = layer._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is _called]:
            del hooks[key]
        factors, weight = (layer.lora_A.weight, layer.lora_B.weight), layer.weight
        added = layer.scale * product(*factors, weight.shape, is_transposed(layer))
        del layer.lora_A, layer.lora_B, layer.scale
        layer.weight = nn.Parameter(weight + added, weight.requires_grad)
    return module


def with_factors(
    make: Callable[[], nn.Module],
    names: tuple[str, ...],
    rank: int,
    scale: float,
    example: Inputs | None,
) -> nn.Module:
    """A new module whose named layers have factors; a lazy one takes its shapes from an example."""
    module = fresh(make)
    if example is not None:
        call(module.eval(), example)
    for name in names:
        attach(module.get_submodule(name), rank, scale)
    return module


@torch.no_grad()
def passed_by(module: nn.Module, x: Inputs) -> list[str]:
    """Adapted layers that are called in training and not in evaluation, when somebody else reads
    their weights."""
    seen: list[set[int]] = []
    for is_training in (True, False):
        seen.append(set())
        _watching.append(seen[-1])
        try:
            call(module.train(is_training), cloned(x))
        finally:
            _watching.clear()
    return [name for name, layer in adapted_layers(module) if id(layer) in seen[0] - seen[1]]
