"""Sharpness: how much the loss can rise within a small distance of a model.

S_ρ(w) = max over ‖e‖ ≤ ρ of F(w + e) − F(w), by one ascent step and by projected ascent; the
adaptive kind (Kwon, Kim, Park, Choi, ICML 2021) measures e in units of the weights themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedrift.analysis.objective import Objective
from fedrift.analysis.patience import Unwatched, Watch
from fedrift.flat import Layout, Vec, norm
from fedrift.streams import stream

STEPS, PART = 20, 5  # projected ascent: 20 steps of length ρ/5
WORK = 2 * (STEPS + 2)  # gradients that `measure` takes, about


@dataclass(frozen=True)
class Sharpness:
    """Rises of the loss within ρ; ρ_a and η_a belong to the adaptive ones."""

    rho: float
    rho_a: float
    eta_a: float
    loss: float
    """F(w) itself."""
    one_step: float
    ascent: float
    adaptive_one_step: float
    adaptive_ascent: float


def scale_of(w: Vec, layout: Layout, eta_a: float) -> Vec:
    """T of ASAM: |w| + η_a for tensors whose name contains "weight", 1 for the others."""
    scale = torch.ones_like(w)
    for name, view, value in zip(layout.names, layout.views(scale), layout.views(w), strict=True):
        if "weight" in name:
            view.copy_(value.abs() + eta_a)
    return scale


def _toward(direction: Vec, length: float) -> Vec:
    return direction * (length / norm(direction).clamp_min(1e-12)).to(direction.dtype)


def rises(
    objective: Objective, w: Vec, rho: float, scale: Vec | None = None, watch: Watch | None = None
) -> tuple[float, float, float]:
    """F(w), its rise after one ascent step of length ρ, and the largest rise of projected ascent.

    With a scale T the step is u with e = T·u, and ‖u‖ ≤ ρ.
    """
    watch = watch or Unwatched()
    t = torch.ones_like(w) if scale is None else scale
    base, g = objective.value_and_grad(w)
    watch.step()
    pull = t * g
    if not float(norm(pull)):  # at a critical point any direction may be uphill
        rng = stream(0, "ascent")
        pull = t * torch.from_numpy(rng.standard_normal(w.numel())).to(w)
    one = objective.loss(w + t * _toward(pull, rho)) - base
    watch.step()
    u, best = torch.zeros_like(w), 0.0
    for _ in range(STEPS):
        u = u + _toward(pull, rho / PART)
        length = float(norm(u))
        u = u * (rho / length) if length > rho else u
        value, g = objective.value_and_grad(w + t * u)
        watch.step()
        best, pull = max(best, value - base), t * g
    return base, one, best


def sharpness(
    objective: Objective,
    w: Vec,
    rho: float = 0.05,
    *,
    rho_a: float = 0.5,
    eta_a: float = 0.01,
    watch: Watch | None = None,
) -> Sharpness:
    """Plain and adaptive sharpness of one model on one data set."""
    base, one, ascent = rises(objective, w, rho, None, watch)
    scale = scale_of(w, objective.problem.layout, eta_a)
    _, scaled_one, scaled = rises(objective, w, rho_a, scale, watch)
    return Sharpness(rho, rho_a, eta_a, base, one, ascent, scaled_one, scaled)
