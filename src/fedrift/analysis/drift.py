"""How far and in which directions clients move away from the global model and from each other.

Control variates, if the algorithm keeps any, are compared to the gradients they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.analysis.case import Case, Finding, Options
from fedrift.analysis.next_round import Visited
from fedrift.analysis.objective import Objective
from fedrift.core.flat import Batch, Vec, cosine, dot, norm, unit
from fedrift.core.messages import pack
from fedrift.core.pieces import Prox
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import clients as pictures
from fedrift.storage.jsonl import Record

BLOCK = 1 << 16  # weights


@dataclass(frozen=True)
class Geometry:
    """Updates Δ_i of a cohort: distances, angles to their average D and to each other."""

    distances: tuple[float, ...]
    """‖w − w_i‖."""
    to_average: tuple[float, ...]
    """cos(Δ_i, D)."""
    pairs: tuple[tuple[float, ...], ...]
    """cos(Δ_i, Δ_j)."""
    length: float
    """‖D‖."""

    def summary(self) -> dict[str, float]:
        """The means, as `Running` gives them."""
        m, distances = len(self.distances), np.array(self.distances)
        pairs = np.array(self.pairs)
        between = (pairs.sum() - np.trace(pairs)) / (m * (m - 1)) if m > 1 else np.nan
        return {
            "distance": float(distances.mean()),
            "squared_distance": float((distances**2).mean()),
            "cosine_to_average": float(np.mean(self.to_average)),
            "cosine_between": float(between),
            "average_length": self.length,
            "count": m,
        }


def geometry(updates: Sequence[Vec], weights: Sequence[float]) -> Geometry:
    """`weights` are those of the average; they need not add up to one."""
    average = _average(updates, weights)
    return Geometry(
        distances=tuple(float(norm(u)) for u in updates),
        to_average=tuple(float(cosine(u, average)) for u in updates),
        pairs=tuple(map(tuple, _cosines(updates))),
        length=float(norm(average)),
    )


def _cosines(updates: Sequence[Vec]) -> list[list[float]]:
    """Of every two; 0 with a vector of zeros. Block by block: all in float64 would not fit."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for start in range(0, updates[0].numel(), BLOCK):
        part = torch.stack([u[start : start + BLOCK] for u in updates]).double().cpu()
        total += part @ part.T
    lengths = total.diagonal().sqrt()
    return (total / torch.outer(lengths, lengths).clamp_min(1e-24)).tolist()


def _average(vectors: Sequence[Vec], weights: Sequence[float]) -> Vec:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total.add_(vector, alpha=weight / sum(weights))
    return total.to(vectors[0].dtype)


@dataclass
class Running:
    """The same means from updates that are seen one after another and not kept.

    With u_i = Δ_i/‖Δ_i‖ the mean of cos(Δ_i, D) is ⟨Σu_i, D⟩/(M‖D‖), and the sum of all
    cos(Δ_i, Δ_j) is ‖Σu_i‖²: two vectors are enough for any number of clients.
    """

    distances: list[float] = field(default_factory=list)
    _units: Vec | None = None
    _total: Vec | None = None
    _weight: float = 0.0

    def add(self, update: Vec, weight: float) -> None:
        if self._units is None or self._total is None:
            self._units, self._total = torch.zeros_like(update), torch.zeros_like(update)
        length = float(norm(update))
        self.distances.append(length)
        self._units.add_(update, alpha=1.0 / max(length, 1e-12))
        self._total.add_(update, alpha=weight)
        self._weight += weight

    def summary(self) -> dict[str, float]:
        """Empty if nothing was seen."""
        if self._units is None or self._total is None:
            return {}
        distances, m = np.array(self.distances), len(self.distances)
        length = float(norm(self._total))
        moved = int((distances > 0).sum())  # the cosine of a zero vector with itself counts as 0
        all_pairs = float(dot(self._units, self._units)) - moved
        return {
            "distance": float(distances.mean()),
            "squared_distance": float((distances**2).mean()),
            "cosine_to_average": float(dot(self._units, self._total)) / max(m * length, 1e-24),
            "cosine_between": all_pairs / (m * (m - 1)) if m > 1 else float("nan"),
            "average_length": length / self._weight,
            "count": m,
        }


