"""Findings as plain records, for other programs."""

from __future__ import annotations

import math
from typing import Any

from fedrift.statistics.costs import AXES
from fedrift.statistics.estimates import Estimate
from fedrift.statistics.findings import Finding, Findings


def rows(findings: Findings) -> list[dict[str, Any]]:
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


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None or math.isnan(found.mean):
        return None
    values = {"mean": found.mean, "std": found.std, "low": found.low, "high": found.high}
    known = {key: None if math.isnan(value) else value for key, value in values.items()}
    return {"n": found.n, **known}
