"""What a corrupted client sends instead of its reply."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedrift.faults import Corrupt
from fedrift.flat import norm
from fedrift.messages import pack, unpack
from fedrift.streams import torch_seed


def corrupted(up: Any, how: Corrupt, seed: int, round: int, client: int) -> Any:
    """The reply with every vector in it changed; numbers stay."""
    random = torch.Generator().manual_seed(torch_seed(seed, "fault noise", round, client))
    changed = {
        path: _changed(leaf, how, random)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
        else leaf
        for path, leaf in pack(up).items()
    }
    return unpack(type(up), changed, up)


def _changed(leaf: Tensor, how: Corrupt, random: torch.Generator) -> Tensor:
    if how.kind == "nan":
        return torch.full_like(leaf, float("nan"))
    if how.kind == "noise":
        noise = torch.randn(leaf.shape, generator=random, dtype=leaf.dtype).to(leaf.device)
        length = float(norm(leaf.reshape(-1)))
        return noise * (how.factor * length / max(1.0, leaf.numel() ** 0.5))
    return leaf * (-how.factor if how.kind == "sign" else how.factor)
