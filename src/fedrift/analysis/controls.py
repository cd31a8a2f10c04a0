"""Control variates in the states of server and clients, found by the letters of their papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from fedrift.analysis.case import Case
from fedrift.analysis.drift import dissimilarity
from fedrift.analysis.objective import Objective
from fedrift.flat import Vec, cosine, norm
from fedrift.messages import pack
from fedrift.records import Record

CONTROLS = {"c": "The control variate cᵢ", "h": "The dual variable hᵢ"}
"""c of SCAFFOLD and FedGAMMA, h of FedDyn, FedSpeed and FedSMOO: both stand for ∇Fᵢ."""


def _named(state: object, size: int) -> dict[str, Vec]:
    found: dict[str, Vec] = {}
    for path, leaf in pack(state).items():
        letter = path.rpartition(".")[2]
        if letter in CONTROLS and isinstance(leaf, Tensor) and leaf.numel() == size:
            found[letter] = leaf
    return found


def server_lengths(case: Case) -> dict[str, float]:
    """Norms of the server's own vectors of the kind."""
    found = _named(case.state, case.problem.layout.size) if case.state is not None else {}
    return {letter: float(norm(v)) for letter, v in found.items()}


def client_controls(case: Case, clients: Sequence[int]) -> dict[str, dict[int, Vec]]:
    """By letter, the vectors of those clients that have taken part and hold one."""
    found: dict[str, dict[int, Vec]] = {}
    if case.store is None:
        return found
    for path, table in case.store.tables.items():
        for client in clients:
            if table.slot(client) < 0:
                continue
            state = case.store.read(path, client)
            for letter, vector in _named(state, case.problem.layout.size).items():
                found.setdefault(letter, {})[client] = vector
    return found


def client_lengths(case: Case, clients: Sequence[int]) -> dict[str, float]:
    """Mean norms of what these clients hold."""
    return {
        letter: float(np.mean([float(norm(v)) for v in vectors.values()]))
        for letter, vectors in client_controls(case, clients).items()
    }


def _nothing() -> None:
    return None


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
    found: dict[int, Vec] = {}
    for client in clients:
        objective = Objective(
            case.problem,
            case.client(client),
            moved=case.moved,
            temperature=case.shown.temperature,
            chunk=256,
        )
        found[client] = objective.grad(w)
        after_each()
    uniform = case.task.algorithm.weighting() == "uniform"
    shares = [1.0 if uniform else float(sizes[c]) for c in clients]
    controls: Record = {}
    for letter, vectors in client_controls(case, clients).items():
        cosines = [float(cosine(v, found[c])) for c, v in vectors.items()]
        controls[letter] = {
            "clients": list(vectors),
            "cosines": cosines,
            "lengths": [float(norm(v)) for v in vectors.values()],
            "gradients": [float(norm(found[c])) for c in vectors],
            "mean_cosine": float(np.mean(cosines)),
        }
    return {"dissimilarity": dissimilarity(list(found.values()), shares), "controls": controls}
