"""Divides the reader's own samples among clients: `fr.split`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.data import given, hugging, partition
from fedrift.data.resident import Split
from fedrift.errors import InputError
from fedrift.flat import count

SHIFTED = ", shift "
"""Between the scheme and the shift in the note of a split."""


def split(
    x: Any,
    y: Any,
    scheme: Any = "iid",
    *,
    clients: int = 10,
    seed: int = 0,
    users: Any = None,
    alpha: float | None = None,
    shift: str | None = None,
    labels: Any = None,
) -> Split:
    """Divide samples among clients: `fr.split(x, y, "dirichlet:0.1", clients=100)`.

    scheme: as for `fedrift run --partition`; `fedrift list partitions` describes them. It may be a
        partitioner of flwr_datasets too, which brings its number of clients.
    users: who each sample comes from, for "natural"; the number of clients is theirs.
    alpha: takes the place of the number in a Dirichlet scheme.
    shift: makes inputs differ by client, such as "rotation:45".
    labels: whole numbers to skew by, where y itself holds no class labels (regression, several
        labels at once, maps of pixels).
    """
    x_tree, y_tree = given.inputs(x, None, "x"), given.tensors(y, None, "y")
    if count(x_tree) != count(y_tree):
        raise InputError(f"x has {count(x_tree)} samples but y has {count(y_tree)}")
    names = None if users is None else np.asarray(users)
    by = _targets(y_tree) if labels is None else _labels(labels, count(y_tree))
    if isinstance(scheme, str):
        how: dict[str, Any] = {"clients": clients, "seed": seed, "users": names, "alpha": alpha}
        made = partition.partition(scheme, by, **how)
    else:
        made = hugging.partition(scheme, by, seed)
    if shift is None:
        return Split(x_tree, y_tree, made.parts, made.name)
    if not isinstance(x_tree, Tensor):
        raise InputError(f"shift '{shift}' needs one tensor of images as x")
    x_tree = torch.from_numpy(partition.shift(shift, x_tree.numpy(), made.parts, seed))
    return Split(x_tree, y_tree, made.parts, f"{made.name}{SHIFTED}{shift}")


def _targets(y: Any) -> np.ndarray:
    """What a scheme looks at; one that skews labels refuses what holds none."""
    return y.numpy() if isinstance(y, Tensor) else np.empty(count(y), dtype=object)


def _labels(labels: Any, samples: int) -> np.ndarray:
    found = np.asarray(labels)
    if found.shape != (samples,) or found.dtype.kind not in "iub":
        raise InputError(
            f"labels must be {samples} whole numbers, one per sample, not {found.dtype} of shape "
            f"{found.shape}"
        )
    return found
