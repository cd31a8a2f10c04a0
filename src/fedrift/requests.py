"""What visits ask for when they train, and which of them can be trained in one stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedrift.flat import Vec
from fedrift.local import Local, Run
from fedrift.optim import SGD, Adagrad, Adam, Momentum, OptState
from fedrift.pieces import Correction, Gradient

ELEMENTWISE = (SGD, Momentum, Adam, Adagrad)
"""Optimizers whose formula is the same for every element, so for rows as well."""


class Request(NamedTuple):
    """What a visit asks for: local training from w on its samples."""

    local: Local
    w: Vec
    correct: tuple[Correction, ...]
    outside: tuple[Correction, ...]
    gradient: Gradient
    opt: OptState | None
    freeze: bool
    mean_grad: bool
    rates: Sequence[float]
    samples: Any
    """The client's data: a `ClientData`."""
    order: Callable[[], np.random.Generator]

    @property
    def pieces(self) -> tuple[Any, ...]:
        return (self.gradient, *self.local.correct, *self.correct, *self.outside)


class Trained(NamedTuple):
    """What a visit gets, and how many examples were differentiated for it."""

    run: Run
    examples: int
    spent: Mapping[str, float]
    """Its share of the stack's seconds, by kind of work."""


Meet: TypeAlias = Callable[[Request], Trained | None]
"""Where a visit brings its request; None: it must train by itself."""


Kind: TypeAlias = tuple[Any, ...]


@cache
def _fields(cls: type) -> tuple[str, ...] | None:
    """The fields of a piece whose formula holds for rows; None if it does not say so."""
    if not vars(cls).get("rowwise") or not is_dataclass(cls):
        return None
    return tuple(f.name for f in fields(cls))


def _piece_kind(piece: Any) -> tuple[Any, ...] | None:
    names = _fields(type(piece))
    if names is None:
        return None
    values = (getattr(piece, name) for name in names)
    return type(piece), *("rows" if isinstance(v, Tensor) else v for v in values)


def kind_of(request: Request) -> Kind | None:
    """Equal for requests that can be trained in one stack; None if this one cannot be."""
    local, optimizer, rates = request.local, request.local.optimizer, request.rates
    if type(optimizer) not in ELEMENTWISE or not rates:
        return None
    pieces = tuple(_piece_kind(piece) for piece in request.pieces)
    if None in pieces:
        return None
    n, opt = len(request.samples), request.opt
    equal = rates.count(rates[0]) == len(rates)
    return (
        room_of(n, local.batch_size),
        rates[0] if equal else tuple(rates),
        optimizer,
        local.clip,
        request.freeze,
        request.mean_grad,
        len(request.correct),
        len(request.outside),
        -1 if opt is None else int(opt.count),
        pieces,
    )


def room_of(n: int, batch_size: int | None) -> int:
    """Samples a batch has room for. A whole client is padded, so that few sizes differ.

    It depends on the client alone, so that who stands beside it changes nothing.
    """
    return batch_size if batch_size is not None and batch_size < n else -(-n // 8) * 8


def rows(vectors: Sequence[Vec]) -> Vec:
    """A row for each, or the vector itself if it is the same one for all."""
    first = vectors[0]
    if all(v is first for v in vectors):
        return first
    return torch.stack(list(vectors))


def joined(pieces: Sequence[Any]) -> Any:
    """One piece that does to each row what they do to one vector each."""
    first, changed = pieces[0], dict[str, Vec]()
    for name in _fields(type(first)) or ():
        if isinstance(getattr(first, name), Tensor):
            changed[name] = rows([getattr(piece, name) for piece in pieces])
    return replace(first, **changed) if changed else first


def first_rows(piece: Any, number: int) -> Any:
    """The piece for the first rows only."""
    cut = {
        name: getattr(piece, name)[:number]
        for name in _fields(type(piece)) or ()
        if isinstance(getattr(piece, name), Tensor) and getattr(piece, name).dim() > 1
    }
    return replace(piece, **cut) if cut else piece
