"""The rules by which several models become one: formulas on flat vectors, nothing else.

θ_0 is the common start, θ_t the models, δ_t = θ_t − θ_0 what each has learned. Sums are taken in
double precision in the order of the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedrift.core.flat import Layout, Vec, flatten
from fedrift.rng import torch_seed


def mean(models: Sequence[Vec]) -> Vec:
    return _double(models).mean(0).to(models[0].dtype)


def task_arithmetic(start: Vec, models: Sequence[Vec], scale: float) -> Vec:
    """θ_0 + λ Σ δ_t (Ilharco et al. 2023)."""
    return _from(start, scale * _changes(start, models).sum(0))


def ties(start: Vec, models: Sequence[Vec], keep: float, scale: float = 1.0) -> Vec:
    """Trim, elect a sign, and average those who agree (Yadav et al. 2023)."""
    trimmed = torch.stack([_largest(change, keep) for change in _changes(start, models)])
    elected = trimmed.sum(0).sign()
    agrees = (trimmed.sign() == elected) & (trimmed != 0)
    total = torch.where(agrees, trimmed, 0.0).sum(0)
    return _from(start, scale * total / agrees.sum(0).clamp(min=1))


def dare(start: Vec, models: Sequence[Vec], drop: float, scale: float, seed: int = 0) -> Vec:
    """Entries of δ_t are dropped with probability p, the rest divided by 1 − p; then they are
    added up as in task arithmetic (Yu et al. 2024)."""
    kept = [_thinned(d, drop, seed, t) for t, d in enumerate(_changes(start, models))]
    return _from(start, scale * torch.stack(kept).sum(0))


def fisher(models: Sequence[Vec], information: Sequence[Vec]) -> Vec:
    """Σ F_t θ_t / Σ F_t, entry by entry; the mean where nobody knows anything
    (Matena, Raffel 2022)."""
    weights, all_models = _double(information), _double(models)
    total = weights.sum(0)
    weighted = (weights * all_models).sum(0) / total.clamp(min=torch.finfo(total.dtype).tiny)
    return torch.where(total > 0, weighted, all_models.mean(0)).to(models[0].dtype)


def regmean(
    layout: Layout, models: Sequence[Vec], grams: Sequence[dict[str, Tensor]], shrink: float = 0.9
) -> Vec:
    """Linear layers W = (Σ G_t)⁻¹ Σ G_t W_t with G_t = XᵀX of what enters the layer, the rest the
    mean (Jin et al. 2023). `grams` has G_t by the name of the layer's weight; a bias is the
    weight of an input that is always 1, so G_t has one row more where there is one.

    What is solved for is the difference from the mean of the W_t, so that where the inputs leave a
    weight open, such as that of an input that never occurs, it is the mean.
    """
    merged = layout.named(mean(models).clone())
    tensors = [layout.named(w) for w in models]
    for name in grams[0]:
        bias = f"{name.removesuffix('weight')}bias"
        has_bias = bias in merged
        scaled = [_shrunk(gram[name], shrink) for gram in grams]
        weights = [_columns(t, name, bias, has_bias) for t in tensors]
        middle = torch.stack(weights).mean(0)
        right = [g @ (w - middle) for g, w in zip(scaled, weights, strict=True)]
        solved = middle + _solve(sum(scaled[1:], scaled[0]), sum(right[1:], right[0]))
        if has_bias:
            merged[bias].copy_(solved[-1])
            solved = solved[:-1]
        merged[name].copy_(solved.T)
    return flatten([merged[name] for name in layout.names])


def weighted(start: Vec, models: Sequence[Vec], weights: Tensor, groups: Sequence[slice]) -> Vec:
    """θ_0 + Σ_t c_tg δ_t, with a coefficient for every model and group of parameters."""
    changes = _changes(start, models)
    total = torch.zeros_like(changes[0])
    for column, group in enumerate(groups):
        total[group] = weights[:, column].double() @ changes[:, group]
    return _from(start, total)


def search(
    loss: Callable[[Tensor], float], models: int, groups: int, steps: int, seed: int = 0
) -> Tensor:
    """Coefficients that make `loss` small, found without gradients: a (1+1) evolution strategy
    whose step follows the one-fifth rule (Rechenberg 1973), from the mean onwards."""
    random = torch.Generator().manual_seed(torch_seed(seed, "evolve"))
    best = torch.full((models, groups), 1.0 / models, dtype=torch.float64)
    value, size = loss(best), 0.3
    for _ in range(steps):
        step = torch.randn(best.shape, generator=random, dtype=torch.float64)
        tried = best + size * step
        found = loss(tried)
        if found <= value:
            best, value, size = tried, found, size * 1.5
        else:
            size *= 1.5**-0.25
    return best


def _double(models: Sequence[Vec]) -> Tensor:
    return torch.stack([w.double() for w in models])


def _changes(start: Vec, models: Sequence[Vec]) -> Tensor:
    return _double(models) - start.double()


def _from(start: Vec, change: Tensor) -> Vec:
    return (start.double() + change).to(start.dtype)


def _largest(change: Tensor, keep: float) -> Tensor:
    """The fraction `keep` of largest magnitude, ties by index; zero elsewhere."""
    number = max(1, round(keep * change.numel()))
    if number >= change.numel():
        return change
    order = torch.sort(change.abs(), descending=True, stable=True).indices[:number]
    kept = torch.zeros_like(change)
    kept[order] = change[order]
    return kept


def _thinned(change: Tensor, drop: float, seed: int, model: int) -> Tensor:
    random = torch.Generator().manual_seed(torch_seed(seed, "dare", client=model))
    stays = torch.rand(change.shape, generator=random, dtype=torch.float64) >= drop
    return torch.where(stays, change / (1.0 - drop), 0.0)


def _shrunk(gram: Tensor, shrink: float) -> Tensor:
    """Entries off the diagonal times `shrink`."""
    gram = gram.double()
    return gram * shrink + torch.diag(gram.diagonal() * (1.0 - shrink))


def _columns(tensors: dict[str, Tensor], name: str, bias: str, has_bias: bool) -> Tensor:
    """A layer's weights as inputs × outputs, the bias as the last input."""
    weight = tensors[name].double().T
    return torch.cat((weight, tensors[bias].double()[None])) if has_bias else weight


def _solve(gram: Tensor, right: Tensor) -> Tensor:
    """The least-squares solution of smallest norm: inputs that never occur leave G singular."""
    return torch.linalg.lstsq(gram, right, driver="gelsd").solution
