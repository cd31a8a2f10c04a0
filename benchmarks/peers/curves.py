"""Whether the peers did the same work: their losses, round by round, against fedrift's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

Curve = Sequence[float | None]
TOLERANCE = 0.05  # of the descent


def mean_curve(runs: Sequence[Curve]) -> list[float | None]:
    """The mean over repeats, which differ in their seeds."""
    return [
        fmean([loss for loss in at if loss is not None]) if None not in at else None
        for at in zip(*runs, strict=True)
    ]


def distance(one: Curve, other: Curve) -> float:
    """Mean distance of two curves, as a part of how far the first descends from chance."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    descent = math.log(10) - min(a for a, _ in pairs)
    return fmean(abs(a - b) for a, b in pairs) / descent


def with_less_work(curve: Curve, part: float) -> list[float]:
    """What the curve would be with only a part of the local steps: seen at an earlier round."""
    known = [math.log(10), *(loss for loss in curve if loss is not None)]
    slowed: list[float] = []
    for round in range(1, len(known)):
        before, beyond = divmod(round * part, 1)
        low, high = known[int(before)], known[min(int(before) + 1, len(known) - 1)]
        slowed.append(low + beyond * (high - low))
    return slowed


def agreement(runs: Mapping[str, Sequence[Curve]]) -> dict[str, float]:
    """Distance of every peer's mean curve from fedrift's; and of one with a fifth less work."""
    ours = mean_curve(runs["fedrift"])
    found = {
        name: distance(ours, mean_curve(curves))
        for name, curves in runs.items()
        if name not in ("fedrift", "bare")
    }
    return found | {"a fifth less work": distance(ours, with_less_work(ours, 0.8))}
