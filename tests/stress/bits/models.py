"""Models of every kind that a run must repeat: what they remember, draw, share and take.

Each is made from plain values, so that a configuration can say it in JSON; what a kind takes as
its input is its `takes`, a key of `data.SHAPES`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

WIDTH, CLASSES, TOKENS, LENGTH = 8, 4, 11, 5
CHANNELS = 4


def normalisation(name: str, width: int, is_image: bool) -> nn.Module:
    """A layer that normalises; the identity for "none"."""
    match name, is_image:
        case "batch", False:
            return nn.BatchNorm1d(width)
        case "batch", True:
            return nn.BatchNorm2d(width)
        case "momentless", _:  # a cumulative mean: its momentum is None
            kind = nn.BatchNorm2d if is_image else nn.BatchNorm1d
            return kind(width, momentum=None)
        case "group", _:
            return nn.GroupNorm(2, width)
        case "layer", False:
            return nn.LayerNorm(width)
        case "layer" | "instance", True:
            return nn.InstanceNorm2d(width, affine=True, track_running_stats=name == "instance")
        case _:
            return nn.Identity()


def linear() -> nn.Module:
    """Nothing but a layer."""
    return nn.Linear(WIDTH, CLASSES)


def chain(depth: int = 1, activation: str = "ReLU") -> nn.Module:
    """Layers of torch's own, which can be stacked: many clients are trained at once."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(WIDTH if i == 0 else 6, 6), getattr(nn, activation)()]
    return nn.Sequential(*layers, nn.Linear(6, CLASSES))


class Mlp(nn.Sequential):
    takes: ClassVar = "vector"

    def __init__(self, norm: str = "none", dropout: float = 0.0, depth: int = 1) -> None:
        layers: list[nn.Module] = []
        for i in range(depth):
            layers += [nn.Linear(WIDTH if i == 0 else 6, 6), normalisation(norm, 6, False)]
            layers += [nn.Tanh() if i % 2 else nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
        super().__init__(*layers, nn.Linear(6, CLASSES))


class Spectral(nn.Sequential):
    """Buffers that move only because weights do."""

    takes: ClassVar = "vector"

    def __init__(self, where: str = "head") -> None:
        head, body = nn.Linear(6, CLASSES), nn.Linear(WIDTH, 6)
        body = parametrizations.spectral_norm(body) if where == "body" else body
        head = parametrizations.spectral_norm(head) if where == "head" else head
        super().__init__(body, nn.ReLU(), head)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class Parametrised(nn.Sequential):
    """Weights computed from others: of a norm and a direction, symmetric, orthogonal."""

    takes: ClassVar = "vector"

    def __init__(self, how: str = "weight") -> None:
        body: nn.Module = nn.Linear(WIDTH, WIDTH)
        if how == "weight":
            body = parametrizations.weight_norm(body)
        elif how == "symmetric":
            parametrize.register_parametrization(body, "weight", Symmetric())
        else:
            body = parametrizations.orthogonal(body, orthogonal_map="cayley")
        super().__init__(body, nn.Tanh(), nn.Linear(WIDTH, CLASSES))


class Tied(nn.Module):
    """One weight in two layers, once turned over."""

    takes: ClassVar = "vector"

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.two.weight = self.one.weight
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.two(torch.tanh(self.one(x))))
        return self.out(F.linear(hidden, self.one.weight.T))


class Frozen(nn.Module):
    """Its first layer is not trained; `follows`: it is a mean of the trained one."""

    takes: ClassVar = "vector"

    def __init__(self, follows: bool = False, norm: str = "none") -> None:
        super().__init__()
        self.body, self.copy = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        self.norm, self.out, self.follows = normalisation(norm, 6, False), nn.Linear(6, 4), follows
        for parameter in self.copy.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.follows and self.training:
            with torch.no_grad():
                self.copy.weight.mul_(0.9).add_(self.body.weight, alpha=0.1)
        return self.out(self.norm(torch.relu(self.body(x) + self.copy(x))))


class Lazy(nn.Sequential):
    takes: ClassVar = "vector"

    def __init__(self, norm: bool = False) -> None:
        between = [nn.LazyBatchNorm1d()] if norm else []
        super().__init__(nn.LazyLinear(6), *between, nn.ReLU(), nn.LazyLinear(CLASSES))


