"""A run's state in one file, replaced atomically: server, buffers, who holds which row, round."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedrift.messages import Packed, pack, unpack

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on after `round` rounds; randomness needs no state."""

    round: int
    server: Any
    buffers: tuple[Tensor, ...]
    rows: dict[str, np.ndarray]
    """Path of an algorithm → slot of each client's row."""
    counted: tuple[int, ...]
    told: tuple[int, ...]
    """Clients that have been sent the parameters frozen during the run."""
    seconds: float


def write(folder: Path, point: Checkpoint) -> None:
    """Save it; the file that was there before stays until the new one is complete."""
    packed: Packed = {f"server/{p}": v for p, v in pack(point.server).items()}
    packed |= {f"buffers/{i}": b for i, b in enumerate(point.buffers)}
    packed |= {f"rows/{p}": torch.from_numpy(index) for p, index in point.rows.items()}
    packed["counted"] = torch.tensor(point.counted, dtype=torch.int64)
    packed["told"] = torch.tensor(point.told, dtype=torch.int64)
    tensors = _apart({p: v.contiguous() for p, v in packed.items() if isinstance(v, Tensor)})
    numbers = {p: v for p, v in packed.items() if not isinstance(v, Tensor)}
    head = {"round": point.round, "seconds": point.seconds, "numbers": numbers}
    replace_file(folder / FILE, save(tensors, metadata={"fedrift": json.dumps(head)}))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fields of a state may be the same tensor; the file format wants each by itself."""
    seen: set[int] = set()
    for path, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        tensors[path] = tensor.clone() if where in seen else tensor
        seen.add(where)
    return tensors


def read(folder: Path, like: Any) -> Checkpoint | None:
    """The last checkpoint of a folder, or None; `like` is a server state of the same kind."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads(file.metadata()["fedrift"])
            packed: Packed = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, OSError):
        return None
    packed |= head["numbers"]
    parts: dict[str, Packed] = {"server": {}, "buffers": {}, "rows": {}}
    for path_, leaf in packed.items():
        part, _, name = path_.partition("/")
        if part in parts:
            parts[part][name] = leaf
    return Checkpoint(
        round=head["round"],
        server=unpack(type(like), parts["server"], like),
        buffers=tuple(parts["buffers"][str(i)] for i in range(len(parts["buffers"]))),
        rows={p: v.numpy() for p, v in parts["rows"].items()},
        counted=tuple(packed["counted"].tolist()),
        told=tuple(packed["told"].tolist()),
        seconds=head["seconds"],
    )


def replace_file(path: Path, content: bytes) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.tmp")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
