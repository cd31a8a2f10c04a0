"""Costs up to a target, budgets that differ between methods, and how evenly clients are served."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrift.errors import InputError
from fedrift.report.statistics.estimates import (
    Estimate,
    Score,
    estimate,
    quality_series,
    rounds_averaged,
)
from fedrift.report.statistics.grouping import Group
from fedrift.report.statistics.measured import Floats, Measured

SAME = 0.01  # ratios within one percent are the same budget
AXES = {
    "rounds": "rounds",
    "bytes": "bytes sent",
    "gradients": "gradient evaluations",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Target:
    """Costs until a target was met, over the seeds that met it."""

    value: float
    met: int
    seeds: int
    costs: dict[str, Estimate]

    @property
    def is_met(self) -> bool:
        """By every seed: the mean over a part of them would flatter the method."""
        return self.met == self.seeds


def check_target(target: float | None, runs: Sequence[Measured]) -> None:
    """Refuses what no run could ever reach."""
    if target is None:
        return
    if any(run.accuracy is None for run in runs):
        raise InputError(f"target {target:g} is an accuracy, but these runs measured none")
    if not 0 < target <= 1:
        raise InputError(
            f"target must be an accuracy above 0 and at most 1, such as 0.9, not {target:g}"
        )


def met_at(run: Measured, target: float) -> int | None:
    """Index of the first evaluated round that reaches the target."""
    values = quality_series(run)
    reached = np.flatnonzero(values <= target if run.accuracy is None else values >= target)
    return int(reached[0]) if len(reached) else None


def to_target(group: Group, target: float) -> Target:
    """Rounds, bytes, gradient evaluations and seconds until each seed first met the target."""
    places = [(run, met_at(run, target)) for run in group.runs]
    met = [(run, at) for run, at in places if at is not None]
    costs = {
        axis: estimate(float(getattr(run, axis)[at]) for run, at in met)
        for axis in AXES  # the names of the arrays of a run
    }
    return Target(target, len(met), len(group.runs), costs)


def usual_target(baseline: Score | None) -> float | None:
    """What the baseline ends with: then the costs say how much sooner others are there."""
    if baseline is None or not baseline.counts:
        return None
    mean = baseline.final.mean
    if baseline.group.runs[0].accuracy is None:
        return mean
    return math.floor(mean * 1000) / 1000


@dataclass(frozen=True)
class Budget:
    """What a method spent, as multiples of the baseline's; nan where it is not known."""

    method: str
    rounds: float
    gradients: float
    bytes: float
    steps: float

    @property
    def unequal(self) -> tuple[str, ...]:
        """The costs that differ."""
        names = ("rounds", "gradients", "bytes", "steps")
        return tuple(n for n in names if abs(getattr(self, n) - 1) > SAME)


def budget(group: Group, baseline: Group) -> Budget | None:
    """Mean ratio of the totals over the seeds that both have finished."""
    theirs = {run.seed: run for run in baseline.runs if _is_whole(run)}
    pairs = [(r, theirs[r.seed]) for r in group.runs if _is_whole(r) and r.seed in theirs]
    if not pairs:
        return None

    def ratio(axis: str) -> float:
        return float(np.mean([_divide(_total(a, axis), _total(b, axis)) for a, b in pairs]))

    return Budget(group.method, ratio("rounds"), ratio("gradients"), ratio("bytes"), ratio("steps"))


def _is_whole(run: Measured) -> bool:
    return run.status in ("done", "stopped")


def _total(run: Measured, axis: str) -> float:
    if axis == "steps":
        return math.nan if run.steps is None else float(run.steps)
    return float(getattr(run, axis)[-1])


def _divide(a: float, b: float) -> float:
    return a / b if b else math.nan


def fair_axes(budgets: Sequence[Budget], has_clock: bool = False) -> tuple[str, ...]:
    """The axes to look at when budgets differ: one is enough only if one cost differs, or if a
    simulated clock counts them all."""
    axes = {name for budget in budgets for name in budget.unequal}
    if "steps" in axes and "gradients" not in axes:
        axes.add("gradients")
    fair = tuple(axis for axis in ("bytes", "gradients") if axis in axes)
    return ("seconds",) if fair and has_clock else fair or ("rounds",)


def differing_cohorts(groups: Sequence[Group]) -> list[tuple[str, str, int]]:
    """Pairs of methods whose runs of a seed did not see the same clients or the same division."""
    pairs: list[tuple[str, str, int]] = []
    first: dict[int, tuple[str, Measured]] = {}
    for group in groups:
        for run in group.runs:
            name, other = first.setdefault(run.seed, (group.method, run))
            if other is not run and not _same_clients(run, other):
                pairs.append((name, group.method, run.seed))
    return pairs


def _same_clients(one: Measured, other: Measured) -> bool:
    if one.clients is not None and other.clients is not None:
        mine, theirs = one.clients, other.clients
        known = mine.counts is not None and theirs.counts is not None
        if not np.array_equal(mine.sizes, theirs.sizes):
            return False
        if known and not np.array_equal(mine.counts, theirs.counts):  # type: ignore[arg-type]
            return False
    theirs_at = dict(zip(other.rounds.tolist(), other.cohorts, strict=True))
    pairs = zip(one.rounds.tolist(), one.cohorts, strict=True)
    return all(theirs_at.get(at, cohort) == cohort for at, cohort in pairs if cohort)


# How evenly the clients are served: accuracy expected from a client's labels.


@dataclass(frozen=True)
class Spread:
    """How evenly the clients are served: over seeds, of each seed's mean, worst tenth, minimum
    and standard deviation between clients."""

    mean: Estimate
    worst: Estimate
    lowest: Estimate
    std: Estimate


def class_accuracy(run: Measured, last: int | None) -> Floats | None:
    """Accuracy per class, mean over the last rounds."""
    if run.classes is None or run.status == "diverged":
        return None
    return run.classes[-rounds_averaged(run, last) :].mean(axis=0)


def client_accuracy(run: Measured, last: int | None) -> Floats | None:
    """Expected accuracy of each client that holds samples; None where labels are not known."""
    accuracy = class_accuracy(run, last)
    if accuracy is None or run.clients is None or run.clients.counts is None:
        return None
    counts, shares = run.clients.counts, run.clients.shares
    if shares is None or counts.shape[1] != len(accuracy):
        return None
    has_samples = counts.sum(axis=1) > 0
    return shares[has_samples] @ accuracy if has_samples.any() else None


def worst_tenth(values: Floats) -> float:
    """Mean of the worst tenth of the clients, at least one."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())


def spread(runs: Sequence[Measured], last: int | None) -> Spread | None:
    """Of a group's seeds; None if one of them has no such figures."""
    accuracies = [client_accuracy(run, last) for run in runs]
    known = [values for values in accuracies if values is not None]
    if len(known) < len(accuracies) or not known:
        return None
    return Spread(
        mean=estimate(float(v.mean()) for v in known),
        worst=estimate(worst_tenth(v) for v in known),
        lowest=estimate(float(v.min()) for v in known),
        std=estimate(float(v.std()) for v in known),
    )
