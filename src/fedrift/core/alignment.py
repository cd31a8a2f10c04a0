"""Where numbers stand in memory, decided once: products of matrices depend on it in the last bits.

Kernels read in steps of a processor's vectors and treat the ends apart, so what a sum of products
rounds to depends on the address that it begins at and on the strides between its numbers. Whatever
reaches a step, an evaluation or a method of an algorithm is therefore *settled*: row by row (or
channels last, where that was chosen for images) and beginning at a multiple of 64 bytes, which is
how torch makes new tensors. Views, arrays of numpy, files, shared memory and messages have other
addresses and strides; they are settled where they come in, in every backend.

With `FEDRIFT_CHECK_LAYOUT=1` in the environment every visit and evaluation asserts it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

BOUNDARY = 64
"""Bytes: the longest vector of any processor of today, and what torch's own tensors begin at."""

CHECKS = os.environ.get("FEDRIFT_CHECK_LAYOUT", "") not in ("", "0")


@lru_cache(maxsize=1024)
def strides_of(shape: tuple[int, ...], channels_last: bool = False) -> tuple[int, ...]:
    """The strides of a tensor that is row by row, or of images whose channels come last."""
    if channels_last:
        _, channels, height, width = shape
        return (height * width * channels, 1, width * channels, channels)
    return tuple(prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape)))


def is_channels_last(t: Tensor) -> bool:
    """By the strides: one-channel images count as contiguous in both formats."""
    if t.dim() != 4:
        return False
    shape, strides = tuple(t.shape), t.stride()
    return t.numel() > 0 and strides == strides_of(shape, True) != strides_of(shape)


def dense(t: Tensor, channels_last: bool | None = None) -> Tensor:
    """The tensor with the strides of its format (by default the one it has); itself if it can."""
    if t.layout is not torch.strided:
        return t
    if channels_last is None:
        is_last = is_channels_last(t)
    else:
        is_last = channels_last and t.dim() == 4 and t.numel() > 0
    strides = strides_of(tuple(t.shape), is_last)
    if t.stride() == strides:
        return t
    order = torch.channels_last if is_last else torch.contiguous_format
    if t.is_contiguous(memory_format=order):  # all but strides of axes that have one element
        return t.as_strided(t.shape, strides)
    return _copied(t, strides)


def _copied(t: Tensor, strides: Sequence[int]) -> Tensor:
    new = torch.empty_strided(tuple(t.shape), tuple(strides), dtype=t.dtype, device=t.device)
    return new.copy_(t)


def _begins_well(t: Tensor) -> bool:
    return t.device.type != "cpu" or t.data_ptr() % BOUNDARY == 0


def settled(value: T) -> T:
    """Samples, a message or a state with every tensor dense and at a boundary; itself, if it is
    that already."""
    if isinstance(value, Tensor):
        return _settled(value)  # type: ignore[return-value]
    kind = type(value)
    if kind is tuple or kind is dict:
        return _settled_items(value)
    names = _names(kind)
    return value if names is None else _settled_fields(value, names)  # type: ignore[return-value]


def _settled(t: Tensor) -> Tensor:
    if t.layout is not torch.strided:
        return t
    if t.dim() != 1 or t.stride(0) != 1:  # no vector, which most are
        t = dense(t)
    return t if _begins_well(t) else _copied(t, t.stride())


def _settled_items(value: Any) -> Any:
    items = list(value.values()) if isinstance(value, dict) else value
    new = [settled(item) for item in items]
    if all(a is b for a, b in zip(new, items, strict=True)):
        return value
    return dict(zip(value, new, strict=True)) if isinstance(value, dict) else tuple(new)


@cache
def _names(cls: type) -> tuple[str, ...] | None:
    """The fields of a message or state; None for anything else."""
    return tuple(f.name for f in fields(cls)) if is_dataclass(cls) else None


def _settled_fields(value: Any, names: Sequence[str]) -> Any:
    """A message or state: frozen, and one that was reduced has fields that no caller can give."""
    moved: dict[str, Any] = {}
    for name in names:
        own = getattr(value, name)
        new = settled(own)
        if new is not own:
            moved[name] = new
    if not moved:
        return value
    made = object.__new__(type(value))
    for name in names:
        object.__setattr__(made, name, moved.get(name, getattr(value, name)))
    return made


def is_settled(t: Tensor) -> bool:
    return dense(t) is t and _begins_well(t)


def check_settled(what: str, *values: Any) -> None:
    """Asserts that all tensors of samples, messages or states are settled."""
    for t in _tensors(values):
        if not is_settled(t):
            raise AssertionError(
                f"{what}: a tensor of shape {tuple(t.shape)} has strides {t.stride()} and begins "
                f"at {t.data_ptr() % BOUNDARY} modulo {BOUNDARY}"
            )


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (dict, tuple)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)
    else:
        for name in _names(type(tree)) or ():
            yield from _tensors(getattr(tree, name))


# Rows that are worked on at once but must come out as if each were alone.


def empty_rows(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Uninitialised, each row (of the first axis) at a boundary, with a gap between if need be."""
    step = BOUNDARY // like.element_size()
    inner = strides_of(tuple(shape))
    row = -(-inner[0] // step) * step
    return like.new_empty(shape[0] * row).as_strided(tuple(shape), (row, *inner[1:]))


def has_settled_rows(t: Tensor) -> bool:
    """Each row is row by row and at a boundary."""
    if t.shape[0] > 1 and t.stride(0) * t.element_size() % BOUNDARY:
        return False
    return _begins_well(t) and (t.is_contiguous() or t[0].is_contiguous())


def settled_rows(t: Tensor) -> Tensor:
    """The tensor with every row at a boundary; itself, if it is that already."""
    return t if has_settled_rows(t) else empty_rows(t, t.shape).copy_(t)
