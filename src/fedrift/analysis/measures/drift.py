"""Drift of the clients in the coming round, and what control variates have learned."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fedrift.analysis.case import Case, Finding, Options
from fedrift.analysis.controls import CONTROLS, against_gradients, server_lengths
from fedrift.analysis.drift import geometry
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
    }
    about = [
        f"The {len(local)} clients of the round after round {case.round} end on average "
        f"{means['distance']:.4g} away from the model they were sent. Their updates have a mean "
        f"cosine of {means['cosine_to_average']:.3f} with the average update and of "
        f"{means['cosine_between']:.3f} with each other."
    ]
    if options.passes:
        about += _gradients(case, options, numbers, list(local))
    drawn: dict[str, Any] = {"updates": pictures.updates}
    drawn |= {"pairs": pictures.pairs} if len(local) > 1 else {}
    drawn |= {"controls": pictures.controls} if numbers.get("controls") else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Drift", tuple(about), numbers, figures, TOGETHER["drift"])


def _gradients(case: Case, options: Options, numbers: Record, clients: list[int]) -> list[str]:
    """True client gradients at the global model: they cost a pass over the clients' data."""
    w, start, done = case.task.algorithm.model(case.state), time.perf_counter(), 0

    def after_each() -> None:
        nonlocal done
        done += 1
        if done == 1:
            each = time.perf_counter() - start
            options.watch.begin("client gradients", len(clients), each * len(clients))
        options.watch.step()

    found = against_gradients(case, clients, w, after_each)
    numbers |= found
    said = [
        f"Their true gradients at the global model differ by B = "
        f"{found['dissimilarity']['ratio']:.3g} (1 if all agree)."
    ]
    for letter, one in found["controls"].items():
        said.append(
            f"{CONTROLS[letter]} has a mean cosine of {one['mean_cosine']:.3f} with the client's "
            f"true gradient there ({len(one['clients'])} of {len(clients)} clients have one)."
        )
    return said
