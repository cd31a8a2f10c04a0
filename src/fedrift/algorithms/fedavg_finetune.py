"""FedAvg + fine-tuning: Cheng, Chadha, Duchi, arXiv:2108.07313, 2021: hard to beat, and simple.

Training is untouched. A client makes a few plain local steps from the model it is to be evaluated
with; what they give is evaluated and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from fedrift.algorithms.wrappers import AtClients
from fedrift.core import Algorithm, EvaluatedModel, Plain, Site, local_of


@dataclass(frozen=True)
class FineTuned(AtClients):
    """Any algorithm whose clients fine-tune the model before they are evaluated with it.

    steps: local steps that a client makes on its training data before it is evaluated
    """

    inner: Algorithm[Any, Any]
    steps: Annotated[int, ">= 0"] = 10

    def personal(self, site: Site, shown: EvaluatedModel, mine: None) -> EvaluatedModel:
        local = local_of(self.inner)
        assert local is not None  # checked
        local = replace(local, epochs=None, steps=self.steps, gradient=Plain(), correct=())
        run = site.train(local, shown.w)
        return replace(shown, w=run.w, buffers=site.statistics())
