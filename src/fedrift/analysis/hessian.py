"""Curvature of the loss at a model: top eigenvalues, spectral density and trace, by products Hv.

Hessian of the mean loss without decay, in evaluation mode; `scipy`'s ARPACK finds eigenvalues,
stochastic Lanczos quadrature (Ubaru, Chen, Saad 2017) the density, Hutchinson's probes the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.next_round import Unwatched, Watch
from fedrift.analysis.objective import Objective
from fedrift.core.flat import Vec, dot, is_finite, norm
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import curvature as pictures
from fedrift.figures.curvature import smoothed
from fedrift.rng import generator
from fedrift.storage.jsonl import Record

Floats = npt.NDArray[np.float64]
TOLERANCE = 1e-3  # relative, of an eigenvalue
RESTARTS = 40  # of ARPACK at most, some 15 products each
BASIS_BYTES = 1 << 30  # that the Lanczos vectors may take together
BREAKDOWN = 1e-10  # relative: the Krylov space is exhausted


@dataclass(frozen=True)
class Density:
    """Nodes and weights of a quadrature: ∫ f dμ ≈ Σ weights·f(nodes), for every probe."""

    nodes: tuple[Floats, ...]
    weights: tuple[Floats, ...]

    def moment(self, power: int) -> float:
        """tr(H^power) / d, estimated."""
        each = [float(w @ n**power) for n, w in zip(self.nodes, self.weights, strict=True)]
        return sum(each) / len(each)

    def curve(self, points: int = 400, width: float | None = None) -> tuple[Floats, Floats]:
        """The density smoothed by Gaussians, on a grid that covers all nodes."""
        return smoothed(self.nodes, self.weights, width, points)


def _rademacher(size: int, probe: int, like: Vec) -> Vec:
    signs = generator(0, "probe", probe).integers(0, 2, size) * 2 - 1
    return torch.from_numpy(signs).to(like)


def dense_matrix(product: Callable[[Vec], Vec], like: Vec) -> Floats:
    """The whole matrix, column by column; for small problems."""
    eye = torch.eye(like.numel(), dtype=like.dtype, device=like.device)
    columns = [product(row).double().cpu().numpy() for row in eye]
    matrix = np.stack(columns, axis=1)
    return (matrix + matrix.T) / 2


def top_eigenvalues(
    objective: Objective, w: Vec, k: int = 5, watch: Watch | None = None
) -> list[float]:
    """The k eigenvalues of largest size, with their signs, the largest first.

    There may be fewer: what has not converged after many restarts is left out.
    """
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    watch, size = watch or Unwatched(), objective.size
    krylov = max(2 * k + 1, 20)

    def apply(v: Vec) -> Vec:
        product = _product(objective, w, v)
        watch.step()
        return product

    if size <= krylov + 1:  # no smaller space to look in
        values = np.linalg.eigvalsh(dense_matrix(apply, w))
    else:

        def product(v: Floats) -> Floats:
            curved = apply(torch.from_numpy(v.reshape(-1)).to(w))
            return curved.double().cpu().numpy()

        start = generator(0, "eigenvalues").standard_normal(size)
        matrix = LinearOperator((size, size), product, dtype=np.float64)  # type: ignore[call-arg]
        try:
            options: dict[str, Any] = {"which": "LM", "tol": TOLERANCE, "maxiter": RESTARTS}
            values = eigsh(matrix, k, v0=start, return_eigenvectors=False, **options)
        except ArpackNoConvergence as partly:
            values = partly.eigenvalues
        except ArpackError:  # nowhere to go from the start vector: nothing is curved
            if product(start).any():
                raise
            values = np.zeros(k)
    order = np.argsort(-np.abs(values), kind="stable")
    return [float(x) for x in np.asarray(values)[order][:k]]


def expected_products(k: int) -> int:
    """That k eigenvalues usually take, for estimates of time: 45 for the top five."""
    return 20 + 5 * k


def _product(objective: Objective, w: Vec, v: Vec) -> Vec:
    product = objective.product(w, v)
    if not is_finite(product):
        raise NotMeasured("the curvature of its loss is infinite or not a number")
    return product


def lanczos_steps(size: int, steps: int, like: Vec) -> int:
    """As many as asked for, the size of the problem and the room for their vectors allow."""
    return max(1, min(steps, size, BASIS_BYTES // (size * like.element_size())))


def spectral_density(
    objective: Objective, w: Vec, *, steps: int = 100, probes: int = 1, watch: Watch | None = None
) -> Density:
    """Stochastic Lanczos quadrature with full re-orthogonalisation, Rademacher probes."""
    watch = watch or Unwatched()
    length = lanczos_steps(objective.size, steps, w)
    nodes: list[Floats] = []
    weights: list[Floats] = []
    for probe in range(probes):
        diagonal, beside = _lanczos(objective, w, length, probe, watch)
        values, vectors = np.linalg.eigh(
            np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        )
        nodes.append(values)
        weights.append(vectors[0] ** 2)
    return Density(tuple(nodes), tuple(weights))


def _lanczos(
    objective: Objective, w: Vec, steps: int, probe: int, watch: Watch
) -> tuple[Floats, Floats]:
    """Diagonal and off-diagonal of T; it ends early when the Krylov space is exhausted."""
    v = _rademacher(objective.size, probe, w)
    v = v / norm(v).to(v.dtype)
    basis = torch.empty((steps, objective.size), dtype=w.dtype, device=w.device)
    diagonal: list[float] = []
    beside: list[float] = []
    for j in range(steps):
        basis[j] = v
        r = _product(objective, w, v)
        watch.step()
        diagonal.append(float(dot(r, v)))
        known = basis[: j + 1]
        for _ in range(2):  # once is not enough in single precision
            r = r - known.T @ (known @ r)
        length = float(norm(r))
        scale = max(map(abs, [*diagonal, *beside]))
        if j + 1 == steps or length <= BREAKDOWN * max(scale, 1e-30):
            break
        beside.append(length)
        v = r / length
    return np.array(diagonal), np.array(beside[: len(diagonal) - 1])


def trace(
    objective: Objective, w: Vec, probes: int = 8, watch: Watch | None = None
) -> tuple[float, float]:
    """Hutchinson's estimate of tr H, and its standard error (nan for a single probe)."""
    watch = watch or Unwatched()
    values: list[float] = []
    for probe in range(probes):
        v = _rademacher(objective.size, 1000 + probe, w)
        values.append(float(dot(v, _product(objective, w, v))))
        watch.step()
    return _mean_and_error(values)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    sample = np.array(values)
    error = sample.std(ddof=1) / np.sqrt(len(sample)) if len(sample) > 1 else np.nan
    return float(sample.mean()), float(error)


# The measurement: the global model and some local models of a run.

TRACE_PROBES = 8


def measure(case: Case, options: Options) -> Finding:
    """Top eigenvalues, density and trace of the global model; of local ones as far as asked."""
    data, data_name = case.data(options)
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
    spectrum = _spectrum(objective, case.weights, options)
    values, total, error = spectrum["eigenvalues"], spectrum["trace"], spectrum["trace_error"]
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
        "data": data_name,
        "parameters": objective.size,
        "global": spectrum,
        "clients": clients,
    }
    about = (
        f"Hessian of the mean loss over {data_name}, without decay, of the model after round "
        f"{case.round}. The eigenvalue of largest size is {values[0]:.4g}, the trace "
        f"{total:.4g} ± {error:.2g}.{cut}{why}",
        "Smaller eigenvalues mean a flatter minimum. Local models are measured on the same data.",
    )
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in _PICTURES.items()}
    return Finding("Curvature", about, numbers, figures, COMMON_FIGURES["hessian"])


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
