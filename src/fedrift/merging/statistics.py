"""What a model can tell of its data without showing them: Fisher information, Gram matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedrift.core.flat import Inputs, Vec, count, flatten, take
from fedrift.core.problem import Problem
from fedrift.errors import InputError

CHUNK = 250


def fisher_information(problem: Problem, w: Vec, x: Inputs) -> Vec:
    """The mean over inputs of E over y ∼ p(y|x) of (∂ log p(y|x) / ∂w)², entry by entry.

    The expectation over classes is taken exactly, so no label is needed. Labels at the positions of
    a sequence are independent given the input, so that their information adds up.
    """
    if problem.classes is None:
        raise InputError("merge rule 'fisher' needs a model with classes")
    model = problem.model
    model.load(w)
    total = torch.zeros_like(w, dtype=torch.float64)
    with torch.enable_grad():
        for i in range(count(x)):
            logits = model.output(take(x, slice(i, i + 1)))
            logs = torch.log_softmax(logits, 1)
            shares = logs.detach().exp()
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
def gram_matrices(problem: Problem, w: Vec, x: Inputs) -> dict[str, Tensor]:
    """XᵀX of what enters each linear layer, by the name of its weight; with a column of ones where
    the layer has a bias."""
    model, trained = problem.model, set(problem.layout.names)
    model.load(w)
    grams: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(_adder(grams, f"{name}.weight", layer.bias is not None))
        for name, layer in model.module.named_modules()
        if isinstance(layer, nn.Linear) and f"{name}.weight" in trained
    ]
    try:
        for start in range(0, count(x), CHUNK):
            model.output(take(x, slice(start, start + CHUNK)))
    finally:
        for hook in hooks:
            hook.remove()
    if not grams:
        raise InputError("merge rule 'regmean' needs a model with linear layers")
    return grams


def _adder(
    grams: dict[str, Tensor], name: str, has_bias: bool
) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs = given[0].flatten(0, -2).double()
        if has_bias:
            inputs = torch.cat((inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)), 1)
        gram = inputs.T @ inputs
        grams[name] = grams[name] + gram if name in grams else gram

    return add
