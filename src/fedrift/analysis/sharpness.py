"""Sharpness: how much the loss can rise within a small distance of a model.

S_ρ(w) = max over ‖e‖ ≤ ρ of F(w + e) − F(w), by one ascent step and by projected ascent; the
adaptive kind (Kwon, Kim, Park, Choi, ICML 2021) measures e in units of the weights themselves.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.next_round import Unwatched, Watch
from fedrift.analysis.objective import Objective
from fedrift.core.flat import Layout, Vec, count, map_tree, norm
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import curvature as pictures
from fedrift.rng import generator
from fedrift.storage.jsonl import Record

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
        rng = generator(0, "ascent")
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


# The measurement: the global model, and local models against it.

GRADIENT = 0.4  # of the time of a Hessian product


def measure(case: Case, options: Options) -> Finding:
    """S_ρ by one step and by ascent, plain and adaptive; local against global (FedGF)."""
    data, data_name = case.data(options)
    temperature = case.shown.temperature
    objective = Objective(case.problem, data, moved=case.moved, temperature=temperature)
    try:
        local, why = case.trained(case.few(options.clients), options.watch), ""
    except NotMeasured as reason:
        local, why = {}, f" Local models are not compared: {reason}."
    share = max(1, options.images // len(local)) if options.images and local else 0
    sets = {client: case.client(client, share) for client in local}
    works = WORK * (2 + len(local)) if local else WORK
    each = GRADIENT * objective.seconds(case.weights)
    # Each local model sees its own samples, and the pooled ones are these together.
    extra = 2 * sum(count(x) for x, _ in sets.values()) / max(1, count(data[0]))
    options.watch.begin("gradients", works, WORK * (1 + extra) * each)

    def at(where: Objective, w: torch.Tensor) -> Record:
        measured = sharpness(
            where,
            w,
            options.rho,
            rho_a=options.rho_a,
            eta_a=options.eta_a,
            watch=options.watch,
        )
        return asdict(measured)

    pooled = map_tree(lambda *parts: torch.cat(parts), *sets.values()) if local else data
    numbers: Record = {
        "round": case.round,
        "data": data_name,
        "rho": options.rho,
        "rho_a": options.rho_a,
        "eta_a": options.eta_a,
        "global": at(objective, case.weights),
        "clients": {},
    }
    if local:
        for client, seen in local.items():
            own = case.moved | dict(zip(case.problem.moving, seen.buffers, strict=False))
            there = Objective(case.problem, sets[client], moved=own, temperature=temperature)
            numbers["clients"][str(client)] = at(there, seen.w)
        there = Objective(case.problem, pooled, moved=case.moved, temperature=temperature)
        numbers["pooled"] = at(there, case.weights)
        means = [one["ascent"] for one in numbers["clients"].values()]
        numbers["local_mean"] = float(np.mean(means))
        numbers["discrepancy"] = numbers["pooled"]["ascent"] - numbers["local_mean"]
    about = [
        f"Within ρ = {options.rho:g} of the model after round {case.round} the loss over "
        f"{data_name} rises by {numbers['global']['ascent']:.4g} (projected ascent) or "
        f"{numbers['global']['one_step']:.4g} (one step); adaptive, ρ = {options.rho_a:g}, "
        f"η = {options.eta_a:g}: "
        f"{numbers['global']['adaptive_ascent']:.4g}.{why}"
    ]
    if local:
        about.append(
            f"Local models on their own training data: {numbers['local_mean']:.4g} on average; the "
            f"global model on these data together ({count(pooled[0]):,} samples of the same "
            f"{len(local)} clients): "
            f"{numbers['pooled']['ascent']:.4g}. The difference, {numbers['discrepancy']:.4g}, is "
            "the flatness discrepancy: local flatness need not be global flatness."
        )
    drawn = {"rises": pictures.rises} | ({"discrepancy": pictures.discrepancy} if local else {})
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Sharpness", tuple(about), numbers, figures, COMMON_FIGURES["sharpness"])