def dissimilarity(gradients: Sequence[Vec], weights: Sequence[float]) -> dict[str, float]:
    """How much client gradients differ at one model.

    `ratio` is √(Σp‖g_i‖² / ‖Σp g_i‖²), FedProx's B: 1 if all agree; `variance` is Σp‖g_i − ḡ‖².
    """
    share = np.array(weights, np.float64) / sum(weights)
    mean = _average(gradients, weights)
    squares = np.array([float(norm(g)) ** 2 for g in gradients])
    apart = np.array([float(norm(g - mean)) ** 2 for g in gradients])
    length = float(norm(mean))
    return {
        "ratio": float(np.sqrt(share @ squares) / max(length, 1e-24)),
        "variance": float(share @ apart),
        "mean_length": length,
    }


# Control variates in the states of server and clients, by the letters of their papers.

CONTROLS = {"c": "The control variate cᵢ", "h": "The dual variable hᵢ"}
"""c of SCAFFOLD and FedGAMMA, h of FedDyn, FedSpeed and FedSMOO: both stand for ∇Fᵢ."""


def _control_vectors(state: object, size: int) -> dict[str, Vec]:
    vectors: dict[str, Vec] = {}
    for path, leaf in pack(state).items():
        name = path.rpartition(".")[2]
        if name in CONTROLS and isinstance(leaf, Tensor) and leaf.numel() == size:
            vectors[name] = leaf
    return vectors


def server_lengths(case: Case) -> dict[str, float]:
    """Norms of the server's own vectors of the kind."""
    vectors = (
        _control_vectors(case.state, case.problem.layout.size) if case.state is not None else {}
    )
    return {name: float(norm(v)) for name, v in vectors.items()}


def client_controls(case: Case, clients: Sequence[int]) -> dict[str, dict[int, Vec]]:
    """By the name of the field, the vectors of those clients that have taken part and hold one."""
    controls: dict[str, dict[int, Vec]] = {}
    if case.store is None:
        return controls
    for path, table in case.store.tables.items():
        for client in clients:
            if table.slot(client) < 0:
                continue
            state = case.store.read(path, client)
            for name, vector in _control_vectors(state, case.problem.layout.size).items():
                controls.setdefault(name, {})[client] = vector
    return controls


def client_lengths(case: Case, clients: Sequence[int]) -> dict[str, float]:
    """Mean norms of what these clients hold."""
    return {
        name: float(np.mean([float(norm(v)) for v in vectors.values()]))
        for name, vectors in client_controls(case, clients).items()
    }


def _nothing() -> None:
    return None


def _objective(case: Case, data: Batch) -> Objective:
    """The mean loss over these samples."""
    return Objective(
        case.problem, data, moved=case.moved, temperature=case.shown.temperature, chunk=256
    )


def against_gradients(
    case: Case, clients: Sequence[int], w: Vec, after_each: Callable[[], None] = _nothing
) -> Record:
    """Dissimilarity of the clients' true gradients at w, and how control variates compare to them.

    It takes a pass over the data of these clients. Empty if none of them holds samples.
    """
    sizes = case.task.split.sizes
    clients = [client for client in clients if sizes[client]]
    if not clients:
        return {}
    gradients: dict[int, Vec] = {}
    for client in clients:
        gradients[client] = _objective(case, case.client(client)).grad(w)
        after_each()
    uniform = case.task.algorithm.weighting() == "uniform"
    shares = [1.0 if uniform else float(sizes[c]) for c in clients]
    controls: Record = {}
    for name, vectors in client_controls(case, clients).items():
        cosines = [float(cosine(v, gradients[c])) for c, v in vectors.items()]
        controls[name] = {
            "clients": list(vectors),
            "cosines": cosines,
            "lengths": [float(norm(v)) for v in vectors.values()],
            "gradients": [float(norm(gradients[c])) for c in vectors],
            "mean_cosine": float(np.mean(cosines)),
        }
    return {"dissimilarity": dissimilarity(list(gradients.values()), shares), "controls": controls}


