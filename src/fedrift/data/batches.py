"""Seeded minibatches of one client: which samples, in which order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def steps_per_epoch(n: int, batch_size: int | None, whole_pairs: bool = False) -> int:
    """Number of minibatches in one pass; the last may be short, none is dropped."""
    if n == 0 or batch_size is None or batch_size >= n:
        return min(n, 1)
    lonely = whole_pairs and n % batch_size == 1 and batch_size > 1
    return -(-n // batch_size) - lonely


def batches(
    n: int,
    batch_size: int | None,
    steps: int,
    rng: np.random.Generator,
    whole_pairs: bool = False,
) -> Iterator[np.ndarray | None]:
    """Positions of `steps` minibatches, pass after pass; None stands for the whole client.

    `whole_pairs` lets a last batch of one sample join the one before (batch normalisation
    cannot work on a single sample).
    """
    if batch_size is None or batch_size >= n:
        for _ in range(steps):
            yield None
        return
    done = 0
    while done < steps:
        order = rng.permutation(n)
        per_epoch = steps_per_epoch(n, batch_size, whole_pairs)
        for b in range(min(per_epoch, steps - done)):
            end = n if b == per_epoch - 1 else (b + 1) * batch_size
            yield order[b * batch_size : end]
        done += per_epoch
