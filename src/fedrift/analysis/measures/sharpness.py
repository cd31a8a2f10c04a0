"""Sharpness of the global model, and of local models against it."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

import numpy as np
import torch

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.objective import Objective
from fedrift.analysis.sharpness import WORK, sharpness
from fedrift.flat import count, map_tree
from fedrift.pictures import sharpness as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record

GRADIENT = 0.4  # of the time of a Hessian product


def measure(case: Case, options: Options) -> Finding:
    """S_ρ by one step and by ascent, plain and adaptive; local against global (FedGF)."""
    data, said = case.data(options)
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
        found = sharpness(
            where,
            w,
            options.rho,
            rho_a=options.rho_a,
            eta_a=options.eta_a,
            watch=options.watch,
        )
        return asdict(found)

    pooled = map_tree(lambda *parts: torch.cat(parts), *sets.values()) if local else data
    numbers: Record = {
        "round": case.round,
        "data": said,
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
        f"Within ρ = {options.rho:g} of the model after round {case.round} the loss over {said} "
        f"rises by {numbers['global']['ascent']:.4g} (projected ascent) or "
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
    return Finding("Sharpness", tuple(about), numbers, figures, TOGETHER["sharpness"])
