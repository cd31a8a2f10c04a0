"""Messages of which only means and sums are needed: one vector each, so that masks can be added."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.algorithm import Algorithm
from fedrift.backends.codec import NUMBERS, Codec, Form, Refused, plain
from fedrift.messages import hints, reductions
from fedrift.problem import Problem


def unfit(cls: type) -> str:
    """Why a message needs to be seen by itself; empty if its sum over the cohort will do."""
    how, own = reductions(cls), hints(cls)
    if any("derived" in f.metadata for f in fields(cls)):
        return f"{cls.__name__} is folded with fields computed from single replies"
    for f in fields(cls):
        kind, optional = plain(own[f.name])
        if how.get(f.name) not in ("mean", "sum"):
            return f"field '{f.name}' is needed from each client by itself"
        if optional:
            return f"field '{f.name}' is not in every reply"
        if kind is not Tensor and kind not in NUMBERS:
            return f"field '{f.name}' is no array or number"
    return ""


class Added:
    """The fields of a message as one vector of which the server needs the weighted mean only."""

    def __init__(self, cls: type, owner: Algorithm[Any, Any], problem: Problem) -> None:
        self._cls, how = cls, reductions(cls)
        self._parts: list[tuple[str, str, Form | None]] = []
        if why := unfit(cls):
            raise Refused(why)
        for name, hint, _, form in Codec(cls, owner, problem).sent(cls, ""):
            self._parts.append((name, how[name], form if plain(hint)[0] is Tensor else None))

    @property
    def size(self) -> int:
        return sum(1 if form is None else prod(form.shape) for _, _, form in self._parts)

    def vector(self, up: Any, weight: float) -> np.ndarray:
        """What is masked: a sum is divided by the weight that the mean will multiply it with."""
        pieces: list[np.ndarray] = []
        for name, how, form in self._parts:
            value = getattr(up, name)
            if form is not None and Form.like(value) != form:
                raise Refused(f"field '{name}' is {Form.like(value)}, declared is {form}")
            flat = torch.as_tensor(value).detach().double().reshape(-1).numpy()
            pieces.append(flat / weight if how == "sum" else flat)
        return np.concatenate(pieces)

    def message(self, mean: np.ndarray, weight: float) -> Any:
        """The reduced message of a weighted mean; `weight` is that of all who are in it."""
        if mean.shape != (self.size,):
            raise Refused(f"the sum has shape {mean.shape}, declared are {self.size} numbers")
        reduced, end = object.__new__(self._cls), 0
        for name, how, form in self._parts:
            length = 1 if form is None else prod(form.shape)
            part = mean[end : end + length] * (weight if how == "sum" else 1.0)
            end += length
            value: Any = float(part[0])
            if form is not None:
                value = torch.from_numpy(part.copy()).reshape(form.shape).to(form.dtype)
            object.__setattr__(reduced, name, value)
        return reduced
