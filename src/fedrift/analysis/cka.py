"""Centred kernel alignment: how alike two models represent the same inputs, layer by layer.

Kornblith, Norouzi, Lee, Hinton, ICML 2019, linear kernel; between clients as Luo et al., NeurIPS
2021. Outputs are flattened whole; no spatial mean is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedrift.analysis.patience import Unwatched, Watch
from fedrift.flat import Inputs, Vec, count, take
from fedrift.flat_model import FlatModel

CHUNK = 250


def gram(x: Tensor) -> Tensor:
    """Centred n×n Gram matrix of n rows, of length 1; zeros if all rows are the same."""
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    if not float(flat.abs().max()):
        return torch.zeros(len(flat), len(flat), dtype=torch.float64)
    flat = flat / flat.abs().max()  # its squares must not overflow
    k = flat @ flat.T
    return k / k.norm()


def linear_cka(x: Tensor, y: Tensor) -> float:
    """‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of two representations of the same n inputs; 0 if one is constant."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} rows do not represent the same inputs")
    return float((gram(x) * gram(y)).sum())


def layers(model: FlatModel) -> list[str]:
    """The layers that have parameters of their own, in the order they were defined."""
    return [
        name
        for name, module in model.module.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]


@torch.no_grad()
def grams(
    model: FlatModel, w: Vec, x: Inputs, names: Sequence[str], watch: Watch | None = None
) -> dict[str, Tensor]:
    """The Gram matrix of every layer's output for the inputs, in evaluation mode."""
    watch, caught = watch or Unwatched(), dict[str, list[Tensor]]()

    def keep(name: str, output: object) -> None:
        if isinstance(output, Tensor):
            caught.setdefault(name, []).append(output.detach().flatten(1).clone())

    hooks = [
        model.module.get_submodule(name).register_forward_hook(
            lambda _m, _x, out, name=name: keep(name, out)
        )
        for name in names
    ]
    passes = range(0, count(x), CHUNK)
    try:
        for start in passes:
            model.logits(w, take(x, slice(start, start + CHUNK)))
            watch.step()
    finally:
        for hook in hooks:
            hook.remove()
    # a layer that is used twice in a pass, or for other things than samples, has no one output
    whole = {n: parts for n, parts in caught.items() if len(parts) == len(passes)}
    return {
        n: gram(torch.cat(parts)) for n, parts in whole.items() if sum(map(len, parts)) == count(x)
    }


def alike(
    clients: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], name: str
) -> tuple[list[list[float]], list[float]]:
    """CKA of one layer between all clients (a symmetric table), and of each to the server's."""
    stack = torch.stack([c[name].flatten() for c in clients])
    return (stack @ stack.T).tolist(), (stack @ server[name].flatten()).tolist()
