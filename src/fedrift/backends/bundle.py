"""Messages of several clients in one: leaves of equal form become the rows of one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedrift.messages import Packed

Bundle: TypeAlias = Packed
"""Path → rows, or `number path` → the leaf of one message, where they differ in form."""


def bundled(messages: Sequence[Packed]) -> Bundle:
    """All messages as one; numbers stay a tuple."""
    first = messages[0]
    if any(m.keys() != first.keys() for m in messages):
        return {f"{i} {path}": leaf for i, m in enumerate(messages) for path, leaf in m.items()}
    bundle: Bundle = {}
    for path in first:
        leaves = [m[path] for m in messages]
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            bundle[path] = tuple(leaves)
        elif len({_form(leaf) for leaf in leaves}) == 1:
            bundle[path] = torch.stack(leaves)
        else:
            bundle |= {f"{i} {path}": leaf for i, leaf in enumerate(leaves)}
    return bundle


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None


def unbundled(bundle: Bundle, number: int) -> list[Packed]:
    """The messages again; their tensors are views of the rows."""
    messages: list[Packed] = [{} for _ in range(number)]
    for path, leaf in bundle.items():
        place, _, name = path.partition(" ")
        if name:
            messages[int(place)][name] = leaf
            continue
        rows = leaf.unbind() if isinstance(leaf, Tensor) else leaf
        for message, row in zip(messages, rows, strict=True):
            message[path] = row
    return messages
