"""Test data of a client's own: a share of its samples, held out before anything is trained.

A client with n samples tests on round(share·n) of them, at least one and never all; one with a
single sample trains on it and tests on none. Classes are kept in proportion where y has labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrift.data.assignment import Ints
from fedrift.rng import generator

Samples = tuple[np.ndarray, np.ndarray]


def held_sizes(sizes: npt.ArrayLike, share: float) -> Ints:
    """How many samples clients of these sizes test on."""
    n = np.asarray(sizes, np.int64)
    wanted = np.floor(share * n + 0.5).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), np.maximum(n - 1, 0))


def held_positions(y: npt.NDArray[np.generic], share: float, seed: int, client: int) -> Ints:
    """Which of a client's samples, with targets `y`, it tests on: sorted positions."""
    number = int(held_sizes(len(y), share))
    if not number:
        return np.empty(0, np.int64)
    rng = generator(seed, "client test", client=client)
    order = rng.permutation(len(y))
    has_labels = y.ndim == 1 and y.dtype.kind in "iub"
    codes = np.unique(y, return_inverse=True)[1] if has_labels else np.zeros(len(y), np.int64)
    counts = np.bincount(codes)
    # Largest remainders, ties by chance: as near to the proportions as whole samples can be.
    exact = counts * (number / len(y))
    quota = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.lexsort((rng.permutation(len(counts)), -(exact - quota)))
    quota[rest[: number - quota.sum()]] += 1
    by_class = order[np.argsort(codes[order], kind="stable")]
    rank = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[rank < np.repeat(quota, counts)])


def hold_out(
    y: npt.NDArray[np.generic], parts: Sequence[Ints], share: float, seed: int
) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """What each client trains on, and what it tests on, of the samples with targets `y`."""
    train: list[Ints] = []
    test: list[Ints] = []
    for client, part in enumerate(parts):
        chosen = held_positions(y[part], share, seed, client)
        train.append(np.delete(part, chosen))
        test.append(part[chosen])
    return tuple(train), tuple(test)


@dataclass(frozen=True)
class HalfOf:
    """One half of clients whose samples are made when they are visited."""

    make: Callable[[int], Samples]
    share: float
    seed: int
    is_test: bool

    def __call__(self, client: int) -> Samples:
        x, y = self.make(client)
        test = held_positions(y, self.share, self.seed, client)
        chosen = test if self.is_test else np.delete(np.arange(len(y)), test)
        return x[chosen], y[chosen]


def remark(test: npt.ArrayLike) -> tuple[str, ...]:
    """What is to be said of clients that have nothing to test on."""
    none = int((np.asarray(test) == 0).sum())
    if not none:
        return ()
    one = none == 1
    return (
        f"{none} client{'' if one else 's'} of {np.size(test)} {'has' if one else 'have'} no test "
        "data: fewer than two samples, or none given",
    )
