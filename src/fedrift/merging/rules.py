"""The rules by which several models become one: formulas on flat vectors, nothing else.

θ_0 is the common start, θ_t the models, δ_t = θ_t − θ_0 what each has learned. Sums are taken in
double precision in the order of the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedrift.adapters.layers import A, B
from fedrift.core.flat import Layout, Vec, flatten
from fedrift.rng import torch_seed

PENALTY = 0.05  # of the coefficients' absolute values, in `evolve`
FIRST_STEP = 0.3  # of a search for coefficients


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


def blocks(layout: Layout) -> list[str]:
    """The block of layers that each tensor is in: its name up to the first number (`blocks.0` of
    `blocks.0.up.weight`), else the name of its layer; LoRA's factors are their layer's."""
    found: list[str] = []
    for name in layout.names:
        parts = name.split(".")
        numbers = [i + 1 for i, part in enumerate(parts) if part.isdigit()]
        is_factor = len(parts) > 2 and parts[-2] in (A, B)
        end = numbers[0] if numbers else len(parts) - (2 if is_factor else 1)
        found.append(".".join(parts[: max(1, end)]))
    return found


def spans(layout: Layout, owners: Sequence[str]) -> list[tuple[str, slice]]:
    """The vector in stretches of tensors with one owner; an owner may have several."""
    found: list[tuple[str, slice]] = []
    end = 0
    for owner, tensors in groupby(zip(owners, layout.sizes, strict=True), lambda one: one[0]):
        start, end = end, end + sum(size for _, size in tensors)
        found.append((owner, slice(start, end)))
    return found


def penalised(fit: float, coefficients: Tensor) -> float:
    """What a search makes small: the loss and 0.05 times the sum over the models of their
    coefficients' absolute values (LoRAHub); over blocks the mean, so that a model whose blocks all
    have one coefficient costs what it does without blocks."""
    return fit + PENALTY * float(coefficients.abs().mean(1).sum())


def search(
    loss: Callable[[Tensor], float], models: int, groups: int, steps: int, seed: int = 0
) -> Tensor:
    """Coefficients that make `loss` small, found without gradients: a (1+1) evolution strategy
    whose step follows the one-fifth rule (Rechenberg 1973), from the mean onwards."""
    random = torch.Generator().manual_seed(torch_seed(seed, "evolve"))
    best = _equal(models, groups)
    value, size = loss(best), FIRST_STEP
    for _ in range(steps):
        step = torch.randn(best.shape, generator=random, dtype=torch.float64)
        tried = best + size * step
        found = loss(tried)
        if found <= value:
            best, value, size = tried, found, size * 1.5
        else:
            size *= 1.5**-0.25
    return best


def search_by_cma(
    loss: Callable[[Tensor], float], models: int, groups: int, steps: int, seed: int = 0
) -> Tensor:
    """The same by CMA-ES, which also learns how coefficients hang together (Hansen, Ostermeier
    2001; the library cma). Ends after as many trials, or when the strategy says so."""
    from cma import CMAEvolutionStrategy  # type: ignore[import-not-found]

    random = torch.Generator().manual_seed(torch_seed(seed, "evolve"))

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, dtype=torch.float64).numpy()

    best = _equal(models, groups)
    value, tries = loss(best), 0
    options = {"randn": normal, "seed": float("nan"), "verbose": -9}  # nan: no global seed is set
    strategy: Any = CMAEvolutionStrategy(best.flatten().tolist(), FIRST_STEP, options)
    while tries < steps and not strategy.stop():
        asked = strategy.ask()
        losses: list[float] = []
        for point in asked[: steps - tries]:
            tried = torch.as_tensor(point, dtype=torch.float64).reshape(best.shape).clone()
            losses.append(loss(tried))
            if losses[-1] < value:
                best, value = tried, losses[-1]
        tries += len(losses)
        if len(losses) == len(asked):
            strategy.tell(asked, losses)
    return best


SEARCHES = {"own": search, "cma": search_by_cma}


def _equal(models: int, groups: int) -> Tensor:
    return torch.full((models, groups), 1.0 / models, dtype=torch.float64)


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
