"""Curvature of the global model and of some local models of a run."""

from __future__ import annotations

from functools import partial

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.hessian import (
    PRODUCTS,
    lanczos_steps,
    spectral_density,
    top_eigenvalues,
    trace,
)
from fedrift.analysis.objective import Objective
from fedrift.pictures import hessian as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record

TRACE_PROBES = 8


def measure(case: Case, options: Options) -> Finding:
    """Top eigenvalues, density and trace of the global model; eigenvalues of local ones."""
    data, said = case.data(options)
    moved, temperature = case.moved, case.shown.temperature
    objective = Objective(case.problem, data, moved=moved, temperature=temperature)
    w, watch = case.weights, options.watch
    try:
        number = min(options.curved, options.clients or options.curved)
        local = case.trained(case.few(number), watch) if number else {}
        why = ""
    except NotMeasured as reason:
        local, why = {}, f" No local models: {reason}."
    steps = lanczos_steps(objective.size, options.steps, w)
    products = PRODUCTS * (1 + len(local)) + steps * options.probes + TRACE_PROBES
    watch.begin("Hessian products", products, products * objective.seconds(w))
    values = top_eigenvalues(objective, w, options.top, watch)
    if not values:
        raise NotMeasured("no eigenvalue of its Hessian converged")
    density = spectral_density(objective, w, steps=steps, probes=options.probes, watch=watch)
    total, error = trace(objective, w, TRACE_PROBES, watch)
    grid, curve = density.curve()
    clients: Record = {}
    for client, seen in local.items():
        own = moved | dict(zip(case.problem.moving, seen.buffers, strict=False))
        there = Objective(case.problem, data, moved=own, temperature=temperature)
        clients[str(client)] = {"eigenvalues": top_eigenvalues(there, seen.w, options.top, watch)}
    numbers: Record = {
        "round": case.round,
        "data": said,
        "parameters": objective.size,
        "global": {
            "eigenvalues": values,
            "ratio": values[0] / values[-1] if values[-1] else float("nan"),
            "trace": total,
            "trace_error": error,
            "lanczos_steps": steps,
            "probes": options.probes,
            "nodes": [n.tolist() for n in density.nodes],
            "weights": [n.tolist() for n in density.weights],
            "density": {"grid": grid.tolist(), "density": curve.tolist()},
        },
        "clients": clients,
    }
    about = (
        f"Hessian of the mean loss over {said}, without decay, of the model after round "
        f"{case.round}. The largest eigenvalue is {values[0]:.4g}, the trace {total:.4g} ± "
        f"{error:.2g}.{why}",
        "Smaller eigenvalues mean a flatter minimum. Local models are measured on the same data.",
    )
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in _PICTURES.items()}
    return Finding("Curvature", about, numbers, figures, TOGETHER["hessian"])


_PICTURES = {"eigenvalues": pictures.eigenvalues, "density": pictures.density}
