"""Control variates in the states of server and clients, found by the letters of their papers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedrift.analysis.case import Case
from fedrift.flat import Vec, norm
from fedrift.messages import pack

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
