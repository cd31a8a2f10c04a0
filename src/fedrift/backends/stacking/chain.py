"""Models that are chains of linear layers and activations: the gradients of many at once.

Everything works on stacks: parameters (clients, …), samples (clients, batch, features). A row of
the result depends on the same row of the arguments only: products of matrices also depend on the
address that a matrix begins at, so every row of what is multiplied begins at a boundary, and of
what comes out where sums are made along its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.core.alignment import BOUNDARY, empty_rows, settled_rows
from fedrift.core.flat import Layout, Loss, copy_each

aten: Any = torch.ops.aten

Back: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Gradient of the output, input, output → gradient of the input."""


@dataclass(frozen=True)
class Affine:
    """x·Wᵀ + b; the places of W and b among the parameters."""

    weight: int
    bias: int | None


@dataclass(frozen=True)
class Activation:
    """An activation and its derivative."""

    forward: Callable[[Tensor], Tensor]
    back: Back


def _gelu(approximate: str) -> Activation:
    def forward(x: Tensor) -> Tensor:
        return F.gelu(x, approximate=approximate)

    return Activation(forward, lambda g, x, y: aten.gelu_backward(g, x, approximate=approximate))


BENDS: dict[str, Activation] = {
    "relu": Activation(torch.relu, lambda g, x, y: aten.threshold_backward(g, y, 0)),
    "tanh": Activation(torch.tanh, lambda g, x, y: aten.tanh_backward(g, y)),
    "sigmoid": Activation(torch.sigmoid, lambda g, x, y: aten.sigmoid_backward(g, y)),
    "gelu": _gelu("none"),
    "gelu tanh": _gelu("tanh"),
}
MODULES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
Link: TypeAlias = Affine | Activation


def _as_it_is(y: Tensor, share: Tensor, outputs: int) -> Tensor:
    return y


def _shares(y: Tensor, share: Tensor, outputs: int) -> Tensor:
    """What a sample counts, in the place of its class."""
    zeros = torch.zeros((*y.shape, outputs), dtype=share.dtype, device=share.device)
    return zeros.scatter_(-1, y.unsqueeze(-1), share)


Seen: TypeAlias = tuple[Tensor, ...]
"""What the losses of a batch are made of: its outputs, and what the gradient has found on the way
that would take time to find again."""


def _cross_entropy(z: Tensor, wanted: Tensor, share: Tensor, seen: list[Seen]) -> Tensor:
    top = z.amax(-1, keepdim=True)
    p = z.sub(top).exp_()  # torch.softmax takes longer on short rows
    total = p.sum(-1, keepdim=True)
    seen.append((z, top, total))
    return p.mul_(share / total).sub_(wanted)


def _squared(z: Tensor, wanted: Tensor, share: Tensor, seen: list[Seen]) -> Tensor:
    seen.append((z,))
    return (z - wanted).mul_(share * (2.0 / z.shape[-1]))


def _absolute(z: Tensor, wanted: Tensor, share: Tensor, seen: list[Seen]) -> Tensor:
    seen.append((z,))
    return (z - wanted).sign_().mul_(share / z.shape[-1])


def _binary(z: Tensor, wanted: Tensor, share: Tensor, seen: list[Seen]) -> Tensor:
    seen.append((z,))
    return torch.sigmoid(z).sub_(wanted).mul_(share / z.shape[-1])


Losses: TypeAlias = Callable[[Seen, Tensor], tuple[Tensor, Tensor | None]]
"""What was seen, and the targets → each sample's loss and, of classes, whether it is right."""


def _class_losses(seen: Seen, y: Tensor) -> tuple[Tensor, Tensor | None]:
    z, top, total = seen
    own = z.gather(-1, y.unsqueeze(-1))
    has_ties = z.is_cuda or int(torch.count_nonzero(z == top)) != y.numel()
    hits = z.argmax(-1, keepdim=True) == y.unsqueeze(-1) if has_ties else own == top
    return total.log().add_(top).sub_(own).squeeze(-1), hits.squeeze(-1)


def _mean_losses(loss: Loss) -> Losses:
    """Per sample, the mean over its outputs."""
    return lambda seen, y: (loss(seen[0], y, reduction="none").mean(-1), None)  # type: ignore[call-arg]


class Slope(NamedTuple):
    """The gradient of a mean loss by the output; `share` is what a sample counts (0: padding)."""

    wanted: Callable[[Tensor, Tensor, int], Tensor]
    """What is made of the targets beforehand, for many steps at once."""
    at: Callable[[Tensor, Tensor, Tensor, list[Seen]], Tensor]
    losses: Losses


