"""Replies become one message: folded one by one, each field as it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrift.messages import reductions


@cache
def _derivations(cls: type) -> dict[str, Callable[[Any], Any]]:
    return {f.name: f.metadata["derived"] for f in fields(cls) if "derived" in f.metadata}


def reduced_values(cls: type, up: Any) -> dict[str, Any]:
    """The fields of a reply that are reduced, derived ones included, absent ones not."""
    derivations = _derivations(cls)
    values = {
        name: derivations[name](up) if name in derivations else getattr(up, name)
        for name in reductions(cls)
    }
    return {name: value for name, value in values.items() if value is not None}


def rebuilt(cls: type, values: Mapping[str, Any]) -> Any:
    """A reduced message; fields without a value are None in it."""
    reduced = object.__new__(cls)
    for f in fields(cls):
        object.__setattr__(reduced, f.name, values.get(f.name))
    return reduced


class Folding(Protocol):
    """Takes in the replies of an exchange one by one and reduces them."""

    replies: int
    weight: float

    def fold(self, up: Any, weight: float) -> None: ...
    def result(self) -> Any: ...


class Reducer:
    """Folds replies one by one, in client-id order, in float64, by the declared reductions."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.replies = 0
        self.weight = 0.0
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}
        self._like: dict[str, Any] = {}

    def fold(self, up: Any, weight: float) -> None:
        """Add one reply."""
        self.replies += 1
        self.weight += weight
        for name, value in reduced_values(self.cls, up).items():
            self._fold_field(name, reductions(self.cls)[name], value, weight)

    def _fold_field(self, name: str, how: str, value: Any, weight: float) -> None:
        if how == "gather":
            kept = value.clone() if isinstance(value, Tensor) else value  # a slot is reused
            self._sums.setdefault(name, []).append(kept)
            return
        scale = weight if how == "mean" else 1.0
        self._weights[name] = self._weights.get(name, 0.0) + weight
        if not isinstance(value, Tensor):
            self._sums[name] = self._sums.get(name, 0.0) + scale * value
            return
        if name not in self._sums:
            self._like[name] = value.dtype
            self._sums[name] = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        self._sums[name].add_(value, alpha=scale)

    def result(self) -> Any:
        """The reduced message; fields without a reduction are None in it."""
        values: dict[str, Any] = {}
        for name, how in reductions(self.cls).items():
            total = self._sums.get(name)
            if how == "gather":
                total = _stack(total or [])
            elif how == "mean" and total is not None:
                total = total / self._weights[name]
            if isinstance(total, Tensor) and name in self._like:
                total = total.to(self._like[name])
            values[name] = total
        return rebuilt(self.cls, values)


def _stack(values: list[Any]) -> Tensor:
    if values and isinstance(values[0], Tensor):
        return torch.stack(values)
    return torch.tensor(values, dtype=torch.float64)
