"""Ditto: Li, Hu, Beirami, Smith, ICML 2021, Algorithm 1.

The global model is trained by any algorithm, as if nothing else happened. After each visit the
client trains a model of its own, held to the global model that it has received.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from fedrift.algorithms.wrappers import AtClients
from fedrift.core import Algorithm, EvaluatedModel, InnerVisit, Problem, Site, Vec, inner_client
from fedrift.core import Local, Plain, Prox, local_of, state


@state
class Client:
    v: Vec  # the client's own model
    statistics: tuple[Tensor, ...]  # its running statistics
    inner: Any  # what the algorithm inside keeps


@dataclass(frozen=True)
class Ditto(AtClients):
    """Any algorithm; beside it each client trains a model of its own, held to the global one.

    lam: λ, the pull towards the global model
    steps: local steps on the client's own model; none: as many as the algorithm inside makes
    lr: rate of these steps; none: that of the run
    """

    inner: Algorithm[Any, Any]
    lam: Annotated[float, ">= 0"] = 1.0
    steps: Annotated[int, ">= 1"] | None = None
    lr: Annotated[float, "> 0"] | None = None

    def client(self, p: Problem) -> Client:
        statistics = tuple(p.rest[name] for name in p.moving)
        return Client(v=p.w0, statistics=statistics, inner=inner_client(self.inner, p))

    def around(
        self, visit: InnerVisit, site: Site, received: Any, mine: Client
    ) -> tuple[Any, Client]:
        up, inner = visit(mine.inner)
        if not hasattr(received, "w"):  # a second exchange of the round
            return up, replace(mine, inner=inner)
        travelling = site.statistics()
        site.load_statistics(mine.statistics)
        pull = Prox(self.lam, received.w)  # the model received, not the one just trained
        v = site.train(self.local(), mine.v, pull, purpose="ditto").w
        statistics = site.statistics()
        site.load_statistics(travelling)
        return up, Client(v=v, statistics=statistics, inner=inner)

    def local(self) -> Local:
        """Plain steps with the settings of the algorithm inside."""
        local = local_of(self.inner)
        assert local is not None  # checked
        if self.steps is not None:
            local = replace(local, epochs=None, steps=self.steps)
        if self.lr is not None:
            local = replace(local, lr=self.lr)
        return replace(local, gradient=Plain(), correct=())

    def personal(self, site: Site, shown: EvaluatedModel, mine: Client) -> EvaluatedModel:
        return replace(shown, w=mine.v, buffers=mine.statistics)
