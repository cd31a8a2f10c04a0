"""WiMA: Caldarola, Caputo, Ciccone, ICCV Workshops 2023."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from fedrift.algorithms.wrappers import Wrapper
from fedrift.core import Algorithm, Cohort, Problem, Vec, state


@state
class Recent:
    inner: Any
    ring: tuple[Vec, ...] = ()  # the last W global models; w⁰ is not one of them


@dataclass(frozen=True)
class WiMA(Wrapper):
    """Evaluates the mean of the last global models; the training itself goes on.

    window: how many models
    """

    inner: Algorithm[Any, Any]
    window: Annotated[int, ">= 1"] = 10

    def prepare(self, p: Problem) -> WiMA:
        return replace(self, inner=self.inner.prepare(p))

    def server(self, p: Problem) -> Recent:
        return Recent(inner=self.inner.server(p))

    def round(self, s: Recent, cohort: Cohort) -> Recent:
        inner = self.inner.round(s.inner, cohort)
        return Recent(inner=inner, ring=(*s.ring, self.inner.model(inner))[-self.window :])

    def model(self, s: Recent) -> Vec:
        if not s.ring:
            return self.inner.model(s.inner)
        total = torch.zeros_like(s.ring[0], dtype=torch.float64)
        for w in s.ring:
            total.add_(w)
        return (total / len(s.ring)).to(s.ring[0].dtype)
