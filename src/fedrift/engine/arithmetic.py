"""The arithmetic of this machine, told by its last bits.

Two processors may have the same instruction set and yet add in another order: libraries choose
kernels by vendor, generation and caches too. Products, convolutions, their gradients and functions
of a few fixed numbers are taken once and hashed: where the hash is the same, runs can be compared
bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

PRODUCTS = ((2, 64, 10), (8, 4, 2), (10, 785, 10), (33, 100, 65), (64, 256, 128))
"""Rows, terms of each sum, columns: as in layers of small and of usual width."""
CONVOLUTIONS = ((4, 3, 16, 6, 5), (16, 16, 12, 16, 3))
"""Images, channels, width, channels that come out, width of the kernel."""


@cache
def last_bits() -> str:
    """Eight digits that stand for how this process rounds."""
    digest = hashlib.sha256()
    with _alone(), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        results = [one for shape in PRODUCTS for one in _products(*shape)]
        results += [one for shape in CONVOLUTIONS for one in _convolutions(*shape)]
    for result in results:
        digest.update(result.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]


@contextmanager
def _alone() -> Generator[None]:
    """One thread, as in every visit. Unlike `isolation.one_thread` it leaves the generators alone:
    nothing is drawn here, and another thread may be drawing from them."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)


def _products(rows: int, terms: int, columns: int) -> list[Tensor]:
    found: list[Tensor] = []
    for dtype in (torch.float32, torch.float64):
        left, right = _numbers(rows, terms, dtype=dtype), _numbers(columns, terms, dtype=dtype)
        product = functional.linear(left, right)
        stacked = torch.bmm(left[None], right.T.contiguous()[None])
        found += [product, product.T @ left, stacked, left @ right[0], left[0].dot(right[0])]
        found += [product.sum(1), product.norm(), product.tanh(), product.sigmoid()]
        found += [torch.logsumexp(product, 1), torch.softmax(product, 1)]
    return found


def _convolutions(images: int, channels: int, width: int, out: int, kernel: int) -> list[Tensor]:
    found: list[Tensor] = []
    for form in (torch.contiguous_format, torch.channels_last):
        x = _numbers(images, channels, width, width).contiguous(memory_format=form)
        x, w = x.requires_grad_(), _numbers(out, channels, kernel, kernel).requires_grad_()
        maps = functional.conv2d(x, w)
        found += [maps, *torch.autograd.grad(maps.square().sum(), (x, w))]
    return found


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same on every machine, between -1 and 1, with all of their digits in use."""
    whole = (torch.arange(torch.Size(shape).numel()) * 7919 + 1237) % 104729
    return (whole.to(dtype) / 52364.5 - 1).view(shape)
