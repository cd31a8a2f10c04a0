"""GHBM, LocalGHBM, FedHBM: Zaccone, Karimireddy, Masone, Ciccone, TMLR 2025 (arXiv:2311.18578).

The added displacement of a round is β/τ·(wᵗ − wᵗ⁻τ), independent of rate and steps, because the
correction is divided by this round's rate × steps. FedHBM's anchor is the client's own last
model, as in the authors' code.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import Linear, Prox, refuse_memory

WHY = "momentum would multiply β by the length of its memory"


@message
class Down:
    w: Vec


@message
class DownWithMomentum:
    w: Vec
    m: Vec  # m̃ = (wᵗ⁻τ − wᵗ)/τ; 0 until τ models are known


@message
class Up:
    delta: Mean[Vec]  # w_i − w


@state
class Server:
    w: Vec


@state
class RingServer:
    w: Vec
    m: Vec
    ring: tuple[Vec, ...] = ()  # the last τ models sent


@state
class Anchor:
    w: Vec | None = None  # a model of the client's last visit
    round: int = 0  # when that was


@dataclass(frozen=True)
class GHBM(Algorithm[RingServer, None]):
    """Heavy-ball momentum over the last τ rounds, applied inside the local steps.

    beta: weight of the momentum
    tau: rounds it looks back; auto is 1/participation, so that it covers all clients
    """

    local: Local = Local()
    beta: Annotated[float, ">= 0"] = 0.9
    tau: Annotated[int, ">= 1"] | Literal["auto"] = "auto"
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        refuse_memory(self.local, WHY)

    def server(self, p: Problem) -> RingServer:
        return RingServer(w=p.w0, m=torch.zeros_like(p.w0))

    def round(self, s: RingServer, cohort: Cohort) -> RingServer:
        p = cohort.problem
        tau = max(1, round(1 / p.participation)) if self.tau == "auto" else self.tau
        up = cohort.ask(self.train, DownWithMomentum(w=s.w, m=s.m))
        w, ring = s.w + up.delta, (*s.ring, s.w)[-tau:]
        m = (ring[0] - w) / tau if len(ring) == tau else torch.zeros_like(w)
        return RingServer(w=w, m=m, ring=ring)

    def train(self, site: Site, down: DownWithMomentum, mine: None) -> tuple[Up, None]:
        push = Linear(self.beta / site.span(self.local) * down.m)
        return Up(delta=site.train(self.local, down.w, push).delta), mine


class Anchored(Algorithm[Server, Anchor]):
    """FedAvg whose clients push away from a model of their last visit."""

    local: Local

    def check(self, p: Problem) -> None:
        refuse_memory(self.local, WHY)

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Anchor:
        return Anchor()

    def round(self, s: Server, cohort: Cohort) -> Server:
        return Server(w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    @abstractmethod
    def train(self, site: Site, down: Down, mine: Anchor) -> tuple[Up, Anchor]:
        """Local steps with the push; what is kept says which model it is."""


@dataclass(frozen=True)
class LocalGHBM(Anchored):
    """GHBM that needs no extra message: each client remembers the model it was last sent.

    beta: weight of the momentum
    rate: 1/τ_i: the participation rate, or one over the rounds since the client's last visit
    """

    local: Local = Local()
    beta: Annotated[float, ">= 0"] = 0.9
    rate: Literal["participation", "elapsed"] = "participation"
    weights: Weights = "samples"

    def train(self, site: Site, down: Down, mine: Anchor) -> tuple[Up, Anchor]:
        push = []
        if mine.w is not None:
            elapsed = self.rate == "elapsed"
            per_round = 1 / (site.round - mine.round) if elapsed else site.problem.participation
            m = per_round * (mine.w - down.w)
            push.append(Linear(self.beta / site.span(self.local) * m))
        run = site.train(self.local, down.w, *push)
        return Up(delta=run.delta), Anchor(w=down.w, round=site.round)


@dataclass(frozen=True)
class FedHBM(Anchored):
    """Each client pushes away from its own last model: heavy-ball momentum at no extra traffic.

    beta: weight of the momentum
    """

    local: Local = Local()
    beta: Annotated[float, ">= 0"] = 1.0
    weights: Weights = "samples"

    def train(self, site: Site, down: Down, mine: Anchor) -> tuple[Up, Anchor]:
        push = []
        if mine.w is not None:
            strength = self.beta * site.problem.participation / site.span(self.local)
            push.append(Prox(-strength, mine.w))
        run = site.train(self.local, down.w, *push)
        return Up(delta=run.delta), Anchor(w=run.w, round=site.round)
