"""Recognises a module as a chain of linear layers and activations; nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedrift.chain import BENDS, MODULES, SLOPES, Affine, Bend, Chain, Link
from fedrift.flat import Layout, Loss, copy_each


def chain_of(module: nn.Module, layout: Layout, loss: Loss) -> Chain | None:
    """The chain a module is, if all of it is known by its type; nothing is guessed.

    A class of one's own says what it is made of in `layers`: names of its layers and activations.
    """
    if loss not in SLOPES:
        return None
    found = list(_parts(module))
    flattens = found[:1] == ["flatten"]
    links: list[Link] = []
    linear: list[nn.Linear] = []
    named = dict(module.named_parameters())
    places = {id(named[name]): i for i, name in enumerate(layout.names)}
    for part in found[int(flattens) :]:
        if isinstance(part, nn.Linear):
            bias = None if part.bias is None else places.get(id(part.bias), -1)
            links.append(Affine(places.get(id(part.weight), -1), bias))
            linear.append(part)
        elif isinstance(part, Bend):
            links.append(part)
        else:
            return None
    used = [p for k in links if isinstance(k, Affine) for p in (k.weight, k.bias) if p is not None]
    if not linear or sorted(used) != list(range(len(layout.names))):  # tied, frozen or unused ones
        return None
    ends = linear[0].in_features, linear[-1].out_features
    chain = Chain(tuple(links), loss, *ends, flattens)
    return chain if _agrees(chain, module, layout) else None


def _parts(module: nn.Module) -> Iterator[nn.Module | Bend | str]:
    """Linear layers and activations in order, "flatten", and "?" for anything else."""
    kind, declared = type(module), vars(type(module)).get("layers")
    if _is_hooked(module):
        yield "?"
    elif isinstance(module, nn.Sequential) and kind is nn.Sequential:
        for part in module:  # children() would leave out one that comes twice
            yield from _parts(part)
    elif kind is nn.Linear:
        yield module
    elif kind in MODULES:
        yield BENDS[MODULES[kind]]
    elif isinstance(module, nn.GELU):
        yield BENDS["gelu" if module.approximate == "none" else "gelu tanh"]
    elif isinstance(module, nn.Flatten):
        yield "flatten" if (module.start_dim, module.end_dim) == (1, -1) else "?"
    elif declared is not None:
        for name in declared:
            if name == "flatten":
                yield name
            elif name in BENDS:
                yield BENDS[name]
            else:
                yield from _parts(module.get_submodule(name))
    elif kind is not nn.Identity:
        yield "?"


def _is_hooked(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in hooks)


def _agrees(chain: Chain, module: nn.Module, layout: Layout) -> bool:
    """Both give the same output for two samples: `layers` may say what `forward` does not do."""
    named, random = dict(module.named_parameters()), torch.Generator().manual_seed(0)
    parameters = [named[name] for name in layout.names]
    like = parameters[0]
    if like.is_meta:
        return True

    def draw(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=random).mul_(0.1).to(like.device, like.dtype)

    x = draw((2, chain.inputs))
    held = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        try:
            copy_each(parameters, [draw(p.shape) for p in parameters])
            output: Any = module(x)
            written = chain.forward(
                chain.bound([p.unsqueeze(0) for p in parameters]), x.unsqueeze(0)
            )[-1]
        except (RuntimeError, TypeError, ValueError, IndexError):  # it takes no flat samples
            return False
        finally:
            copy_each(parameters, held)
    return isinstance(output, Tensor) and torch.allclose(output, written[0], rtol=1e-3, atol=1e-5)
