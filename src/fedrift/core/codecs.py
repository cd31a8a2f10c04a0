"""Vectors packed into bytes and back, and what clients keep of what was not sent.

Top-k and sign with error feedback: Stich, Cordonnier, Jaggi, NeurIPS 2018, and Karimireddy et al.,
ICML 2019; quantised levels: Alistarh et al., NeurIPS 2017 (QSGD).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedrift.core.compression import Compression, Packing, Side
from fedrift.core.flat import Vec, is_finite, norm
from fedrift.core.messages import Size, hints, nbytes, pack, state
from fedrift.rng import torch_seed

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}

# One vector.


def packed(v: Vec, how: Packing, random: torch.Generator) -> Tensor:
    """The bytes that stand for v, which is finite."""
    if how.kind in HALF:
        return _bytes(v.to(HALF[how.kind]))
    if how.kind == "qsgd":
        return _packed_levels(v, int(how.value), random)
    if how.kind == "sign":
        scale = v.abs().double().mean().to(v.dtype).reshape(1)
        return torch.cat([_bytes(scale), _bits(v >= 0)])
    chosen = largest(v, _kept(how, len(v)))
    return torch.cat([_bytes(v[chosen]), _where(chosen, len(v))])


def unpacked(data: Tensor, how: Packing, size: int, dtype: torch.dtype) -> Vec:
    """The vector that these bytes stand for; they must be as many as `packed_bytes` says."""
    if how.kind in HALF:
        return _numbers(data, HALF[how.kind]).to(dtype)
    word = dtype.itemsize
    if how.kind == "qsgd":
        return _unpacked_levels(data, int(how.value), size, dtype)
    if how.kind == "sign":
        scale = _numbers(data[:word], dtype)
        return torch.where(_flags(data[word:], size), scale, -scale)
    kept, v = _kept(how, size), torch.zeros(size, dtype=dtype)
    v[_chosen(data[kept * word :], kept, size)] = _numbers(data[: kept * word], dtype)
    return v


def packed_bytes(how: Packing, size: int, dtype: torch.dtype) -> int:
    """How many bytes stand for a vector of this size."""
    if how.kind in HALF:
        return 2 * size
    if how.kind == "qsgd":
        return dtype.itemsize + _ceil(size * int(how.value), 8)
    if how.kind == "sign":
        return dtype.itemsize + _ceil(size, 8)
    kept = _kept(how, size)
    return kept * dtype.itemsize + (0 if kept == size else min(4 * kept, _ceil(size, 8)))


def largest(v: Vec, number: int) -> Tensor:
    """Where the entries of largest size stand, in order; of equal ones the first are taken."""
    size = v.abs()
    if number >= len(v):
        return torch.arange(len(v))
    least = float(np.partition(size.numpy(), len(v) - number)[len(v) - number])
    above = torch.nonzero(size > least).reshape(-1)
    level = torch.nonzero(size == least).reshape(-1)[: number - len(above)]
    return torch.cat([above, level]).sort().values


def _kept(how: Packing, size: int) -> int:
    return min(size, max(1, math.ceil(how.value * size - 1e-9)))


def _where(chosen: Tensor, size: int) -> Tensor:
    """Places as numbers of four bytes or as one bit for every entry, whichever is shorter."""
    if len(chosen) == size:
        return torch.empty(0, dtype=torch.uint8)
    if 4 * len(chosen) < _ceil(size, 8):
        return _bytes(chosen.to(torch.int32))
    flags = torch.zeros(size, dtype=torch.bool)
    flags[chosen] = True
    return _bits(flags)


def _chosen(data: Tensor, number: int, size: int) -> Tensor:
    if number == size:
        return torch.arange(size)
    if 4 * number < _ceil(size, 8):
        places = _numbers(data, torch.int32).long()
        is_ordered = bool((places[1:] > places[:-1]).all())
        if not is_ordered or int(places[0]) < 0 or int(places[-1]) >= size:
            raise ValueError("its places are not those of entries, in order")
        return places
    places = torch.nonzero(_flags(data, size)).reshape(-1)
    if len(places) != number:
        raise ValueError(f"{len(places)} entries are marked and {number} are sent")
    return places


def _packed_levels(v: Vec, bits: int, random: torch.Generator) -> Tensor:
    """ξ = ⌊u⌋ + Bernoulli(u − ⌊u⌋) with u = s|v|/‖v‖: right on average."""
    most, length = (1 << (bits - 1)) - 1, norm(v).to(v.dtype).reshape(1)
    if not float(length):
        level = torch.zeros(len(v), dtype=torch.int32)
    else:
        level = (v * (most / length)).abs_()
        level.add_(torch.rand(len(v), generator=random, dtype=v.dtype)).floor_().clamp_(max=most)
        level = torch.copysign(level, v).to(torch.int32)
    return torch.cat([_bytes(length), _joined(level + most, bits)])


def _unpacked_levels(data: Tensor, bits: int, size: int, dtype: torch.dtype) -> Vec:
    most, word = (1 << (bits - 1)) - 1, dtype.itemsize
    length = _numbers(data[:word], dtype)
    return (_apart(data[word:], bits, size) - most).to(dtype) * (length / most)


def _joined(level: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2^bits, without a gap between them."""
    if bits == 16:
        return _bytes(level.to(torch.int32)).view(-1, 4)[:, :2].reshape(-1)
    if 8 % bits:
        return _bits(((level[:, None] >> torch.arange(bits)) & 1).bool().reshape(-1))
    full = torch.zeros(_ceil(len(level) * bits, 8), dtype=torch.uint8)
    for place in range(8 // bits):  # of one byte
        part = level[place :: 8 // bits].to(torch.uint8)
        full[: len(part)] |= part << (place * bits)
    return full


def _apart(data: Tensor, bits: int, size: int) -> Tensor:
    level = torch.empty(size, dtype=torch.int32)
    if bits == 16:
        low, high = data.view(size, 2).unbind(dim=1)
        return level.copy_(high).mul_(256).add_(low)
    if 8 % bits:
        flags = _flags(data, size * bits).view(size, bits)
        return (flags.to(torch.int32) << torch.arange(bits)).sum(dim=1, dtype=torch.int32)
    for place in range(8 // bits):
        part = level[place :: 8 // bits]
        part.copy_((data[: len(part)] >> (place * bits)) & ((1 << bits) - 1))
    return level


def _bytes(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8)


def _numbers(data: Tensor, dtype: torch.dtype) -> Tensor:
    return data.clone().view(dtype)  # whose start may be anywhere


def _bits(flags: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(flags.numpy(), bitorder="little"))


def _flags(data: Tensor, size: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(data.numpy(), count=size, bitorder="little")).bool()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


# The fields of a message.


@cache
def vector_fields(cls: type) -> tuple[str, ...]:
    """The fields of a message that are vectors of parameters and travel: these can be packed."""
    own = hints(cls)
    return tuple(
        f.name
        for f in fields(cls)
        if "derived" not in f.metadata and "shape" not in f.metadata and _is_vector(own[f.name])
    )


def _is_vector(hint: Any) -> bool:
    return hint is Tensor or any(_is_vector(one) for one in get_args(hint) if one is not hint)


def rules_of(how: Compression, side: Side, cls: type) -> dict[str, Packing]:
    """Field → how it is packed."""
    found = ((name, how.of(side, name)) for name in vector_fields(cls))
    return {name: packing for name, packing in found if packing is not None}


def sizes_of(how: Compression | None, side: Side, message: Any) -> dict[str, Size]:
    """Field → bytes on the wire."""
    sizes = nbytes(pack(message))
    if how is not None and message is not None:
        for name, packing in rules_of(how, side, type(message)).items():
            v = getattr(message, name)
            if v is not None:
                sizes[name] = Size(tensors=packed_bytes(packing, len(v), v.dtype))
    return sizes


@state
class Unsent:
    """What a client keeps where replies are packed with feedback."""

    inner: Any  # what the algorithm keeps
    error: tuple[Vec, ...]  # what was not sent yet, of each field that is fed back


Payload = Mapping[str, Tensor]
"""Field → the bytes that travel in its place."""


def packed_message(
    how: Compression,
    side: Side,
    message: Any,
    stream: tuple[int, str, int, int],
    error: Mapping[str, Vec] | None = None,
) -> tuple[Any, Payload, dict[str, Vec]]:
    """The message as it arrives, the bytes that travel, and what was not sent of each field.

    `stream` is seed, phase, round and client: the random numbers of a field are its own. What was
    not sent last time is in `error`, for the fields that are fed back.
    """
    seed, phase, round, client = stream
    arrived: dict[str, Vec] = {}
    payload: dict[str, Tensor] = {}
    left: dict[str, Vec] = {}
    for name, packing in rules_of(how, side, type(message)).items():
        v = getattr(message, name)
        if v is None or not is_finite(v):  # a reply that is not finite is dropped as it is
            continue
        if error and name in error:
            v = v + error[name]
        random = torch.Generator().manual_seed(
            torch_seed(seed, f"compress {side} {phase} {name}", round, client)
        )
        payload[name] = packed(v, packing, random)
        arrived[name] = unpacked(payload[name], packing, len(v), v.dtype)
        if error and name in error:
            left[name] = v - arrived[name]
    return replace(message, **arrived), payload, left
