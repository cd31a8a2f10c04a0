"""Curvature of the global model and of some local models of a run."""

from __future__ import annotations

from functools import partial

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.hessian import (
    expected_products,
    lanczos_steps,
    spectral_density,
    top_eigenvalues,
    trace,
)
from fedrift.analysis.objective import Objective
from fedrift.flat import Vec
from fedrift.pictures import hessian as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record

TRACE_PROBES = 8


def measure(case: Case, options: Options) -> Finding:
    """Top eigenvalues, density and trace of the global model; of local ones as far as asked."""
    data, said = case.data(options)
    moved, temperature, watch = case.moved, case.shown.temperature, options.watch
    objective = Objective(case.problem, data, moved=moved, temperature=temperature)
    try:
        number = min(options.curved, options.clients or options.curved)
        local = case.trained(case.few(number), watch) if number else {}
        why = ""
    except NotMeasured as reason:
        local, why = {}, f" No local models: {reason}."
    steps = lanczos_steps(objective.size, options.steps, case.weights)
    cut = f" The density has {steps} Lanczos steps: more do not fit." * (steps < options.steps)
    whole = 1 + len(local) * options.local_density
    products = expected_products(options.top) * (1 + len(local))
    products += (steps * options.probes + TRACE_PROBES) * whole
    watch.begin("Hessian products", products, products * objective.seconds(case.weights))
    found = _spectrum(objective, case.weights, options)
    values, total, error = found["eigenvalues"], found["trace"], found["trace_error"]
    clients: Record = {}
    for client, seen in local.items():
        own = moved | dict(zip(case.problem.moving, seen.buffers, strict=False))
        there = Objective(case.problem, data, moved=own, temperature=temperature)
        if options.local_density:
            clients[str(client)] = _spectrum(there, seen.w, options)
        else:
            top = top_eigenvalues(there, seen.w, options.top, watch)
            clients[str(client)] = {"eigenvalues": top}
    numbers: Record = {
        "round": case.round,
        "data": said,
        "parameters": objective.size,
        "global": found,
        "clients": clients,
    }
    about = (
        f"Hessian of the mean loss over {said}, without decay, of the model after round "
        f"{case.round}. The eigenvalue of largest size is {values[0]:.4g}, the trace "
        f"{total:.4g} ± {error:.2g}.{cut}{why}",
        "Smaller eigenvalues mean a flatter minimum. Local models are measured on the same data.",
    )
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in _PICTURES.items()}
    return Finding("Curvature", about, numbers, figures, TOGETHER["hessian"])


def _spectrum(objective: Objective, w: Vec, options: Options) -> Record:
    """All that is measured of one model's Hessian."""
    watch = options.watch
    values = top_eigenvalues(objective, w, options.top, watch)
    if not values:
        raise NotMeasured("no eigenvalue of its Hessian converged")
    steps = lanczos_steps(objective.size, options.steps, w)
    density = spectral_density(objective, w, steps=steps, probes=options.probes, watch=watch)
    total, error = trace(objective, w, TRACE_PROBES, watch)
    grid, curve = density.curve()
    return {
        "eigenvalues": values,
        "ratio": values[0] / values[-1] if len(values) == options.top and values[-1] else None,
        "trace": total,
        "trace_error": error,
        "lanczos_steps": steps,
        "probes": options.probes,
        "nodes": [n.tolist() for n in density.nodes],
        "weights": [n.tolist() for n in density.weights],
        "density": {"grid": grid.tolist(), "density": curve.tolist()},
    }


_PICTURES = {"eigenvalues": pictures.eigenvalues, "density": pictures.density}
