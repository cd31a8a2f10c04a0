"""Drift of the clients in the coming round, and what control variates have learned."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from fedrift.analysis.case import Case, Finding, Options
from fedrift.analysis.controls import CONTROLS, client_controls, server_lengths
from fedrift.analysis.drift import dissimilarity, geometry
from fedrift.analysis.objective import Objective
from fedrift.flat import Vec, cosine, norm
from fedrift.pictures import drift as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record


def measure(case: Case, options: Options) -> Finding:
    """Lengths and angles of updates; with passes over client data, gradients and controls too."""
    local = case.trained(case.cohort)
    uniform = case.task.algorithm.weighting() == "uniform"
    shares = [1.0 if uniform else float(seen.samples) for seen in local.values()]
    found = geometry([seen.delta for seen in local.values()], shares)
    means = found.summary()
    numbers: Record = {
        "round": case.round,
        "clients": list(local),
        "distances": found.distances,
        "to_average": found.to_average,
        "pairs": found.pairs,
        **means,
        "server_controls": server_lengths(case),
        "observed": [{"round": r["round"], **r["drift"]} for r in case.observed if r.get("drift")],
    }
    about = [
        f"The {len(local)} clients of the round after round {case.round} end on average "
        f"{means['distance']:.4g} away from the model they were sent. Their updates have a mean "
        f"cosine of {means['cosine_to_average']:.3f} with the average update and of "
        f"{means['cosine_between']:.3f} with each other."
    ]
    if options.passes:
        about += _gradients(case, options, numbers, list(local), shares)
    drawn: dict[str, Any] = {"updates": pictures.updates}
    drawn |= {"pairs": pictures.pairs} if len(local) > 1 else {}
    drawn |= {"controls": pictures.controls} if numbers.get("controls") else {}
    drawn |= {"over-rounds": pictures.over_rounds} if numbers["observed"] else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    watched = {"over-rounds": pictures.over_rounds} if numbers["observed"] else {}
    return Finding("Drift", tuple(about), numbers, figures, TOGETHER["drift"] | watched)


def _gradients(
    case: Case, options: Options, numbers: Record, clients: list[int], shares: list[float]
) -> list[str]:
    """True client gradients at the global model: they cost a pass over the clients' data."""
    w, found = case.task.algorithm.model(case.state), dict[int, Vec]()
    start = time.perf_counter()
    for place, client in enumerate(clients):
        data = case.client(client)
        temperature = case.shown.temperature
        objective = Objective(
            case.problem, data, moved=case.moved, temperature=temperature, chunk=256
        )
        found[client] = objective.grad(w)
        if not place:
            each = time.perf_counter() - start
            options.watch.begin("client gradients", len(clients), each * len(clients))
        options.watch.step()
    numbers["dissimilarity"] = different = dissimilarity(list(found.values()), shares)
    said = [
        f"Their true gradients at the global model differ by B = {different['ratio']:.3g} "
        "(1 if all agree)."
    ]
    controls: Record = {}
    for field, vectors in client_controls(case, clients).items():
        cosines = [float(cosine(v, found[c])) for c, v in vectors.items()]
        controls[field] = {
            "clients": list(vectors),
            "cosines": cosines,
            "lengths": [float(norm(v)) for v in vectors.values()],
            "gradients": [float(norm(found[c])) for c in vectors],
            "mean_cosine": float(np.mean(cosines)),
        }
        said.append(
            f"{CONTROLS[field]} has a mean cosine of {np.mean(cosines):.3f} with the client's true "
            f"gradient there ({len(vectors)} of {len(clients)} clients have one)."
        )
    numbers["controls"] = controls
    return said
