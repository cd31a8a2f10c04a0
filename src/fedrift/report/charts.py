"""The numbers of a page as small integers: rounded, as differences, every table once.

A page of 200 runs of 500 rounds holds a few million numbers. Accuracies are kept to 0.01 %, class
accuracies and label shares to whole percents, times to milliseconds; counts stay exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedrift.figures.style import COLOURS
from fedrift.report.pictures import chance
from fedrift.report.statistics.costs import AXES, client_accuracy
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Clients, Floats, Measured, takes_part
from fedrift.report.tables import SEEN, traffic_per_round

ACCURACY = 10_000
MOST = 1 << 62  # of a number that is packed
PERCENT = 100
MILLISECONDS = 1000
MOST_CLASS_CELLS = 1_500_000  # of all runs; beyond, rounds are left out of the class pictures
MOST_COHORT_CELLS = 400_000  # different cohorts; beyond, none are shown
MOST_CLIENT_CELLS = 300_000  # of all partitions; beyond, clients are left out
QUANTILES = 101


def payload(findings: Findings) -> dict[str, Any]:
    """Everything the charts draw."""
    pools = _Pools(findings)
    places = {setting: i for i, setting in enumerate(findings.settings)}
    methods = {method: i for i, method in enumerate(findings.methods)}
    groups = [
        {
            "m": methods[one.method],
            "s": places[one.group.setting],
            "runs": [pools.run(r, one, findings) for r in one.group.runs if not r.is_blank],
            "fields": traffic_per_round(one.group.runs[0]),
            "why": one.score.why,
        }
        for one in findings.all
    ]
    return {
        "measure": "accuracy" if findings.has_accuracy else "loss",
        "methods": list(methods),
        "settings": [setting.label for setting in places],
        "axes": {**AXES, "seconds": "time (s)"},
        "clock": all(run.has_clock for run in findings.grouped.runs),
        "colours": COLOURS,
        "seen": SEEN,
        "scales": {"accuracy": ACCURACY, "percent": PERCENT, "ms": MILLISECONDS},
        "groups": groups,
        "cohorts": pools.cohorts,
        "clients": pools.clients,
        "chance": chance(findings),
        "targets": [_target(findings, setting) for setting in places],
    }


def _target(findings: Findings, setting: Setting) -> float | None:
    known = (one.target for one in findings.by_setting[setting])
    return next((target.value for target in known if target is not None), None)


class _Pools:
    """Cohorts and partitions are the same for many runs and are kept once."""

    def __init__(self, findings: Findings) -> None:
        runs = findings.grouped.runs
        classes = max((len(r.class_total or ()) for r in runs), default=0)
        cells = sum(len(run.rounds) for run in runs) * classes
        self.stride = max(1, math.ceil(cells / MOST_CLASS_CELLS))
        tables = {_key(run.clients) for run in runs if run.clients is not None}
        wide = [run.clients.counts for run in runs if run.clients is not None]
        widest = max((c.shape[1] for c in wide if c is not None), default=1)
        self.most_clients = MOST_CLIENT_CELLS // max(1, len(tables) * widest)
        self.cohorts: list[list[tuple[int, ...]]] = []
        self.clients: list[dict[str, Any]] = []
        self._cells = 0
        self._known: dict[Any, int] = {}

    def run(self, run: Measured, one: Finding, findings: Findings) -> dict[str, Any]:
        """One run; what is not known is None."""
        return {
            "seed": run.seed,
            "status": run.status,
            "rounds": packed(run.rounds.astype(np.float64)),
            "accuracy": None if run.accuracy is None else packed(run.accuracy, ACCURACY),
            "loss": [_short(value) for value in run.loss.tolist()],
            "bytes": packed(run.bytes),
            "gradients": packed(run.gradients),
            "seconds": packed(run.seconds, MILLISECONDS),
            "stride": self.stride,
            "classes": None if run.classes is None else _classes(run.classes[:: self.stride]),
            "cohorts": self._cohorts(run),
            "clients": self._clients(run.clients),
            "expected": _quantiles(client_accuracy(run, findings.last)),
        }

    def _cohorts(self, run: Measured) -> int | None:
        shown = run.cohorts[:: self.stride]
        if not any(shown) or not takes_part(run):
            return None
        if shown not in self._known:
            self._cells += sum(map(len, shown))
            if self._cells > MOST_COHORT_CELLS:
                return None
            self._known[shown] = len(self.cohorts)
            self.cohorts.append(list(shown))
        return self._known[shown]

    def _clients(self, clients: Clients | None) -> int | None:
        if clients is None:
            return None
        key = _key(clients)
        if key not in self._known:
            self._known[key] = len(self.clients)
            self.clients.append(self._table(clients))
        return self._known[key]

    def _table(self, clients: Clients) -> dict[str, Any]:
        """Sizes, counts and who is shown, if not all."""
        number = len(clients.sizes)
        shown = np.arange(number)
        if number > self.most_clients:
            shown = np.unique(np.linspace(0, number - 1, max(1, self.most_clients)).astype(int))
        counts = None if clients.counts is None else clients.counts[shown].tolist()
        return {
            "number": number,
            "shown": packed(shown.astype(np.float64)),
            "sizes": clients.sizes[shown].tolist(),
            "counts": counts,
        }


def _key(clients: Clients) -> bytes:
    counts = b"" if clients.counts is None else clients.counts.tobytes()
    return clients.sizes.tobytes() + counts


def packed(values: Floats, scale: int = 1) -> list[int] | None:
    """Rounded, each as its difference to the one before; None if one is not known or too large."""
    if not (np.abs(values) < MOST / scale).all():
        return None
    whole = np.rint(values * scale).astype(np.int64)
    return np.diff(whole, prepend=0).tolist()


def _classes(table: Floats) -> list[list[int] | None]:
    """One row per class."""
    return [packed(column, PERCENT) for column in table.T]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _quantiles(values: Floats | None) -> list[int] | None:
    """The clients from worst to best; of many, a hundred that stand for them."""
    if values is None:
        return None
    ordered = np.sort(values)
    if len(ordered) > QUANTILES:
        ordered = np.quantile(ordered, np.linspace(0, 1, QUANTILES))
    return packed(ordered, ACCURACY)
