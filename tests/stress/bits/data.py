"""The caller's samples: the same values in every layout that arrays have in people's programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from tests.stress.bits.models import CLASSES, LENGTH, TOKENS, WIDTH

SHAPES = ("vector", "regression", "image", "tokens", "masked", "pair")
NAMES = {"masked": ("x", "mask"), "pair": ("a", "b")}
"""What the arguments of models with two inputs are called."""


def samples(shape: str, number: int, seed: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs, each a tensor that lies as torch makes it, and their targets."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (number,), generator=g)
    noise = torch.randn(number, 72, generator=g) + y[:, None] * 0.5
    match shape:
        case "image":
            return (noise.view(number, 2, 6, 6),), y
        case "tokens" | "masked":
            words = torch.randint(1, TOKENS, (number, LENGTH), generator=g)
            words[:, 1] = y + 1
            ends = torch.randint(2, LENGTH + 1, (number,), generator=g)
            mask = torch.arange(LENGTH)[None] >= ends[:, None]
            return ((words, mask) if shape == "masked" else (words,)), y
        case "pair":
            return (noise[:, :5].clone(), noise[:, 5:8].clone()), y
        case "regression":
            return (noise[:, :WIDTH].clone(),), noise[:, :3] * 0.5
        case _:
            return (noise[:, :WIDTH].clone(),), y


def _view(t: Tensor) -> Tensor:
    """A part of the columns of something wider."""
    return torch.cat([t, t], dim=-1)[..., : t.shape[-1]]


def _transposed(t: Tensor) -> Tensor:
    axes = tuple(range(t.dim()))[::-1]
    return t.permute(axes).contiguous().permute(axes)


def _offset(t: Tensor) -> Tensor:
    """It begins one number after the beginning of its memory."""
    held = torch.empty(t.numel() + 1, dtype=t.dtype)
    held[1:] = t.reshape(-1)
    return held[1:].view(t.shape)


def _stepped(t: Tensor) -> Tensor:
    return torch.stack([t, t], dim=1).flatten(0, 1)[::2]


def _channels_last(t: Tensor) -> Tensor:
    return t.to(memory_format=torch.channels_last) if t.dim() == 4 else t


def _unaligned(t: Tensor) -> np.ndarray:
    """numpy's array at an odd address."""
    source = np.ascontiguousarray(t.numpy())
    held = np.empty(source.nbytes + 1, np.uint8)
    found = np.frombuffer(held, source.dtype, source.size, 1).reshape(source.shape)
    found[...] = source
    return found


def _read_only(t: Tensor) -> np.ndarray:
    found = t.numpy().copy()
    found.flags.writeable = False
    return found


LAYOUTS: dict[str, Callable[[Tensor], Any]] = {
    "plain": lambda t: t.contiguous(),
    "view": _view,
    "transposed": _transposed,
    "offset": _offset,
    "stepped": _stepped,
    "channels-last": _channels_last,
    "numpy": lambda t: t.numpy().copy(),
    "fortran": lambda t: np.asfortranarray(t.numpy()),
    "reversed": lambda t: np.ascontiguousarray(t.numpy()[::-1])[::-1],
    "unaligned": _unaligned,
    "read-only": _read_only,
    "wider": lambda t: (
        t.double() if t.is_floating_point() else t.to(torch.int32) if t.dtype is torch.int64 else t
    ),
    "differentiable": lambda t: t.clone().requires_grad_() if t.is_floating_point() else t,
}


class Items(Dataset[Any]):
    """A map-style data set whose items are pairs."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        if isinstance(self.x, dict):
            return {k: v[i] for k, v in self.x.items()}, self.y[i]
        if isinstance(self.x, tuple):
            return tuple(v[i] for v in self.x), self.y[i]
        return self.x[i], self.y[i]


def given(shape: str, number: int, seed: int, layout: str, form: str) -> tuple[Any, Any]:
    """(x, y) as a caller has them; two inputs are a tuple or, in the form "dict", a dict."""
    parts, y = samples(shape, number, seed)
    laid = tuple(map(LAYOUTS[layout], parts))
    targets = y if layout == "differentiable" else LAYOUTS[layout](y)
    if shape not in NAMES:
        return laid[0], targets
    return (dict(zip(NAMES[shape], laid, strict=True)) if form == "dict" else laid), targets


def data_set(x: Any, y: Any) -> Dataset[Any]:
    """The same as a map-style data set."""
    is_plain = isinstance(x, Tensor) and isinstance(y, Tensor)
    return TensorDataset(x, y) if is_plain else Items(x, y)


def rows(x: Any, index: np.ndarray | slice) -> Any:
    """Some samples of an input that may have parts."""
    if isinstance(x, dict):
        return {k: v[index] for k, v in x.items()}
    return tuple(v[index] for v in x) if isinstance(x, tuple) else x[index]
