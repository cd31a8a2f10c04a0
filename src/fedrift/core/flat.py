"""Vectors of parameters: their layout, norms that do not lose digits, trees of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Vec: TypeAlias = Tensor
"""The run's dtype, contiguous, last axis = parameters in `named_parameters()` order."""

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Batch: TypeAlias = tuple[Inputs, Any]
Loss: TypeAlias = Callable[[Any, Any], Tensor]
Rest: TypeAlias = Mapping[str, Tensor]
"""Every frozen parameter and buffer of the one instance that all processes must agree on."""
Watch: TypeAlias = Callable[[Any, Any, Tensor], None]
"""Is shown the output for a batch, the target and the loss; keeps no graph."""

BLOCK = 4096  # elements summed in the vector's own dtype before float64 takes over


def _blocks(x: Vec) -> tuple[Tensor, Tensor]:
    whole = x.shape[-1] // BLOCK * BLOCK
    return x[..., :whole].unflatten(-1, (-1, BLOCK)), x[..., whole:]


def norm(x: Vec) -> Tensor:
    """L2 norm over the last axis (kept), float64: plain float32 is off by 4e-4 at 11 M elements."""
    body, tail = _blocks(x)
    squares = torch.linalg.vector_norm(body, dim=-1).double().square().sum(-1, keepdim=True)
    return (squares + torch.linalg.vector_norm(tail.double(), dim=-1, keepdim=True).square()).sqrt()


def dot(x: Vec, y: Vec) -> Tensor:
    """Inner product over the last axis (kept), float64."""
    (a, a_tail), (b, b_tail) = _blocks(x), _blocks(y)
    body = torch.linalg.vecdot(a, b).double().sum(-1, keepdim=True)
    return body + (a_tail.double() * b_tail.double()).sum(-1, keepdim=True)


def unit(x: Vec) -> Vec:
    """x / ‖x‖, and exactly 0 where x is 0."""
    return x * (1.0 / norm(x).clamp_min(1e-12)).to(x.dtype)


def cosine(x: Vec, y: Vec) -> Tensor:
    """Cosine of the angle between x and y; 0 if either is 0."""
    return dot(x, y) / (norm(x) * norm(y)).clamp_min(1e-24)


def is_finite(x: Tensor) -> bool:
    """True if no element is NaN or infinite. The sum settles nearly every case in one pass."""
    if not x.is_floating_point() or math.isfinite(x.sum().item()):
        return True
    return bool(torch.isfinite(x).all())


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order in which they fill a vector."""

    names: tuple[str, ...]  # as `named_parameters()` has them
    shapes: tuple[tuple[int, ...], ...]  # in the same order

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def views(self, w: Vec) -> list[Tensor]:
        """One view per parameter of a vector, or of a stack of vectors."""
        pieces = w.split(self.sizes, dim=-1)
        return [
            piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for piece, shape in zip(pieces, self.shapes, strict=True)
        ]

    def named(self, w: Vec) -> dict[str, Tensor]:
        return dict(zip(self.names, self.views(w), strict=True))

    def placed(self, whole: Vec, part: Layout, values: Vec) -> Vec:
        """A copy of a vector in which the parameters of another layout have these values."""
        new = whole.clone()
        views = self.named(new)
        for name, value in part.named(values).items():
            views[name].copy_(value)
        return new

    def select(self, keep: Callable[[str], bool]) -> Layout:
        """The layout of those parameters whose name is kept."""
        chosen = [i for i, name in enumerate(self.names) if keep(name)]
        return Layout(tuple(self.names[i] for i in chosen), tuple(self.shapes[i] for i in chosen))

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """The trainable parameters of a module; a tied one stands in it once."""
        trainable = [(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]
        return Layout(tuple(n for n, _ in trainable), tuple(s for _, s in trainable))


NOTHING = Layout((), ())


def flatten(tensors: Sequence[Tensor]) -> Vec:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def add_each(to: Sequence[Tensor], what: Sequence[Tensor], alpha: float) -> None:
    """to += alpha·what for lists of tensors, in one call."""
    torch._foreach_add_(to, what, alpha=alpha)  # type: ignore[attr-defined]


def copy_each(to: Sequence[Tensor], what: Sequence[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, what)  # type: ignore[attr-defined]


def map_tree(f: Callable[..., Any], *trees: Any) -> Any:
    """Apply f to corresponding tensors of equal trees."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_tree(f, *(t[key] for t in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(map_tree(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)


def take(x: Any, index: Any) -> Any:
    """The chosen samples of a tensor, or of every tensor of a tuple or dict."""
    return map_tree(lambda t: t[index], x)


def cloned(x: Any) -> Any:
    return map_tree(lambda t: t.clone(), x)


def sent(t: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; from pinned memory, so that the host need not wait."""
    if device.type == "cuda" and t.device.type == "cpu":
        return t.pin_memory().to(device, non_blocking=True)
    return t.to(device)


def count(x: Any) -> int:
    """How many samples stand in a tensor, tuple or dict of tensors."""
    if isinstance(x, Tensor):
        return x.shape[0]
    return next(iter(x.values() if isinstance(x, dict) else x)).shape[0]
