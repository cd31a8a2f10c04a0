"""Other ways to reduce replies than their mean: robust against corrupted ones, or private.

Both stand between a client's reply and the algorithm, which is not told: the reduced message has
the same fields. They are options of a run: `aggregate="median"`, `privacy="gaussian:1.1,clip=1"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedrift.config.privacy import (
    Guarantee,
    Privacy,
    Robustness,
    Stretch,
    guarantee,
    parse_aggregate,
    parse_privacy,
)
from fedrift.core.algorithm import Algorithm
from fedrift.core.codecs import vector_fields
from fedrift.core.composition import client_methods, local_of, parts, resolve
from fedrift.core.compression import BIASED, Side
from fedrift.core.exchange import Exchange
from fedrift.core.faults import Faults
from fedrift.core.flat import norm
from fedrift.core.messages import hints, rebuilt, reduced_values, reductions
from fedrift.core.problem import Problem
from fedrift.core.sampling import Participation
from fedrift.errors import InputError, unknown
from fedrift.rng import torch_seed

COORDINATES = 1 << 18  # that are sorted at once


class RobustReducer:
    """Keeps all replies and reduces them together. Krum: Blanchard et al., NeurIPS 2017; median
    and trimmed mean: Yin, Chen, Kannan, Bartlett, ICML 2018."""

    def __init__(self, cls: type, how: Robustness) -> None:
        self.cls, self.how = cls, how
        self.replies, self.weight = 0, 0.0
        self._values: list[dict[str, Any]] = []

    def fold(self, up: Any, weight: float) -> None:
        self.replies += 1
        self.weight += weight
        values = reduced_values(self.cls, up)
        self._values.append(
            {n: v.clone() if isinstance(v, Tensor) else v for n, v in values.items()}
        )

    def result(self) -> Any:
        chosen = self._chosen()
        reduced: dict[str, Any] = {}
        for name, how in reductions(self.cls).items():
            column = [values[name] for values in chosen if values.get(name) is not None]
            if not column:
                continue
            is_tensor = isinstance(column[0], Tensor)
            if how == "gather":
                reduced[name] = torch.stack(column if is_tensor else _numbers(column))
                continue
            scale = 1 if how == "mean" else self.replies
            flat = [v.reshape(-1) for v in (column if is_tensor else _numbers(column))]
            # Some coordinates at a time: all replies at once, in float64 and sorted, are many.
            pieces = zip(*(v.split(COORDINATES) for v in flat), strict=True)
            centres = [self._centre(torch.stack([v.double() for v in p])) * scale for p in pieces]
            value = torch.cat(centres) if centres else torch.zeros(0)
            reduced[name] = (
                value.reshape(column[0].shape).to(column[0].dtype) if is_tensor else float(value)
            )
        return rebuilt(self.cls, reduced)

    def _centre(self, stack: Tensor) -> Tensor:
        n, cut = len(stack), self.how.trimmed(len(stack))
        if self.how.kind == "median":
            ordered = stack.sort(dim=0).values
            return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        if self.how.kind == "trimmed":
            return stack.sort(dim=0).values[cut : n - cut].mean(dim=0)
        return stack.mean(dim=0)

    def _chosen(self) -> Sequence[dict[str, Any]]:
        """Krum: those with the nearest neighbours; the other rules look at all."""
        if self.how.kind not in ("krum", "multikrum"):
            return self._values
        n, f = len(self._values), int(self.how.value)
        self.how.check_replies(n)
        near = n - f - 2
        flat = torch.stack([_flat(values) for values in self._values])
        distances = torch.stack([(flat - row).square().sum(dim=1) for row in flat])
        scores = distances.sort(dim=1).values[:, 1 : near + 1].sum(dim=1)
        order = torch.argsort(scores, stable=True)[: 1 if self.how.kind == "krum" else n - f]
        return [self._values[i] for i in sorted(order.tolist())]


class PrivateReducer:
    """Clips each reply as a whole, sums, adds noise once, and divides by a fixed number.

    Dividing by the number of replies would tell it; algorithms see the fixed number instead.
    """

    def __init__(self, cls: type, how: Privacy, exchange: Exchange) -> None:
        self.cls, self.how = cls, how
        self.replies, self.weight = 0, how.expected
        seed = torch_seed(exchange.seed, f"privacy {exchange.phase}", exchange.round)
        self._random = torch.Generator().manual_seed(seed)
        self._sums: dict[str, Tensor] = {}
        self._like: dict[str, torch.dtype] = {}

    def fold(self, up: Any, weight: float) -> None:
        self.replies += 1
        values = reduced_values(self.cls, up)
        length = float(norm(_flat(values)))
        scale = 0.0 if self.how.is_ghost else min(1.0, self.how.clip / max(length, 1e-300))
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise InputError(f"privacy: '{name}' is a number, which cannot be made private")
            if name not in self._sums:
                self._like[name] = value.dtype
                self._sums[name] = torch.zeros(value.shape, dtype=torch.float64)
            self._sums[name].add_(value, alpha=scale)

    def result(self) -> Any:
        reduced: dict[str, Any] = {}
        for name, how in reductions(self.cls).items():
            if name not in self._sums:
                continue
            total = self._sums[name]
            noise = torch.randn(total.shape, generator=self._random, dtype=torch.float64)
            total = total + noise * (self.how.noise * self.how.clip)
            total = total / self.how.expected if how == "mean" else total
            reduced[name] = total.to(self._like[name])
        return rebuilt(self.cls, reduced)


def _numbers(values: Sequence[float]) -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def _flat(values: dict[str, Any]) -> Tensor:
    """All vectors of a reply as one."""
    return torch.cat(
        [v.reshape(-1).double() for v in values.values() if isinstance(v, Tensor)]
        or [torch.zeros(0)]
    )


@dataclass(frozen=True)
class Aggregation:
    """How the replies of a run are reduced, if not by their mean."""

    robust: Robustness | None = None
    private: Privacy | None = None

    @property
    def is_private(self) -> bool:
        return self.private is not None

    @property
    def is_ghost(self) -> bool:
        """The replies only show what they look like; none of them counts."""
        return self.private is not None and self.private.is_ghost

    def ghost(self) -> Aggregation:
        """For a round in which nobody came: noise alone, so that nobody can tell."""
        private = self.private and replace(self.private, is_ghost=True)
        return replace(self, private=private)

    def reducer(self, cls: type, exchange: Exchange) -> RobustReducer | PrivateReducer:
        if self.private is not None:
            return PrivateReducer(cls, self.private, exchange)
        assert self.robust is not None
        return RobustReducer(cls, self.robust)


def check_uploads(classes: Sequence[type], what: str) -> None:
    """Refuses messages that a guarantee would not cover."""
    if len(classes) != 1:
        raise InputError(
            f"{what}: the algorithm asks its clients in {len(classes)} ways, and only one a round "
            "is accounted for"
        )
    for name, how in reductions(classes[0]).items():
        if how == "gather":
            raise InputError(f"{what}: the server sees each client's '{name}' by itself")
        if "Tensor" not in str(hints(classes[0])[name]):
            raise InputError(f"{what}: clients send the number '{name}', and noise would spoil it")


# Settles the options `faults`, `aggregate` and `privacy`, and refuses what would be a lie.


def check_faults(faults: Faults, algorithm: Algorithm[Any, Any]) -> None:
    late = faults.stragglers
    if late is not None and late.late == "partial" and local_of(algorithm) is None:
        raise InputError("faults: late=partial needs local steps to leave out; use late=drop")


def check_compression(algorithm: Algorithm[Any, Any], problem: Problem) -> None:
    """Refuses to pack what is not sent, what must be exact, and what would drift apart."""
    if problem.compression is None:
        return
    methods = client_methods(algorithm)
    sent: dict[Side, list[str]] = {
        "up": [n for method in methods for n in vector_fields(method.signature.up)],
        "down": [n for method in methods for n in vector_fields(method.signature.down)],
    }
    keeps = any(
        node.client(resolve(algorithm, problem, path)[1]) for path, node in parts(algorithm)
    )
    for where, how in problem.compression.rules.items():
        side, _, name = where.partition(".")
        known = list(dict.fromkeys(sent["up" if side == "up" else "down"]))
        if not known:
            raise InputError(
                f"compress: {where}={how}: nothing that goes {side} is a vector of parameters; "
                "sums such as Fed3R's must be exact"
            )
        if name and name not in known:
            raise unknown(f"compress: field of what goes {side}", name, known)
        if how.kind in BIASED and not how.has_feedback and keeps:
            raise InputError(
                f"compress: {where}={how}: server and clients each keep their side of what is "
                "sent, and without feedback the sides would drift apart; drop no-feedback"
            )


def check_protection(
    aggregate: str | None,
    privacy: str | None,
    algorithm: Algorithm[Any, Any],
    problem: Problem,
    who: Participation,
    rounds: int,
    before: Stretch | None = None,
) -> tuple[Participation, Aggregation | None, Guarantee | None]:
    """Who takes part, how replies are reduced, and what is guaranteed of all rounds together."""
    robust, private = parse_aggregate(aggregate), parse_privacy(privacy)
    if robust is None and private is None:
        return who, None, None
    what = "privacy" if private is not None else "aggregate"
    if robust is not None and private is not None:
        raise InputError("privacy and aggregate: noise is made for sums; keep one of them")
    methods = client_methods(algorithm)
    if any(method.owner.weighting() != "uniform" for method in methods):
        raise InputError(f"{what}: every client must count alike; set weights=uniform")
    if problem.moving:
        raise InputError(
            f"{what}: running statistics of batch normalisation are sent as they are; use a model "
            "with group normalisation or none"
        )
    if robust is not None:
        robust.check_replies(who.at_best)
    if private is None:
        return who, Aggregation(robust=robust), None
    check_uploads([method.signature.up for method in methods], "privacy")
    if algorithm.sampling(algorithm.server(problem)) != "uniform":
        raise InputError("privacy: its clients are not drawn at random, each is asked once")
    promise = guarantee(private, who, rounds, before)
    expected = who.share * who.population if who.kind == "bernoulli" else float(who.size)
    private = replace(private, expected=expected)
    return replace(who, redraws=False), Aggregation(private=private), promise
