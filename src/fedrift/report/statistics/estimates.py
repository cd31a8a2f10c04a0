"""Means over seeds with their spread and 95 % interval, and differences to a baseline.

The figure of a run is the mean over its last evaluated rounds, as papers report it; the best
round is given beside it, never in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedrift.errors import InputError
from fedrift.report.statistics.grouping import Group, Grouped
from fedrift.report.statistics.measured import Measured

CONFIDENCE = 0.95
SHARE_OF_ROUNDS, MOST_ROUNDS = 10, 100  # by default the last tenth counts, at most 100 rounds
ERRORS_ABOVE_CHANCE = 3  # standard errors of the test set


@dataclass(frozen=True)
class Estimate:
    """Of `n` seeds: mean, sample standard deviation, Student's t interval (nan for one seed)."""

    n: int
    mean: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        return not math.isnan(self.low)

    @property
    def is_free_of_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def estimate(values: Iterable[float]) -> Estimate:
    """Of nothing: nan."""
    sample = np.array(list(values), np.float64)
    n = len(sample)
    if n < 2:
        return Estimate(n, float(sample[0]) if n else math.nan)
    from scipy.special import stdtrit  # a fifth of the import time of scipy.stats

    mean, std = float(sample.mean()), float(sample.std(ddof=1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(n)
    return Estimate(n, mean, std, mean - half, mean + half)


def rounds_averaged(run: Measured, last: int | None) -> int:
    """How many of the last evaluated rounds are averaged."""
    if last is not None:
        return last
    return min(MOST_ROUNDS, max(1, len(run.rounds) // SHARE_OF_ROUNDS))


def check_last(runs: Iterable[Measured], last: int | None) -> None:
    """Refuses an average over rounds that are not there."""
    if last is None:
        return
    if last < 1:
        raise InputError(f"last must be a whole number of at least 1, not {last}")
    for run in runs:
        if run.status in ("done", "stopped") and len(run.rounds) < last:
            raise InputError(
                f"last is {last}, but '{run.name}' has only {len(run.rounds)} evaluated rounds; "
                f"use at most {len(run.rounds)}"
            )


def quality_series(run: Measured) -> np.ndarray:
    """Accuracy, or the loss where there is no accuracy."""
    return run.loss if run.accuracy is None else run.accuracy


def final(run: Measured, last: int | None) -> float:
    """Mean over the last rounds; nan for a run that became infinite."""
    if run.status == "diverged":
        return math.nan
    return float(quality_series(run)[-rounds_averaged(run, last) :].mean())


def best(run: Measured) -> float:
    """Of all evaluated rounds."""
    values = quality_series(run)[np.isfinite(quality_series(run))]
    if not len(values):
        return math.nan
    return float(values.min() if run.accuracy is None else values.max())


def chance(run: Measured) -> float:
    """Accuracy that cannot be told from always giving the most frequent class: its share of the
    test set and three standard errors. nan where there are no classes."""
    if run.accuracy is None or not run.class_total or not sum(run.class_total):
        return math.nan
    total = sum(run.class_total)
    share = max(run.class_total) / total
    return share + ERRORS_ABOVE_CHANCE * math.sqrt(share * (1 - share) / total)


@dataclass(frozen=True, eq=False)
class Score:
    """The quality of a group. A group with a diverged seed has no mean: leaving the seed out
    would flatter it."""

    group: Group
    final: Estimate
    best: Estimate
    diverged: int
    is_at_chance: bool

    @property
    def failed(self) -> bool:
        return self.diverged > 0 or self.is_at_chance

    @property
    def counts(self) -> bool:
        """Whether it takes part in the ranking."""
        return self.group.is_finished and not self.failed and not math.isnan(self.final.mean)

    @property
    def why(self) -> str:
        """What (X) stands for here."""
        if self.diverged:
            seeds = len(self.group.runs)
            if seeds == 1:
                return "its one seed became infinite"
            return f"{self.diverged} of {seeds} seeds became infinite"
        return "accuracy stays at chance" if self.is_at_chance else ""


def score(group: Group, last: int | None) -> Score:
    """The figures of a group's seeds."""
    values = [final(run, last) for run in group.runs]
    diverged = sum(run.status == "diverged" for run in group.runs)
    figure = Estimate(len(values), math.nan) if diverged else estimate(values)
    limit = chance(group.runs[0])
    at_chance = not diverged and figure.mean <= limit  # False where the limit is nan
    return Score(group, figure, estimate(best(run) for run in group.runs), diverged, at_chance)


def ranking(scores: Sequence[Score]) -> list[Score]:
    """The groups that have a figure, best first; what failed or is unfinished is not among them."""
    able = [s for s in scores if s.counts]
    sign = 1 if able and able[0].group.runs[0].accuracy is None else -1
    return sorted(able, key=lambda s: sign * s.final.mean)


def paired_difference(group: Group, baseline: Group, last: int | None) -> Estimate | None:
    """Difference to the baseline, seed by seed; None if they have no finished seed in common."""
    theirs = {run.seed: final(run, last) for run in baseline.runs if run.is_finished}
    mine = {run.seed: final(run, last) for run in group.runs if run.is_finished}
    common = [seed for seed in mine if seed in theirs]
    differences = [mine[seed] - theirs[seed] for seed in common]
    if not common or any(math.isnan(d) for d in differences):
        return None
    return estimate(differences)


def baseline_of(grouped: Grouped, wanted: str | None) -> str:
    """The method others are compared to: the one named, else fedavg, else the first."""
    from fedrift.errors import unknown

    methods = grouped.methods
    if wanted is None:
        plain = [m for m in methods if m == "fedavg"] or [
            m for m in methods if m.startswith(("fedavg:", "fedavg "))
        ]
        return (plain or list(methods))[0]
    close = [m for m in methods if m == wanted] or [
        m for m in methods if m.startswith((f"{wanted}:", f"{wanted} "))
    ]
    if not close:
        raise unknown("baseline", wanted, methods)
    if len(close) > 1 and close[0] != wanted:
        raise InputError(f"baseline '{wanted}' may be {' or '.join(close)}; name one of them")
    return close[0]
