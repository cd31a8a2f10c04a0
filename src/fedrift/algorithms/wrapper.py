"""Wrappers: algorithms that show another model than the one their inner algorithm trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedrift.algorithm import Algorithm, Redefine, Sampling
from fedrift.errors import InputError
from fedrift.local import Local
from fedrift.problem import Problem


class Wrapper(Algorithm[Any, Any]):
    """All but the round and the model that is shown is the inner algorithm's."""

    inner: Algorithm[Any, Any]

    def check(self, p: Problem) -> None:
        self.inner.check(p)
        if p.moving:
            raise InputError(
                "swa, wima: averaged weights do not fit the running statistics of batch "
                "normalisation; use a model with group normalisation or none"
            )

    def sampling(self, s: Any) -> Sampling:
        return self.inner.sampling(s.inner)

    def allowed(self, s: Any) -> Tensor | None:
        return self.inner.allowed(s.inner)

    def temperature(self, s: Any) -> float:
        return self.inner.temperature(s.inner)

    def local_now(self, s: Any) -> Local | None:
        return self.inner.local_now(s.inner)

    def frozen(self, s: Any, p: Problem) -> Mapping[str, Tensor]:
        return self.inner.frozen(s.inner, p)

    def log(self, s: Any) -> Mapping[str, float]:
        return self.inner.log(s.inner)

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        return self.inner.adapt(p, redefine)

    def exhausted(self, s: Any, p: Problem) -> Any:
        return replace(s, inner=self.inner.exhausted(s.inner, p))
