"""A backend of one's own, complete: the loop of this process, its last client first."""

from __future__ import annotations

from collections.abc import Iterable

from fedrift.backends.backend import RunParts
from fedrift.backends.in_process import InProcess

visited: list[int] = []


def backwards(clients: Iterable[int]) -> list[int]:
    order = sorted(clients, reverse=True)
    visited.extend(order)
    return order


def make(run: RunParts) -> InProcess:
    """The backend of a run."""
    return InProcess(run.visitor, run.store, run.evaluator, order=backwards, meter=run.meter)
