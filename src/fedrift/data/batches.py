"""Seeded minibatches of one client: which samples, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def table(
    n: int,
    batch_size: int | None,
    steps: int,
    order: Callable[[], np.random.Generator],
    room: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The same minibatches as rows of equal length, and how many samples of each row count.

    A short row is filled up with a sample that it holds already.
    """
    if batch_size is None or batch_size >= n:
        whole = np.minimum(np.arange(room), n - 1)
        return np.broadcast_to(whole, (steps, room)), np.full(steps, n)
    per_epoch = steps_per_epoch(n, batch_size)
    epochs, rng = -(-steps // per_epoch), order()
    if epochs == 1 and n == per_epoch * batch_size:  # the usual case
        return rng.permutation(n).reshape(-1, batch_size)[:steps], np.full(steps, batch_size)
    rows = np.empty((epochs, per_epoch * batch_size), dtype=np.int64)
    for row in rows:
        row[:n] = rng.permutation(n)
        row[n:] = row[n - 1]
    sizes = np.full((epochs, per_epoch), batch_size)
    sizes[:, -1] = n - (per_epoch - 1) * batch_size
    return rows.reshape(-1, batch_size)[:steps], sizes.reshape(-1)[:steps]
