"""A run right after a round, as an invariant sees it: states before and after, visits, shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrift.algorithm import Algorithm, owner_of, resolve
from fedrift.conform.inside import Inside, Seen
from fedrift.engine import RoundReport

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Moment:
    """What there is to see when a round has been committed."""

    inside: Inside
    report: RoundReport
    old: Any
    """The server's state before the round."""

    @property
    def new(self) -> Any:
        return self.report.state

    @property
    def t(self) -> int:
        """The round, counted from 0."""
        return self.report.round - 1

    @property
    def algorithm(self) -> Any:
        return self.inside.algorithm

    @property
    def is_void(self) -> bool:
        return not self.visits()

    def visits(self, phase: str | None = None) -> list[Seen]:
        """The visits of this round, in client-id order; `phase`: those to one method."""
        found = [
            seen
            for seen in self.inside.backend.visits
            if seen.call.round == self.t and seen.up and phase in (None, seen.call.phase)
        ]
        return sorted(found, key=lambda seen: seen.client)

    def mean(self, leaf: str, phase: str | None = None) -> Any:
        """Σ p_i x_i of a leaf of the replies, in double precision."""
        chosen = self.visits(phase)
        owner, _ = resolve(self.algorithm, self.inside.problem, owner_of(chosen[0].call.phase))
        shares = [self._weight(owner, seen.client) for seen in chosen]
        total: Any = 0.0
        for share, seen in zip(shares, chosen, strict=True):
            value = seen.up[leaf]
            total = total + share / sum(shares) * (
                value.double() if isinstance(value, Tensor) else value
            )
        return total

    def _weight(self, owner: Algorithm[Any, Any], client: int) -> float:
        return float(self.inside.split.sizes[client]) if owner.weighting() == "samples" else 1.0

    def over_all(self, leaf: str) -> Tensor:
        """The plain mean of a leaf of all clients' states, those without data included."""
        number = len(self.inside.split)
        values = [getattr(self.inside.client(i), leaf).double() for i in range(number)]
        return torch.stack(values).mean(0)

    def differ(self, a: Tensor, b: Tensor, what: str) -> Iterator[str]:
        """One sentence if two vectors are not equal up to the rounding of the run's type."""
        allowed = TOLERANCE[self.inside.problem.w0.dtype] * max(1.0, float(b.abs().max()))
        distance = float((a.double() - b.double()).abs().max())
        if not distance <= allowed:
            yield f"{what} is off by {distance:.1e} after round {self.report.round}"


Invariant = Callable[[Moment], Iterator[str]]
