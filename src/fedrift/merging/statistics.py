"""What a model can tell of its data without showing them: Fisher information, Gram matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedrift.adapters.layers import weight_of
from fedrift.core.flat import Inputs, Vec, count, flatten, take
from fedrift.core.problem import Problem
from fedrift.errors import InputError

CHUNK = 250


def fisher_information(problem: Problem, w: Vec, x: Inputs, y: Any = None) -> Vec:
    """The mean over inputs of E over y ∼ p(y|x) of (∂ log p(y|x) / ∂w)², entry by entry.

    The expectation over classes is taken exactly, so no label is needed. Labels at the positions of
    a sequence are independent given the input, so that their information adds up; positions whose
    label `y` is below 0 are filling, and count for nothing.
    """
    if problem.classes is None:
        raise InputError("merge rule 'fisher' needs a model with classes")
    model, y = problem.model, torch.zeros(count(x)) if y is None else y
    model.load(w)
    total = torch.zeros_like(w, dtype=torch.float64)
    with torch.enable_grad():
        for i in range(count(x)):
            logits = model.output(take(x, slice(i, i + 1)))
            logs = torch.log_softmax(logits, 1)
            shares = logs.detach().exp()
            filled = _filled(take(y, slice(i, i + 1)), (1, *logits.shape[2:]))
            if filled is not None:
                shares.masked_fill_(filled[:, None], 0.0)
            for place in torch.nonzero(shares > 0).tolist():  # a class, of a position if there are
                at = tuple(place)
                gradient = torch.autograd.grad(
                    logs[at], model.parameters, retain_graph=True, allow_unused=True,
                    materialize_grads=True,
                )  # fmt: skip
                square = flatten(gradient).double().square_()
                total.add_(square, alpha=float(shares[at]))
    return total / count(x)


@torch.no_grad()
def gram_matrices(problem: Problem, w: Vec, x: Inputs, y: Any = None) -> dict[str, Tensor]:
    """XᵀX of what enters each linear layer, by the name of its weight; with a column of ones where
    the layer has a bias. Positions whose label `y` is below 0 are filling, and left out."""
    model, trained = problem.model, set(problem.layout.names)
    model.load(w)
    y = torch.zeros(count(x)) if y is None else y
    sums = _Grams()
    hooks = [
        layer.register_forward_pre_hook(sums.adder(weight_of(name), layer.bias is not None))
        for name, layer in model.module.named_modules()
        if isinstance(layer, nn.Linear) and weight_of(name) in trained
    ]
    try:
        for start in range(0, count(x), CHUNK):
            some = slice(start, start + CHUNK)
            sums.labels = take(y, some)
            model.output(take(x, some))
    finally:
        for hook in hooks:
            hook.remove()
    if not sums.grams:
        raise InputError(
            "merge rule 'regmean' needs a model with layers nn.Linear that are trained; it has none"
        )
    return sums.grams


class _Grams:
    """Sums over the chunks of the inputs."""

    def __init__(self) -> None:
        self.grams: dict[str, Tensor] = {}
        self.labels: Any = None  # of the chunk

    def adder(self, name: str, has_bias: bool) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            filled = _filled(self.labels, given[0].shape[:-1])
            inputs = given[0].flatten(0, -2) if filled is None else given[0][~filled]
            inputs = inputs.double()
            if has_bias:
                inputs = torch.cat((inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)), 1)
            gram = inputs.T @ inputs
            self.grams[name] = self.grams[name] + gram if name in self.grams else gram

        return add


def _filled(y: Any, form: tuple[int, ...]) -> Tensor | None:
    """Which positions hold nothing, where there is a label for each."""
    if not isinstance(y, Tensor) or y.is_floating_point() or tuple(y.shape) != tuple(form):
        return None
    return y < 0
