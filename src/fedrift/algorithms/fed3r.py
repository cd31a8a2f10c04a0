"""Fed3R: Fanì, Camoriano, Caputo, Ciccone, "Accelerating Heterogeneous Federated Learning with
Closed-form Classifiers", ICML 2024. Each client sends its statistics once; nobody is counted twice.

λI is added when solving, in float64 and without forming an inverse; it regularises the bias too,
as in the authors' code. Classes nobody has shown are never predicted. With `features` it is their
Fed3R-RF: random features stand between the model's body and its head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.core import Algorithm, Cohort, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core import InputError, Redefine, Sampling, Sum, shaped

SOME = 200  # samples a client measures distances between


@message
class Down:
    w: Vec  # the pre-trained model


def _width(f: Fed3R, p: Problem) -> int:
    return (p.feature_dim or 0) + f.bias


def _triangle(f: Fed3R, p: Problem) -> int:
    return _width(f, p) * (_width(f, p) + 1) // 2


UPPER: Any = shaped(torch.float64, lambda f, p: (_triangle(f, p),))
BY_CLASS: Any = shaped(torch.float64, lambda f, p: (_width(f, p), p.classes))


@message
class UpScale:
    distance: Mean[float | None]  # median distance between a client's features, if it has two


@message
class Up:
    a: Sum[Tensor] = UPPER  # upper triangle of Σ φ φᵀ, float64 whatever the model's dtype
    b: Sum[Tensor] = BY_CLASS  # Σ φ e_yᵀ


@state
class Server:
    w: Vec
    a: Tensor  # without λI
    b: Tensor
    sigma: float = 0.0  # bandwidth of the random features; 0 until known


@state
class Client:
    sent: bool = False  # it has been counted


@dataclass(frozen=True)
class Fed3R(Algorithm[Server, Client]):
    """Ridge regression on frozen features, exact for any split of the data.

    ridge: λ, absolute, not scaled by the number of samples
    bias: append a 1 to the features
    normalise: divide each class's weights by their length, against imbalance
    features: number of random features that replace the head's input; 0: none
    sigma: bandwidth of their Gaussian kernel; auto: mean of the first clients' median distances
    """

    ridge: Annotated[float, "> 0"] = 0.01
    bias: bool = True
    normalise: bool = True
    features: Annotated[int, ">= 0"] = 0
    sigma: Annotated[float, "> 0"] | Literal["auto"] = "auto"
    weights: Weights = "samples"

    def check(self, p: Problem) -> None:
        if p.head_names()[0] not in p.layout.names:
            raise InputError(f"fed3r: the head '{p.head}' is frozen; let the adapter train it")
        if self.bias and p.head_names()[1] not in p.layout.names:
            raise InputError(f"fed3r: the head '{p.head}' has no bias; set bias=false")

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        p.head_names()  # refuses a model without one
        return append(p, self.features, redefine) if self.features else p

    def sampling(self, s: Server) -> Sampling:
        return "once"

    def allowed(self, s: Server) -> Tensor | None:
        seen = s.b.abs().sum(0) > 0
        return seen if bool(seen.any()) else None

    def server(self, p: Problem) -> Server:
        m, classes = _width(self, p), p.classes or 0
        zeros = torch.zeros(m, m + classes, dtype=torch.float64)
        return Server(w=p.w0, a=zeros[:, :m].clone(), b=zeros[:, m:].clone())

    def client(self, p: Problem) -> Client:
        return Client()

    def round(self, s: Server, cohort: Cohort) -> Server:
        p, sigma = cohort.problem, s.sigma
        if self.features:
            sigma = sigma or self._bandwidth(s.w, cohort)
            cohort.frozen = scale(p, sigma)
        up = cohort.ask(self.statistics, Down(w=s.w))
        upper = torch.zeros_like(s.a)
        upper[tuple(torch.triu_indices(*s.a.shape))] = up.a
        a, b = s.a + upper + upper.triu(1).T, s.b + up.b
        head = torch.linalg.solve(a + self.ridge * torch.eye(len(a), dtype=a.dtype), b)
        if self.normalise:
            length = head[: p.feature_dim].norm(dim=0)
            head = head / torch.where(length > 0, length, 1e-6)
        return Server(w=p.put_head(s.w, head), a=a, b=b, sigma=sigma)

    def frozen(self, s: Server, p: Problem) -> dict[str, Tensor]:
        return scale(p, s.sigma) if s.sigma else {}

    def _bandwidth(self, w: Vec, cohort: Cohort) -> float:
        if self.sigma != "auto":
            return self.sigma
        distance = cohort.ask(self.measure, Down(w=w)).distance
        return distance or 1.0  # all features equal, or no client with two samples

    def measure(self, site: Site, down: Down, mine: Client) -> tuple[UpScale, Client]:
        layer = layer_of(site.problem)
        phi = torch.cat([phi for phi, _ in site.features(down.w, layer)])
        return UpScale(distance=median_distance(phi, site.rng)), mine

    def statistics(self, site: Site, down: Down, mine: Client) -> tuple[Up | None, Client]:
        if mine.sent:
            return None, mine
        p = site.problem
        m, classes = _width(self, p), p.classes or 0
        a = torch.zeros(m, m, dtype=torch.float64)
        b = torch.zeros(m, classes, dtype=torch.float64)
        for features, y in site.features(down.w):
            if int(y.min()) < 0:  # −100: a sample without a label, as cross-entropy ignores it
                features, y = features[y >= 0], y[y >= 0]
            phi = features.double()
            if self.bias:
                phi = nn.functional.pad(phi, (0, 1), value=1.0)
            a.addmm_(phi.T, phi)
            b.addmm_(phi.T, nn.functional.one_hot(y, classes).double())
        return Up(a=a[tuple(torch.triu_indices(m, m))], b=b), Client(sent=True)


class RandomFeatures(nn.Module):
    """√(2/R) cos(scale·Ωᵀx + θ), the scale being 1/σ (Rahimi, Recht, NeurIPS 2007)."""

    omega: Tensor
    theta: Tensor
    scale: Tensor

    def __init__(self, width: int, number: int) -> None:
        nn.Module.__init__(self)
        self.register_buffer("omega", torch.randn(width, number))
        self.register_buffer("theta", 2 * math.pi * torch.rand(number))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        number = self.omega.shape[1]
        return math.sqrt(2 / number) * torch.cos(self.scale * (x @ self.omega) + self.theta)


def with_features(
    make: Callable[[], nn.Module], head: str, width: int, number: int, classes: int
) -> nn.Module:
    """The model with random features and a new linear head in the place of its head."""
    module = make()
    new = nn.Sequential(RandomFeatures(width, number), nn.Linear(number, classes))
    if not head:
        return new
    module.set_submodule(head, new)
    return module


def append(p: Problem, number: int, redefine: Redefine) -> Problem:
    """The task with random features before the head."""
    head = p.head or ""
    make = partial(with_features, p.make, head, p.feature_dim or 0, number, p.classes or 0)
    return redefine(make, f"{head}.1" if head else "1")


def layer_of(p: Problem) -> str:
    """The random-feature layer of an adapted task."""
    return (p.head or "").removesuffix("1") + "0"


def scale(p: Problem, sigma: float) -> dict[str, Tensor]:
    """The bandwidth as the model holds it."""
    return {f"{layer_of(p)}.scale": torch.full((1,), 1 / sigma, dtype=p.w0.dtype)}


def median_distance(phi: Tensor, rng: np.random.Generator) -> float | None:
    """Median distance between some of the rows; None if there is only one."""
    few = phi[torch.from_numpy(rng.permutation(len(phi))[:SOME])].double()
    return float(torch.pdist(few).median()) if len(few) > 1 else None
