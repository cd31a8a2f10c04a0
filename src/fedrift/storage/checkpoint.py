"""A run's state in one file: server, buffers, who holds which row, round; and the one before it.

A file carries the hash of its content and how far the line files reached. One that is torn,
damaged, or does not fit the rows and lines beside it is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedrift.core.arrivals import ClockState, Out
from fedrift.core.devices import Trip
from fedrift.core.messages import Packed, Size, pack, unpack
from fedrift.core.plain_files import check_plain, written_beside
from fedrift.core.site import Work
from fedrift.core.training_report import Training

FILE, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
CLIENT_LISTS = ("counted", "told")
Mark = tuple[int, int]
"""How many bytes of a file count, and their CRC."""


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
    sums: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Path of an algorithm → checksum of each client's row."""
    lines: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    """Name of a file of lines → what was in it."""
    diverged_at: int | None = None
    """The round with which the run ended because it was not finite."""
    clock: ClockState = ClockState()
    """The simulated clock, and what clients bring that are still out."""


def write(folder: Path, point: Checkpoint) -> None:
    """Save it; the last file becomes the previous one when the new one is complete."""
    packed: Packed = {f"server/{p}": v for p, v in pack(point.server).items()}
    packed |= {f"buffers/{i}": b for i, b in enumerate(point.buffers)}
    packed |= {f"rows/{p}": torch.from_numpy(index) for p, index in point.rows.items()}
    packed |= {f"sums/{p}": torch.from_numpy(sums) for p, sums in point.sums.items()}
    for i, out in enumerate(point.clock.out):
        up = {p: v for p, v in (out.up or {}).items() if isinstance(v, Tensor)}
        packed |= {f"out/{i}/{p}": v for p, v in up.items()}
        packed |= {f"moved/{i}/{j}": b for j, b in enumerate(out.buffers)}
    packed["counted"] = torch.tensor(point.counted, dtype=torch.int64)
    packed["told"] = torch.tensor(point.told, dtype=torch.int64)
    tensors = _apart({p: v.contiguous() for p, v in packed.items() if isinstance(v, Tensor)})
    numbers = {p: v for p, v in packed.items() if not isinstance(v, Tensor)}
    head = json.dumps(
        {
            "round": point.round,
            "seconds": point.seconds,
            "numbers": numbers,
            "lines": {name: list(mark) for name, mark in point.lines.items()},
            "diverged_at": point.diverged_at,
            **({} if point.clock == ClockState() else {"clock": _clock_head(point.clock)}),
        }
    )
    content = save(tensors, metadata={"fedrift": head, "sha256": _digest(head, tensors)})
    with written_beside(folder / FILE, content) as beside:
        if (folder / FILE).exists():
            os.replace(folder / FILE, folder / PREVIOUS)
        os.replace(beside, folder / FILE)
    sync_folder(folder)


