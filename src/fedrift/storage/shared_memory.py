"""Memory that several processes see: anonymous files, so that nothing is left behind by a kill."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedrift.core.alignment import BOUNDARY, is_channels_last
from fedrift.core.messages import Packed

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8")
} | {"uint8": torch.uint8, "bool": torch.bool}


@dataclass(frozen=True)
class Ref:
    """A tensor inside a block."""

    offset: int
    dtype: str
    shape: tuple[int, ...]
    channels_last: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def aligned(size: int) -> int:
    return -(-size // BOUNDARY) * BOUNDARY


def anonymous_file(folder: str | None = None) -> int:
    """Descriptor of a file without a name: in memory, or in a folder on disk."""
    if folder is None and hasattr(os, "memfd_create"):
        return os.memfd_create("fedrift")
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())


def grow(descriptor: int, size: int) -> None:
    """Make a file larger and its room certain: writing to a hole of a full disk kills a process."""
    size_now = os.fstat(descriptor).st_size
    if size <= size_now:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            return os.posix_fallocate(descriptor, size_now, size - size_now)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                with suppress(OSError):
                    os.ftruncate(descriptor, size_now)
                raise
    os.ftruncate(descriptor, size)


class Block:
    """A growing stretch of shared memory that holds the tensors of one message at a time."""

    def __init__(self, descriptor: int | None = None, folder: str | None = None) -> None:
        self.descriptor = anonymous_file(folder) if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def put(self, packed: Packed) -> Packed:
        """Write the tensors; what comes back is small and says where they are."""
        where, end = dict(packed), 0
        for path, leaf in packed.items():
            if isinstance(leaf, Tensor):
                order = is_channels_last(leaf)
                where[path] = Ref(end, name_of(leaf.dtype), tuple(leaf.shape), order)
                end += aligned(leaf.nbytes)
        grow(self.descriptor, end)
        for path, ref in where.items():
            if isinstance(ref, Ref) and ref.nbytes:
                self.tensor(ref).copy_(packed[path])
        return where

    def get(self, where: Packed) -> Packed:
        """The message again, its tensors being views of the shared memory."""
        return {
            p: self.tensor(leaf) if isinstance(leaf, Ref) else leaf for p, leaf in where.items()
        }

    def own(self, where: Packed) -> dict[str, Tensor]:
        """The tensors once more, as one's own: the memory is the shared one until it is written,
        and what is written nobody else sees."""
        refs = {p: leaf for p, leaf in where.items() if isinstance(leaf, Ref)}
        if not any(ref.nbytes for ref in refs.values()):
            return {p: self.tensor(ref) for p, ref in refs.items()}
        memory = mmap.mmap(self.descriptor, self._size(), access=mmap.ACCESS_COPY)
        return {p: view(memory, ref) for p, ref in refs.items()}

    def tensor(self, ref: Ref) -> Tensor:
        """A view of one tensor."""
        if ref.nbytes and (self._map is None or ref.offset + ref.nbytes > len(self._map)):
            self._map = mmap.mmap(self.descriptor, self._size())
        return view(self._map, ref)

    def _size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        """Give the memory back once no view is left."""
        self._map = None
        os.close(self.descriptor)


def view(memory: mmap.mmap | None, ref: Ref, begin: int = 0) -> Tensor:
    """One tensor of what is mapped there."""
    dtype = DTYPES[ref.dtype]
    if memory is None or not ref.nbytes:
        return torch.empty(ref.shape, dtype=dtype)
    tensor = torch.frombuffer(memory, dtype=dtype, count=prod(ref.shape), offset=begin + ref.offset)
    if ref.channels_last:
        n, c, h, w = ref.shape
        return tensor.view(n, h, w, c).permute(0, 3, 1, 2)
    return tensor.view(ref.shape)


class Base:
    """Frozen tensors that stand in memory once, however many models and processes use them.

    Called, it gives them to a model as its own; what the model writes is its own too.
    """

    def __init__(self, block: Block, where: Packed) -> None:
        self.block, self.where = block, where

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Base | None:
        """In a new block, which lasts as long as this object; None if there is a kind of tensor
        that no block holds."""
        if any(name_of(t.dtype) not in DTYPES or t.device.type != "cpu" for t in tensors.values()):
            return None
        block = Block()
        made = cls(block, block.put(dict(tensors)))
        weakref.finalize(made, os.close, block.descriptor)
        return made

    def tensors(self) -> dict[str, Tensor]:
        """As all see them; nobody writes to these."""
        return self.block.get(self.where)

    def __call__(self) -> dict[str, Tensor]:
        return self.block.own(self.where)


def tree_to_packed(tree: Any, name: str) -> Packed:
    """A tensor, or a tuple or dict of tensors, as named leaves."""
    if isinstance(tree, Tensor):
        return {name: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {f"{name}.{key}": value for key, value in items}


def packed_to_tree(like: Any, packed: Packed, name: str) -> Any:
    """The inverse; `like` is a skeleton with the same structure (tensors replaced by None)."""
    if like is None:
        return packed[name]
    if isinstance(like, dict):
        return {key: packed[f"{name}.{key}"] for key in like}
    return tuple(packed[f"{name}.{i}"] for i in range(len(like)))


def skeleton(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return None
    return dict.fromkeys(tree) if isinstance(tree, dict) else (None,) * len(tree)


def tensor_digest(x: Tensor) -> str:
    """Short hash of a tensor's shape, sum and a few hundred rows: hashing all takes seconds."""
    few = x[:: max(1, len(x) // 256)].contiguous().cpu().numpy()
    kind = torch.float64 if x.is_floating_point() else torch.int64
    # Some samples at a time: summed at once, they would be copied in that type.
    total = sum(part.sum(dtype=kind).item() for part in x.split(1024)) if x.dim() else x.item()
    return hashlib.sha256(repr((tuple(x.shape), total)).encode() + few.tobytes()).hexdigest()[:16]
