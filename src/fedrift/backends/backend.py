"""What an engine asks of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedrift.backends.evaluation import Pending
from fedrift.exchange import Exchange, Outcome, Shown


class Backend(Protocol):
    """Runs exchanges and evaluations; folds by the same rule wherever the visits run."""

    workers: int

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...
    def evaluate(self, shown: Shown) -> Pending: ...
    def close(self) -> None: ...
