"""Drift of the clients in the coming round, and what control variates have learned."""

from __future__ import annotations

from functools import partial
from typing import Any

from fedrift.analysis.case import Case, Finding, Options
from fedrift.analysis.controls import CONTROLS, against_gradients, server_lengths
from fedrift.analysis.drift import geometry
from fedrift.pictures import drift as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record

MOST = 100  # local models that are held at once


def measure(case: Case, options: Options) -> Finding:
    """Lengths and angles of updates; with passes over client data, gradients and controls too."""
    local = case.trained(case.few(MOST), options.watch)
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
    about = [_said(case, means)]
    if options.passes:
        about += _gradients(case, options, numbers, list(local))
    drawn: dict[str, Any] = {"updates": pictures.updates}
    drawn |= {"pairs": pictures.pairs} if len(local) > 1 else {}
    drawn |= {"controls": pictures.controls} if numbers.get("controls") else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Drift", tuple(about), numbers, figures, TOGETHER["drift"])


def _said(case: Case, means: dict[str, float]) -> str:
    number, all_ = int(means["count"]), len(case.cohort)
    if number == 1:
        return (
            f"The client of the round after round {case.round} ends {means['distance']:.4g} away "
            "from the model it was sent."
        )
    some = f"{number:,}" if number == all_ else f"{number:,} of {all_:,}"
    return (
        f"The {some} clients of the round after round {case.round} end on average "
        f"{means['distance']:.4g} away from the model they were sent. Their updates have a mean "
        f"cosine of {means['cosine_to_average']:.3f} with the average update and of "
        f"{means['cosine_between']:.3f} with each other."
    )


def _gradients(case: Case, options: Options, numbers: Record, clients: list[int]) -> list[str]:
    """True client gradients at the global model: they cost a pass over the clients' data."""
    w = case.task.algorithm.model(case.state)
    options.watch.begin("client gradients", len(clients), 0.0)
    found = against_gradients(case, clients, w, options.watch.step)
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
