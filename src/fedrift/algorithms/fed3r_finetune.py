"""Fed3R+FT: Fanì, Camoriano, Caputo, Ciccone, ICML 2024: Fed3R first, then any algorithm.

Logits are divided by a temperature in training and evaluation, because normalised weights give
logits in a narrow range. `auto` takes the value of a fixed grid with the least training loss at
the first cohort of the second stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from fedrift.algorithms.fed3r import Fed3R
from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, message, state
from fedrift.core import InputError, Part, Redefine, Sampling, has_hosts, shaped

GRID = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
LOSSES: Any = shaped(torch.float64, lambda f, p: (len(GRID),))


@message
class Down:
    w: Vec


@message
class Up:
    losses: Mean[Tensor] = LOSSES  # one for each temperature of the grid


@state
class Stages:
    first: Any
    second: Any  # waits until the first stage is done
    is_tuning: bool = False
    temperature: float = 0.0  # 0: not chosen yet


@dataclass(frozen=True)
class FineTune(Algorithm[Stages, None]):
    """Fed3R until every client is counted, then another algorithm on a part of the model."""

    first: Fed3R
    second: Algorithm[Any, Any]
    train: Part = "all"
    fixed: float | None = 0.1
    places: tuple[tuple[int, int], ...] = ()  # where the trained parameters stand in the model

    def view(self, child: str, p: Problem) -> Problem:
        return p.view(self.train) if child == "second" else p

    def check(self, p: Problem) -> None:
        if has_hosts(self.second):
            kind = type(self.second).__name__
            raise InputError(
                f"{kind} has models of the clients' own, which would begin before the first stage"
            )
        self.first.check(p)
        self.second.check(self.view("second", p))

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        return self.first.adapt(p, redefine)

    def prepare(self, p: Problem) -> FineTune:
        view, places, end = self.view("second", p), [], 0
        for name, size in zip(p.layout.names, p.layout.sizes, strict=True):
            if name in view.layout.names:
                places.append((end, end + size))
            end += size
        return replace(self, second=self.second.prepare(view), places=tuple(places))

    def sampling(self, s: Stages) -> Sampling:
        return self.second.sampling(s.second) if s.is_tuning else "once"

    def allowed(self, s: Stages) -> Tensor | None:
        return self.first.allowed(s.first)

    def temperature(self, s: Stages) -> float:
        return s.temperature or 1.0 if s.is_tuning else 1.0

    def local_now(self, s: Stages) -> Local | None:
        return self.second.local_now(s.second) if s.is_tuning else None

    def frozen(self, s: Stages, p: Problem) -> Mapping[str, Tensor]:
        return self.first.frozen(s.first, p)

    def server(self, p: Problem) -> Stages:
        second = self.second.server(self.view("second", p))
        return Stages(first=self.first.server(p), second=second)

    def exhausted(self, s: Stages, p: Problem) -> Stages:
        """Everybody has been counted: the second stage starts from the closed-form classifier."""
        start = self.view("second", replace(p, w0=self.first.model(s.first)))
        second = self.second.server(start)
        return replace(s, second=second, is_tuning=True, temperature=self.fixed or 0.0)

    def round(self, s: Stages, cohort: Cohort) -> Stages:
        if not s.is_tuning:
            return replace(s, first=self.first.round(s.first, cohort))
        p, w = cohort.problem, self.first.model(s.first)
        temperature = s.temperature
        cohort.frozen = self.first.frozen(s.first, p)
        if not temperature:
            losses = cohort.ask(self.calibrate, Down(w=w)).losses
            temperature = GRID[int(losses.argmin())]
        cohort.problem = self.view("second", p)
        cohort.temperature = temperature
        cohort.frozen = {**self.first.frozen(s.first, p), **self._decided(p, w)}
        second = self.second.round(s.second, cohort)
        return replace(s, second=second, temperature=temperature)

    def _decided(self, p: Problem, w: Vec) -> dict[str, Tensor]:
        """What is frozen in the second stage but differs from the start: the classifier."""
        trained = self.view("second", p).layout.names
        before, after = p.layout.named(p.w0), p.layout.named(w)
        return {
            name: value
            for name, value in after.items()
            if name not in trained and not torch.equal(value, before[name])
        }

    def calibrate(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        losses = torch.zeros(len(GRID), dtype=torch.float64)
        for logits, y in site.logits(down.w):
            for i, temperature in enumerate(GRID):
                loss = nn.functional.cross_entropy(logits / temperature, y, reduction="sum")
                losses[i] += loss.double() / site.n
        return Up(losses=losses), mine

    def model(self, s: Stages) -> Vec:
        whole = self.first.model(s.first)
        if not s.is_tuning:
            return whole
        joined, part = whole.clone(), self.second.model(s.second)
        for (a, b), values in zip(
            self.places, part.split([b - a for a, b in self.places]), strict=True
        ):
            joined[a:b] = values
        return joined


def fed3rft(
    inner: Algorithm[Any, Any],
    ridge: Annotated[float, "> 0"] = 0.01,
    bias: bool = True,
    normalise: bool = True,
    features: Annotated[int, ">= 0"] = 0,
    sigma: Annotated[float, "> 0"] | Literal["auto"] = "auto",
    train: Literal["all", "head", "features"] = "all",
    temperature: Annotated[float, "> 0"] | Literal["auto"] = 0.1,
) -> FineTune:
    """Fed3R, then fine-tuning with another algorithm: `fed3rft(fedavg):train=head`.

    ridge: λ of Fed3R
    bias: append a 1 to the features
    normalise: divide each class's weights by their length, against imbalance
    features: number of random features that replace the head's input; 0: none
    sigma: bandwidth of their Gaussian kernel; auto: mean of the first clients' median distances
    train: what the second stage trains: everything, the head, or all but the head
    temperature: divides the logits in the second stage; auto: chosen from a grid
    """
    first = Fed3R(ridge, bias, normalise, features, sigma)
    fixed = None if temperature == "auto" else float(temperature)
    return FineTune(first=first, second=inner, train=train, fixed=fixed)
