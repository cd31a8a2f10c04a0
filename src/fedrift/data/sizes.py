"""Size skew: equal, log-normal and power-law shares of a shuffled data set; the least share."""

from __future__ import annotations

import numpy as np

from fedrift.data.parts import Assignment, Floats, Ints, Request


def iid(request: Request) -> Assignment:
    """A shuffled data set cut into parts whose sizes differ by at most one."""
    return _shuffled(request, even(request.samples, request.clients))


def lognormal(request: Request) -> Assignment:
    """Sizes proportional to exp(σ·z), z standard normal per client; labels iid."""
    sigma = request.parameter("sigma", "lognormal:1", high=100)
    return _by_weight(request, sigma * request.rng.standard_normal(request.clients))


def powerlaw(request: Request) -> Assignment:
    """The k-th largest client gets a share proportional to k^-a; who is k-th is random."""
    exponent = request.parameter("a", "powerlaw:1.5", high=100)
    rank = 1 + request.rng.permutation(request.clients)
    return _by_weight(request, -exponent * np.log(rank))


def _by_weight(request: Request, log_weight: Floats) -> Assignment:
    minimum = request.minimum()
    sizes, raised = above(log_weight, request.samples, minimum)
    return _shuffled(request, sizes, f"{raised} clients raised to {minimum}" if raised else "")


def above(log_weight: Floats, total: int, minimum: int) -> tuple[Ints, int]:
    """Sizes in proportion to the weights, but none below `minimum`; how many were raised to it.

    Those raised are taken out and the rest shared anew, so the large keep their proportions.
    """
    free = np.ones(len(log_weight), bool)
    while True:
        left = total - minimum * int((~free).sum())
        share = normalised(np.where(free, log_weight, -np.inf))
        low = free & (share * left < minimum)
        if not low.any() or (low == free).all():
            break
        free &= ~low
    sizes = np.full(len(log_weight), minimum, np.int64)
    sizes[free] = rounded(share[free], left)
    raise_minimum(sizes[:, None], minimum)  # a share just at the minimum may round down
    return sizes, int((~free).sum())


def _shuffled(request: Request, sizes: Ints, note: str = "") -> Assignment:
    owner = np.empty(request.samples, np.int64)
    owner[request.rng.permutation(request.samples)] = np.repeat(np.arange(len(sizes)), sizes)
    return Assignment(owner, len(sizes), note)


def even(total: int, pieces: int) -> Ints:
    """`total` in `pieces` whole numbers that differ by at most one."""
    return np.diff(np.arange(pieces + 1, dtype=np.int64) * total // pieces)


def normalised(log_weight: Floats) -> Floats:
    """Shares that sum to one. From logarithms: some share survives however small all are."""
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def rounded(share: Floats, total: int) -> Ints:
    """`total` in whole numbers next to the shares, by rounding the running sum.

    To the nearest: rounded down, as NIID-bench does, the last client gets one too many each time.
    """
    ends = np.rint(np.cumsum(share) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def raise_minimum(counts: Ints, minimum: int) -> int:
    """Gives every client (row) at least `minimum` samples, in place; how many were moved.

    They come from the largest class of whichever client is largest at the time. The total must
    allow it: then the largest client is above the minimum while any is below, so this ends.
    """
    sizes = counts.sum(axis=1)
    moved = 0
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = sizes.argmax()
            label = counts[rich].argmax()
            some = min(minimum - sizes[poor], sizes[rich] - minimum, counts[rich, label])
            counts[rich, label] -= some
            counts[poor, label] += some
            sizes[rich] -= some
            sizes[poor] += some
            moved += int(some)
    return moved


def moved_note(moved: int, minimum: int) -> str:
    return f"{moved} samples moved so that every client has at least {minimum}" if moved else ""