class Late(nn.Module):
    """A buffer that one pass on two samples does not move, or not in its place."""

    takes: ClassVar = "vector"
    mean: Tensor
    cache: Tensor

    def __init__(self, how: str = "large") -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(WIDTH, CLASSES), how
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "made":
            if not hasattr(self, "cache"):
                self.register_buffer("cache", torch.arange(float(WIDTH)).cos(), persistent=False)
            x = x * self.cache.to(x.dtype)
        elif self.training and self.how == "reassigned":
            self.mean = self.mean * 0.9 + x.detach().mean()
        elif self.training and len(x) > 3:
            self.mean.mul_(0.9).add_(x.detach().mean())
        return self.layer(x) + self.mean


class Attributes(nn.Module):
    """Memory that is no buffer: a number, a list, a dict, a tensor, an array."""

    takes: ClassVar = "vector"

    def __init__(self, what: str = "number") -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(WIDTH, CLASSES), what
        self.passes, self.seen, self.table = 0, [0], {"passes": 0}
        self.last, self.array = torch.zeros(1), np.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        match self.what:
            case "number":
                self.passes += 1
            case "list":
                self.seen.append(len(x))
            case "dict":
                self.table["passes"] += 1
            case "tensor":
                self.last.add_(float(x.detach().mean()))
            case _:
                self.array += 0.1
        scale = self.passes + len(self.seen) + self.table["passes"] + float(self.array[0])
        return self.layer(x) * (1 + 0.01 * scale) + self.last.to(x.dtype)


class OwnGenerator(nn.Module):
    """Draws from a generator that it brings."""

    takes: ClassVar = "vector"

    def __init__(self, whose: str = "torch") -> None:
        super().__init__()
        self.layer, self.whose = nn.Linear(WIDTH, CLASSES), whose
        self.torch_noise = torch.Generator().manual_seed(0)
        self.numpy_noise, self.python_noise = np.random.default_rng(0), random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        match self.whose:
            case "torch":
                noise = torch.randn(len(x), 1, generator=self.torch_noise, dtype=x.dtype)
            case "numpy":
                noise = float(self.numpy_noise.standard_normal())
            case _:
                noise = self.python_noise.gauss()
        return self.layer(x) + 0.1 * noise


class Noise(nn.Module):
    """Random in evaluation too, from the generators that everybody shares."""

    takes: ClassVar = "vector"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        shift = torch.randn(len(x), 1, dtype=x.dtype) + np.random.rand() + random.random()
        return self.layer(x) + 0.1 * shift


class Watchful(nn.Module):
    """What it computes depends on the settings of torch, as kernels do for larger models."""

    takes: ClassVar = "vector"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        small = torch.full((1,), 1e-40, dtype=torch.float32).mul(0.5)
        settings = (
            torch.backends.mkldnn.enabled,
            torch.backends.mha.get_fastpath_enabled(),
            torch.get_default_dtype() is torch.float32,
            torch.are_deterministic_algorithms_enabled(),
            bool(small.item() == 0.0),
        )
        return self.layer(x) * (1.0 + 0.01 * sum(map(bool, settings)))


class InPlace(nn.Module):
    """Writes to what it is given."""

    takes: ClassVar = "vector"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mul_(0.5).add_(1.0))


class Vae(nn.Module):
    """Several outputs, sampled in training and in evaluation."""

    takes: ClassVar = "regression"

    def __init__(self) -> None:
        super().__init__()
        self.code, self.out = nn.Linear(WIDTH, 4), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.code(x).chunk(2, dim=1)
        return self.out(mean + spread.exp() * torch.randn_like(mean))


class Regression(nn.Sequential):
    takes: ClassVar = "regression"

    def __init__(self, norm: str = "none") -> None:
        super().__init__(nn.Linear(WIDTH, 6), normalisation(norm, 6, False), nn.Linear(6, 3))


class Conv(nn.Module):
    takes: ClassVar = "image"

    def __init__(
        self, groups: int = 1, norm: str = "none", dropout: float = 0.0, stride: int = 1
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, stride=stride, groups=groups)
        self.norm, self.drop = normalisation(norm, CHANNELS, True), nn.Dropout2d(dropout)
        self.out = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.second(torch.relu(self.first(x))))))
        return self.out(x.mean((2, 3)))


class FlatConv(nn.Sequential):
    takes: ClassVar = "image"

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(2, CHANNELS, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(CHANNELS * 4, CLASSES),
        )


