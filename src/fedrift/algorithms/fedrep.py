"""FedRep: Collins, Hassani, Mokhtari, Shakkottai, ICML 2021, Algorithm 1.

First the head, with the body as it was received, then the body, with the new head. The paper's body
makes one step or epoch and its head several; both amounts are options here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fedrift.algorithms.fedavg import Down, Up
from fedrift.algorithms.keep import Keep
from fedrift.core import Algorithm, Cohort, Local, Problem, Site, Vec, Weights, state


@state
class Server:
    w: Vec  # φ, the body


@dataclass(frozen=True)
class HeadThenBody(Algorithm[Server, None]):
    """Clients fit their own head to the body they receive, then the body to that head."""

    local: Local = Local()
    head_steps: int | None = None
    weights: Weights = "uniform"

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        head = self.local
        if self.head_steps is not None:
            head = replace(head, epochs=None, steps=self.head_steps)
        site.train(head, down.w, trains="own", purpose="head")
        run = site.train(self.local, down.w, trains="shared")
        return Up(delta=run.delta), mine


def fedrep(
    local: Local = Local(),
    what: str = "head",
    head_steps: Annotated[int, ">= 0"] | None = None,
    weights: Weights = "uniform",
) -> Keep:
    """Clients fit their own head to the body, then the body to the head; bodies are averaged.

    what: the head: head, or names such as fc2.*
    head_steps: local steps on the head; none: as many as on the body (the run's epochs or steps)
    """
    inner = HeadThenBody(local=local, head_steps=head_steps, weights=weights)
    return Keep(inner=inner, what=what)