def _digest(head: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(head.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fields of a state may be the same tensor; the file format wants each by itself."""
    seen: set[int] = set()
    for path, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        tensors[path] = tensor.clone() if where in seen else tensor.cpu()
        seen.add(where)
    return tensors


def read(path: Path, like: Any) -> Checkpoint:
    """One checkpoint; ValueError says what is wrong. `like` is a server state of its kind."""
    try:
        check_plain(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            packed: Packed = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["fedrift"]
        if metadata["sha256"] != _digest(text, packed):
            raise ValueError("its content does not fit its hash")
        return _unpacked(json.loads(text), packed, like)
    except (SafetensorError, OSError, RuntimeError, RecursionError) as error:
        raise ValueError(str(error).split("\n")[0][:200]) from None
    except (
        KeyError,
        TypeError,
        AttributeError,
        StopIteration,
        ArithmeticError,
        IndexError,
    ) as error:
        raise ValueError(f"it is not a checkpoint of this run ({error!r:.80})") from None


def read_newest(folder: Path, like: Any) -> Checkpoint | None:
    """The last good checkpoint of a folder, if it has one."""
    for name in (FILE, PREVIOUS):
        with suppress(ValueError):
            return read(folder / name, like)
    return None


def _unpacked(head: dict[str, Any], packed: Packed, like: Any) -> Checkpoint:
    if not all(path.startswith("server/") for path in head["numbers"]):
        raise ValueError("it holds numbers where tensors belong")
    packed |= head["numbers"]
    parts: dict[str, Packed] = {"server": {}, "buffers": {}, "rows": {}, "sums": {}}
    parts |= {"out": {}, "moved": {}}
    for path, leaf in packed.items():
        part, _, name = path.partition("/")
        if part in parts:
            parts[part][name] = leaf
    _check_server(parts["server"], pack(like))
    if any(packed[name].dtype != torch.int64 or packed[name].dim() != 1 for name in CLIENT_LISTS):
        raise ValueError("it does not name clients by their numbers")
    if type(head["round"]) is not int or head["round"] < 0:
        raise ValueError("its round is no number")
    end = head.get("diverged_at")
    if end is not None and end != head["round"]:
        raise ValueError("its end is not its last round")
    return Checkpoint(
        round=head["round"],
        server=unpack(type(like), parts["server"], like),
        buffers=tuple(parts["buffers"][str(i)] for i in range(len(parts["buffers"]))),
        rows={p: v.numpy() for p, v in parts["rows"].items()},
        counted=tuple(packed["counted"].tolist()),
        told=tuple(packed["told"].tolist()),
        seconds=float(head["seconds"]),
        sums={p: v.numpy() for p, v in parts["sums"].items()},
        lines={name: (int(size), int(crc)) for name, (size, crc) in head["lines"].items()},
        diverged_at=end,
        clock=_clock(head["clock"], parts["out"], parts["moved"])
        if "clock" in head
        else ClockState(),
    )


# The clock: numbers in the head, what clients bring among the tensors.


def _clock_head(clock: ClockState) -> dict[str, Any]:
    return {
        "time": clock.time,
        "departures": clock.departures,
        "out": [_out_head(out) for out in clock.out],
    }


def _out_head(out: Out) -> dict[str, Any]:
    speaks = out.up is not None
    numbers = {p: v for p, v in (out.up or {}).items() if not isinstance(v, Tensor)}
    return {
        "trip": list(out.trip),
        "round": out.round,
        "n": out.n,
        "numbers": numbers if speaks else None,
        "work": [out.work.gradients, out.work.forwards, out.work.steps],
        "size": {name: [size.tensors, size.numbers] for name, size in out.size.items()},
        "finite": out.is_finite,
        "training": None if out.training is None else list(out.training),
    }


def _work(gradients: int, forwards: int, steps: int) -> Work:
    return Work(int(gradients), int(forwards), int(steps))


def _clock(head: dict[str, Any], out: Packed, moved: Packed) -> ClockState:
    clients: list[Out] = []
    for i, told in enumerate(head["out"]):
        client, *times = told["trip"]
        trip = Trip(int(client), *(float(t) for t in times))
        if not all(map(math.isfinite, trip)):
            raise ValueError("a client that is out never arrives")
        own = {p: v for p, v in out.items() if p.startswith(f"{i}/")}
        up: Packed = {p.partition("/")[2]: v for p, v in own.items()}
        buffers = [moved[f"{i}/{j}"] for j in range(sum(p.startswith(f"{i}/") for p in moved))]
        numbers = told["numbers"]
        clients.append(
            Out(
                trip,
                int(told["round"]),
                int(told["n"]),
                None if numbers is None else {**up, **numbers},
                tuple(buffers),
                _work(*told["work"]),
                {name: Size(*map(int, pair)) for name, pair in told["size"].items()},
                bool(told["finite"]),
                None if told["training"] is None else Training(*told["training"]),
            )
        )
    time = float(head["time"])
    if not 0.0 <= time < math.inf:
        raise ValueError("its clock shows no time")
    return ClockState(time, int(head["departures"]), tuple(clients))


def _check_server(saved: Packed, like: Packed) -> None:
    """Tensors of the initial state keep their form; tuples and what was absent may have grown."""
    for path, leaf in like.items():
        now = saved.get(path)
        if isinstance(leaf, Tensor) and isinstance(now, Tensor):
            if leaf.shape != now.shape or leaf.dtype != now.dtype:
                raise ValueError(f"'{path}' of the server's state has another form")
        elif isinstance(leaf, Tensor) and now is not None:
            raise ValueError(f"'{path}' of the server's state is no tensor")


def sync_folder(folder: Path) -> None:
    """Renames reach the disk with their folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