def against_step(case: Case, before: Vec, w: Vec) -> Record:
    """How well the global step w_old − w stands for ∇F(w), F the mean loss over all samples.

    `epsilon` is ε of FedGF's bound, the distance of the two as unit vectors, 0 to 2. It takes a
    pass over everybody's data.
    """
    gradient, step = _objective(case, case.pooled()).grad(w), before - w
    similar = float(cosine(step, gradient))
    return {
        "epsilon": float(norm(unit(step) - unit(gradient))),
        "cosine": similar,
        "degrees": math.degrees(math.acos(min(1.0, max(-1.0, similar)))),
    }


def inexactness(
    case: Case, visited: Mapping[int, Visited], after_each: Callable[[], None] = _nothing
) -> Record:
    """How well clients solve the problem they were given: γ of FedProx, Definition 2.

    h_i(v) = F_i(v) + (μ/2)‖v − w‖² with the μ of the algorithm's proximal term, 0 without one, and
    γ_i = ‖∇h_i(w_i)‖ / ‖∇h_i(w)‖: 0 where w_i solves it exactly, 1 where it is no better than w.
    """
    local = case.task.algorithm.local_now(case.state)
    mu = sum(c.mu for c in local.correct if isinstance(c, Prox)) if local is not None else 0.0
    gammas: dict[int, float] = {}
    for client, seen in visited.items():
        objective = _objective(case, case.client(client))
        begun = float(norm(objective.grad(seen.start)))
        left = float(norm(objective.grad(seen.w).add_(seen.delta, alpha=mu)))
        after_each()
        if begun:
            gammas[client] = left / begun
    mean = float(np.mean(list(gammas.values()))) if gammas else math.nan
    return {"mu": mu, "clients": list(gammas), "gammas": list(gammas.values()), "mean": mean}


# The measurement: the clients of the coming round, and what control variates have learned.

MOST_CLIENTS = 100  # local models that are held at once


def measure(case: Case, options: Options) -> Finding:
    """Lengths and angles of updates; with passes over client data, gradients and controls too."""
    local = case.trained(case.few(MOST_CLIENTS), options.watch)
    uniform = case.task.algorithm.weighting() == "uniform"
    shares = [1.0 if uniform else float(seen.samples) for seen in local.values()]
    shape = geometry([seen.delta for seen in local.values()], shares)
    means = shape.summary()
    numbers: Record = {
        "round": case.round,
        "clients": list(local),
        "distances": shape.distances,
        "to_average": shape.to_average,
        "pairs": shape.pairs,
        **means,
        "server_controls": server_lengths(case),
    }
    about = [_distance_sentence(case, means)]
    if options.passes:
        about += _gradient_sentences(case, options, numbers, local)
    drawn: dict[str, Any] = {"updates": pictures.updates}
    drawn |= {"pairs": pictures.pairs} if len(local) > 1 else {}
    drawn |= {"controls": pictures.controls} if numbers.get("controls") else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Drift", tuple(about), numbers, figures, COMMON_FIGURES["drift"])


def _distance_sentence(case: Case, means: dict[str, float]) -> str:
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


def _gradient_sentences(
    case: Case, options: Options, numbers: Record, visited: Mapping[int, Visited]
) -> list[str]:
    """True client gradients at the global model, and what is left of them at the clients' own: they
    cost three passes over the clients' data."""
    w, clients = case.task.algorithm.model(case.state), list(visited)
    options.watch.begin("client gradients", 2 * len(clients), 0.0)
    comparison = against_gradients(case, clients, w, options.watch.step)
    left = inexactness(case, visited, options.watch.step)
    numbers |= comparison | {"inexactness": left}
    sentences = [
        f"Their true gradients at the global model differ by B = "
        f"{comparison['dissimilarity']['ratio']:.3g} (1 if all agree); their own problems "
        f"(μ = {left['mu']:g}) they solve to γ = {left['mean']:.3g} on average (0: exactly, 1: no "
        "better than the model they were sent)."
    ]
    for name, one in comparison["controls"].items():
        sentences.append(
            f"{CONTROLS[name]} has a mean cosine of {one['mean_cosine']:.3f} with the client's "
            f"true gradient there ({len(one['clients'])} of {len(clients)} clients have one)."
        )
    return sentences
