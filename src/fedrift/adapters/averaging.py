"""What averaging does to LoRA: the mean of products is not the product of means.

`separate` (FedIT, Zhang et al. 2024) averages A and B by themselves; how far that is from the mean
of B A is measured every round. `exact` (FedEx-LoRA, Singhal et al. 2024) puts the difference into
the base, so that the model is the mean of the clients' models; the base is then sent every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedrift.adapters.layers import A, B, product, weight_of
from fedrift.algorithms.wrappers import Wrapper
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import arrivals_of, client_methods, parts, resolve
from fedrift.core.exchange import Cohort, Exchange
from fedrift.core.flat import Layout, Vec
from fedrift.core.messages import hints, state
from fedrift.core.phases import owner_of
from fedrift.core.problem import Problem
from fedrift.errors import InputError


@dataclass(frozen=True)
class Factored:
    """A layer with factors: its name, and its weight's form."""

    name: str
    form: tuple[int, ...]
    transposed: bool

    def factors(self, named: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """A and B, where both are there."""
        a, b = (named.get(weight_of(self.name, part)) for part in (A, B))
        return None if a is None or b is None else (a.double(), b.double())

    @property
    def weight(self) -> str:
        return weight_of(self.name)


@state
class Server:
    inner: Any
    bias: float | None = None  # ‖mean(BA) − mean(B) mean(A)‖ of the last round
    size: float | None = None  # ‖mean(BA)‖
    added: tuple[Tensor, ...] = ()  # what has gone into the base, layer by layer


@dataclass(frozen=True)
class LoraAveraging(Wrapper):
    """Any algorithm on LoRA's factors, with the bias of their mean measured or taken out."""

    inner: Algorithm[Any, Any]
    layers: tuple[Factored, ...]
    scale: float
    exact: bool = False

    def frozen_moves(self) -> bool:
        return self.exact

    def prepare(self, p: Problem) -> LoraAveraging:
        return replace(self, inner=self.inner.prepare(p))

    def check(self, p: Problem) -> None:
        self.inner.check(p)
        methods = client_methods(self.inner)
        if self.exact and arrivals_of(self.inner) is not None:
            raise InputError(
                "adapter how=exact needs clients that stand on one base, and those of an "
                "asynchronous algorithm stand on bases of different rounds; use how=separate or "
                "how=freeze-A"
            )
        if self.exact and (half := self._half_kept()):
            raise InputError(
                f"adapter how=exact needs both factors of a layer at the server, and clients keep "
                f"one of those of '{half}'; use how=separate, or keep both or none"
            )
        if self.exact and not all(_sends_change(m.signature.up) for m in methods):
            raise InputError(
                "adapter how=exact needs clients that send nothing but the change of their model "
                "(fedavg, fedprox, scaffold and others); use how=separate or how=freeze-A"
            )

    def _half_kept(self) -> str | None:
        """A layer one of whose factors stays at the clients while the other is averaged."""
        kept = {name for _, node in parts(self.inner) for name in node.kept()}
        both = (
            (one.name, [weight_of(one.name, part) in kept for part in (A, B)])
            for one in self.layers
        )
        return next((name for name, (a, b) in both if a != b), None)

    def server(self, p: Problem) -> Server:
        moves = self.layers if self.exact else ()
        added = tuple(torch.zeros_like(p.rest[one.weight]) for one in moves)
        return Server(inner=self.inner.server(p), added=added)

    def round(self, s: Server, cohort: Cohort) -> Server:
        means = Means(self, cohort.problem)
        cohort.watch = means.watching
        cohort.frozen = {**cohort.frozen, **self._base(s, cohort.problem)}
        inner = self.inner.round(s.inner, cohort)
        differences = means.differences()
        if not differences:
            return Server(inner=inner, added=s.added)
        added = s.added
        if self.exact:
            added = tuple(
                before + (self.scale * differences[one.name]).to(before.dtype)
                if one.name in differences
                else before
                for before, one in zip(added, self.layers, strict=True)
            )
        bias = _length(differences.values())
        return Server(inner=inner, bias=bias, size=means.size(), added=added)

    def _base(self, s: Server, p: Problem) -> dict[str, Tensor]:
        """The weights that are no longer those of the beginning."""
        moved = zip(self.layers, s.added, strict=False)
        return {one.weight: p.rest[one.weight] + new for one, new in moved if bool(new.any())}

    def frozen(self, s: Server, p: Problem) -> Mapping[str, Tensor]:
        return {**self.inner.frozen(s.inner, p), **self._base(s, p)}

    def model(self, s: Server) -> Vec:
        return self.inner.model(s.inner)

    def also(self, s: Server) -> Mapping[str, Vec]:
        return self.inner.also(s.inner)

    def log(self, s: Server) -> Mapping[str, float]:
        inner = dict(self.inner.log(s.inner))
        if s.bias is None or s.size is None:
            return inner
        return {**inner, "lora_bias": s.bias, "lora_product": s.size}


def _sends_change(up: type) -> bool:
    return "delta" in hints(up)


def _length(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack([t.square().sum() for t in tensors]).sum().sqrt())


class Means:
    """Weighted sums over the replies of a round: of A, of B, and of their product."""

    def __init__(self, root: LoraAveraging, problem: Problem) -> None:
        self._root, self._problem = root, problem
        self._sums: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._weight = 0.0
        self._sent: Vec | None = None  # where clients start, from the last exchange that said it

    def watching(self, exchange: Exchange) -> Any:
        """Who looks at the replies of an exchange: nobody if they are no changes of the factors,
        or if they are protected."""
        start = self._sent = getattr(exchange.down, "w", self._sent)
        if not _sends_change(exchange.signature.up) or start is None:
            return None
        if exchange.aggregation is not None:
            return None
        layout = resolve(self._root, self._problem, owner_of(exchange.phase))[1].layout
        if start.numel() != layout.size:  # it was sent for another part of the model
            return None
        return lambda _, weight, up: self._add(layout, start + up.delta, weight)

    def _add(self, layout: Layout, w: Vec, weight: float) -> None:
        named = layout.named(w)
        for one in self._root.layers:
            factors = one.factors(named)
            if factors is None:
                continue
            a, b = factors
            new = weight * a, weight * b, weight * product(a, b, one.form, one.transposed)
            known = self._sums.get(one.name)
            self._sums[one.name] = (
                new if known is None else (known[0] + new[0], known[1] + new[1], known[2] + new[2])
            )
        self._weight += weight

    def differences(self) -> dict[str, Tensor]:
        """mean(BA) − mean(B) mean(A) by layer, of those whose two factors were seen."""
        found: dict[str, Tensor] = {}
        for one in self._root.layers:
            if one.name in self._sums:
                a, b, both = (total / self._weight for total in self._sums[one.name])
                found[one.name] = both - product(a, b, one.form, one.transposed)
        return found

    def size(self) -> float:
        """‖mean(BA)‖ over these layers."""
        return _length(both / self._weight for _, _, both in self._sums.values())