SLOPES: dict[Loss, Slope] = {
    F.cross_entropy: Slope(_shares, _cross_entropy, _class_losses),
    F.mse_loss: Slope(_as_it_is, _squared, _mean_losses(F.mse_loss)),
    F.l1_loss: Slope(_as_it_is, _absolute, _mean_losses(F.l1_loss)),
    F.binary_cross_entropy_with_logits: Slope(
        _as_it_is, _binary, _mean_losses(F.binary_cross_entropy_with_logits)
    ),
}


class Bound(NamedTuple):
    """The parameters of a linear layer as they are multiplied."""

    weight: Tensor
    turned: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Chain:
    """The model, link after link, and the gradient of its loss by the output."""

    links: tuple[Link, ...]
    loss: Loss
    inputs: int
    outputs: int
    flattens: bool

    def takes(self, x: Any, y: Any) -> bool:
        """Samples of the form that the written-out loss is written for."""
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or not x.is_floating_point():
            return False
        if prod(x.shape[1:]) != self.inputs or not (self.flattens or x.dim() == 2):
            return False
        if self.loss is F.cross_entropy:
            return y.dim() == 1 and y.dtype == torch.int64
        return y.is_floating_point() and y.shape[1:] == (self.outputs,)

    def wanted(self, y: Tensor, share: Tensor) -> Tensor:
        """The targets as the gradient needs them."""
        return SLOPES[self.loss].wanted(y, share, self.outputs)

    def losses(self, seen: Sequence[Seen], y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of each sample of several batches and, of classes, whether it is right."""
        together = tuple(torch.cat(same) for same in zip(*seen, strict=True))
        return SLOPES[self.loss].losses(together, y)

    def bound(self, parameters: Sequence[Tensor]) -> list[Bound | None]:
        """Parameters for each link; they stay views, so they may be moved afterwards."""
        return [
            Bound(
                parameters[link.weight],
                parameters[link.weight].transpose(1, 2),
                None if link.bias is None else parameters[link.bias].unsqueeze(1),
            )
            if isinstance(link, Affine)
            else None
            for link in self.links
        ]

    def gradients(
        self,
        bound: Sequence[Bound | None],
        x: Tensor,
        wanted: Tensor,
        share: Tensor,
        seen: list[Seen],
    ) -> list[Tensor]:
        """Gradients of each row's mean loss, one stack per parameter, freshly made; what its losses
        are made of is added to `seen`."""
        passed = self.forward(bound, x)
        slope = SLOPES[self.loss].at(passed[-1], wanted, share, seen)
        made: dict[int, Tensor] = {}
        for place in reversed(range(len(self.links))):
            link, own, given = self.links[place], bound[place], passed[place]
            if isinstance(link, Activation):
                slope = link.back(slope, given, passed[place + 1])
                continue
            _, samples, outputs = slope.shape
            roomy = _roomy(slope, given.shape[2])
            made[link.weight] = torch.bmm(roomy[:, :samples].transpose(1, 2), given)[:, :outputs]
            if link.bias is not None:
                made[link.bias] = slope.sum(1)
            if place and own is not None:
                slope = torch.bmm(roomy[..., :outputs], own.weight)[:, :samples]
        return [made[i] for i in range(len(made))]

    def forward(self, bound: Sequence[Bound | None], x: Tensor) -> list[Tensor]:
        """The samples, and what every link makes of them."""
        passed = [x]
        for link, own in zip(self.links, bound, strict=True):
            if isinstance(link, Activation):
                x = link.forward(x)
                passed.append(x)
                continue
            x = passed[-1] = settled_rows(x)
            if own is not None and own.bias is not None:
                x = torch.baddbmm(own.bias, x, own.turned)
            elif own is not None:
                x = torch.bmm(x, own.turned)
            passed.append(x)
        return passed


def _roomy(slope: Tensor, width: int) -> Tensor:
    """The slope with so many samples and outputs of 0 beside its own that products of it, `width`
    wide and packed row after row, have every row at a boundary."""
    rows, samples, outputs = slope.shape
    unit = BOUNDARY // slope.element_size()
    unit //= gcd(unit, width)
    shape = (rows, -(-samples // unit) * unit, -(-outputs // unit) * unit)
    if shape == slope.shape:
        return settled_rows(slope)
    roomy = empty_rows(slope, shape).zero_()
    roomy[:, :samples, :outputs] = slope
    return roomy


# Recognises a module as a chain of linear layers and activations; nothing is guessed.


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
        elif isinstance(part, Activation):
            links.append(part)
        else:
            return None
    used = [p for k in links if isinstance(k, Affine) for p in (k.weight, k.bias) if p is not None]
    if not linear or sorted(used) != list(range(len(layout.names))):  # tied, frozen or unused ones
        return None
    ends = linear[0].in_features, linear[-1].out_features
    chain = Chain(tuple(links), loss, *ends, flattens)
    return chain if _agrees(chain, module, layout) else None


def _parts(module: nn.Module) -> Iterator[nn.Module | Activation | str]:
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