class Strided(nn.Module):
    """Looks at the memory of its images, and refuses channels-last ones."""

    takes: ClassVar = "image"

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2 * 36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.view(len(x), -1))


class Lstm(nn.Module):
    """`keeps`: its hidden state is an attribute that the next batch begins with."""

    takes: ClassVar = "tokens"

    def __init__(self, keeps: bool = False, both: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        layers = 2 if dropout else 1
        self.lstm = nn.LSTM(4, 4, layers, batch_first=True, bidirectional=both, dropout=dropout)
        self.out, self.keeps = nn.Linear(8 if both else 4, CLASSES), keeps
        self.hidden: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        given = self.hidden
        if not self.keeps or given is None or given[0].shape[1] != len(x):
            given = None
        seen, hidden = self.lstm(self.embedding(x), given)
        self.hidden = (hidden[0].detach(), hidden[1].detach())
        return self.out(seen[:, -1])


class Gru(nn.Module):
    takes: ClassVar = "tokens"

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(TOKENS, 4, padding_idx=0), nn.GRU(4, 4)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embedding(x).transpose(0, 1))[0][-1])


class Bag(nn.Module):
    takes: ClassVar = "tokens"

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(TOKENS, 6, mode="mean"), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.bag(x))


class Transformer(nn.Module):
    """Sequences with a mask of what is padding; `causal`: later positions are hidden too."""

    takes: ClassVar = "masked"

    def __init__(self, causal: bool = False, dropout: float = 0.1, first: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True, norm_first=first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=not first)
        self.out, self.causal = nn.Linear(4, CLASSES), causal

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        above = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        seen = self.encoder(
            self.embedding(x), above if self.causal else None, src_key_padding_mask=mask
        )
        return self.out(seen[:, 0])


class Two(nn.Module):
    """Two inputs, by position or by name."""

    takes: ClassVar = "pair"

    def __init__(self, norm: str = "none") -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 6), nn.Linear(3, 6)
        self.norm, self.out = normalisation(norm, 6, False), nn.Linear(6, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.out(self.norm(torch.tanh(self.a(a) * self.b(b))))


def takes(kind: str) -> str:
    """What its input is; functions make models of vectors."""
    return getattr(KINDS[kind], "takes", "vector")


KINDS: dict[str, Callable[..., nn.Module]] = {
    kind.__name__.lower(): kind
    for kind in (
        *(
            linear,
            chain,
            Mlp,
            Spectral,
            Parametrised,
            Tied,
            Frozen,
            Lazy,
            Late,
            Attributes,
            OwnGenerator,
        ),
        *(Noise, InPlace, Vae, Regression, Conv, FlatConv, Strided, Lstm, Gru, Bag, Transformer),
        *(Two, Watchful),
    )
}
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "chain": {"depth": (1, 2, 3), "activation": ("ReLU", "Tanh", "GELU", "Sigmoid")},
    "mlp": {
        "norm": ("none", "none", "batch", "momentless", "group", "layer"),
        "dropout": (0.0, 0.0, 0.3),
        "depth": (1, 2, 3),
    },
    "spectral": {"where": ("head", "body")},
    "parametrised": {"how": ("weight", "symmetric", "orthogonal")},
    "frozen": {"follows": (False, True), "norm": ("none", "batch")},
    "lazy": {"norm": (False, True)},
    "late": {"how": ("large", "reassigned", "made")},
    "attributes": {"what": ("number", "list", "dict", "tensor", "array")},
    "owngenerator": {"whose": ("torch", "numpy", "python")},
    "regression": {"norm": ("none", "batch", "layer")},
    "conv": {
        "groups": (1, 2, 4),
        "norm": ("none", "batch", "momentless", "group", "layer", "instance"),
        "dropout": (0.0, 0.0, 0.2),
        "stride": (1, 2),
    },
    "lstm": {"keeps": (False, True), "both": (False, True), "dropout": (0.0, 0.2)},
    "transformer": {
        "causal": (False, True),
        "dropout": (0.0, 0.1),
        "first": (False, True),
    },
    "two": {"norm": ("none", "batch", "layer")},
}
"""What can be said of a kind, and the values that are drawn."""


def make(kind: str, said: dict[str, Any]) -> nn.Module:
    """A fresh module."""
    return KINDS[kind](**said)
