"""The folder `analysis` inside a run folder: what was found, and what was kept on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedrift.errors import InputError
from fedrift.flat import Vec
from fedrift.records import Record, dump, read_lines, replace_bytes
from fedrift.results import ANALYSIS

ROUNDS, WEIGHTS = "rounds.jsonl", "weights"


def place(run: Path) -> Path:
    """Where a run's analysis is kept; made if need be."""
    found = run / ANALYSIS
    try:
        found.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"'{found}' cannot be made: {error.strerror}") from None
    return found


def write_json(path: Path, record: Record) -> Path:
    """Replaces a file as a whole."""
    replace_bytes(path, (dump(record, indent=1) + "\n").encode("utf-8"))
    return path


def observed(run: Path) -> list[Record]:
    """What was measured while the run was going on."""
    return read_lines(run / ANALYSIS / ROUNDS)[0]


def keep_weights(run: Path, round: int, names: Sequence[str], w: Sequence[torch.Tensor]) -> None:
    """The global weights of a round, by name."""
    from safetensors.numpy import save

    folder = place(run) / WEIGHTS
    folder.mkdir(exist_ok=True)
    arrays = {n: np.array(t.detach().cpu().numpy()) for n, t in zip(names, w, strict=True)}
    replace_bytes(folder / f"{round:06d}.safetensors", save(arrays))


def snapshots(run: Path, names: Sequence[str]) -> dict[int, Vec]:
    """The global weights that were kept on the way, flat, by round."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[int, Vec] = {}
    for file in sorted((run / ANALYSIS / WEIGHTS).glob("*.safetensors")):
        try:
            tensors = load_file(file)
            found[int(file.stem)] = torch.cat([tensors[name].reshape(-1) for name in names])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"'{file}' cannot be read: {error}") from None
    return found
