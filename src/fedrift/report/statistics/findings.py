"""Everything a report says about a set of runs, computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrift.report.statistics.costs import (
    AXES,
    Budget,
    Spread,
    Target,
    budget,
    check_target,
    spread,
    to_target,
    usual_target,
)
from fedrift.report.statistics.estimates import (
    Estimate,
    Score,
    baseline_of,
    check_last,
    paired_difference,
    ranking,
    rounds_averaged,
    score,
)
from fedrift.report.statistics.grouping import Group, Grouped, Setting, group_runs
from fedrift.report.statistics.measured import Measured, judged_at_clients


@dataclass(frozen=True, eq=False)
class Finding:
    """One method in one setting. What does not apply is None."""

    group: Group
    score: Score
    rank: int | None
    difference: Estimate | None
    """To the baseline, seed by seed."""
    target: Target | None
    budget: Budget | None
    spread: Spread | None

    @property
    def method(self) -> str:
        return self.group.method


@dataclass(frozen=True, eq=False)
class Findings:
    """All methods in all settings."""

    grouped: Grouped
    baseline: str
    has_accuracy: bool
    last: int | None
    wanted_target: float | None
    by_setting: dict[Setting, tuple[Finding, ...]]

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(self.by_setting)

    @property
    def methods(self) -> tuple[str, ...]:
        """The baseline first."""
        return tuple(dict.fromkeys((self.baseline, *self.grouped.methods)))

    @property
    def all(self) -> tuple[Finding, ...]:
        return tuple(finding for row in self.by_setting.values() for finding in row)

    def get(self, method: str, setting: Setting) -> Finding | None:
        return next((f for f in self.by_setting[setting] if f.method == method), None)

    def best(self, setting: Setting) -> Finding | None:
        return next((f for f in self.by_setting[setting] if f.rank == 1), None)

    @property
    def counted(self) -> tuple[int, ...]:
        """How many last rounds were averaged: one number, or several where runs are not alike."""
        runs = [run for run in self.grouped.runs if run.status != "diverged"]
        return tuple(sorted({rounds_averaged(run, self.last) for run in runs}))


def make_findings(
    runs: Sequence[Measured],
    *,
    target: float | None = None,
    baseline: str | None = None,
    last: int | None = None,
) -> Findings:
    """The statistics of some runs; refuses what cannot be compared in one sentence."""
    grouped = group_runs(_alike(runs))
    check_last(grouped.runs, last)
    check_target(target, grouped.runs)
    base = baseline_of(grouped, baseline)
    return Findings(
        grouped=grouped,
        baseline=base,
        has_accuracy=grouped.runs[0].accuracy is not None,
        last=last,
        wanted_target=target,
        by_setting={s: _setting(grouped, s, base, target, last) for s in grouped.settings},
    )


def _alike(runs: Sequence[Measured]) -> Sequence[Measured]:
    """All judged at clients if one of them is and all can be: where some have personal models,
    the server's test set says nothing of those."""
    known = [run for run in runs if not run.is_blank]
    if any(r.is_judged_at_clients for r in known) and all(r.at_clients for r in known):
        return [judged_at_clients(run) for run in runs]
    return runs


def _setting(
    grouped: Grouped, setting: Setting, baseline: str, target: float | None, last: int | None
) -> tuple[Finding, ...]:
    scores = {g.method: score(g, last) for g in grouped.of(setting)}
    order = {s.group.method: i for i, s in enumerate(ranking(list(scores.values())), start=1)}
    base = scores.get(baseline)
    aim = target if target is not None else usual_target(base)

    def finding(one: Score) -> Finding:
        mine, other = one.group, base.group if base is not None else None
        is_base = mine is other
        fails = one.failed or (base is not None and base.failed)
        return Finding(
            group=mine,
            score=one,
            rank=order.get(mine.method),
            difference=None
            if other is None or is_base or fails
            else paired_difference(mine, other, last),
            target=None if aim is None else to_target(mine, aim),
            budget=None if other is None or is_base else budget(mine, other),
            spread=spread(mine.runs, last),
        )

    first = sorted(scores.values(), key=lambda one: one.group.method != baseline)
    return tuple(finding(one) for one in first)


# Findings as plain records, for other programs.


def as_records(findings: Findings) -> list[dict[str, Any]]:
    """One record per method and setting; what is not known is None."""
    return [_row(one) for one in findings.all]


def _row(one: Finding) -> dict[str, Any]:
    group, target, spread = one.group, one.target, one.spread
    return {
        "method": group.method,
        "setting": group.setting.label,
        "partition": group.setting.partition,
        "participation": group.setting.participation,
        "seeds": list(group.seeds),
        "finished": group.is_finished,
        "rank": one.rank,
        "failed": one.score.why or None,
        "final": _estimate(one.score.final),
        "best": _estimate(one.score.best),
        "difference": _estimate(one.difference),
        "target": None if target is None else target.value,
        "target_met": None if target is None else target.met,
        "to_target": None
        if target is None or not target.is_met
        else {axis: _estimate(target.costs[axis]) for axis in AXES},
        "clients": None
        if spread is None
        else {"worst_tenth": _estimate(spread.worst), "std": _estimate(spread.std)},
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None or math.isnan(estimate.mean):
        return None
    values = {
        "mean": estimate.mean,
        "std": estimate.std,
        "low": estimate.low,
        "high": estimate.high,
    }
    known = {key: None if math.isnan(value) else value for key, value in values.items()}
    return {"n": estimate.n, **known}
