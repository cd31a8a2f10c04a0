"""What a comparison found, as the tables a preset asks for."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.presets.findings import BY_SEED, Cell, Findings, Table
from fedrift.presets.preset import Part
from fedrift.presets.relations import DIVERGED
from fedrift.report import numbers
from fedrift.report.selection import select
from fedrift.report.statistics import clients
from fedrift.report.statistics import findings as statistics
from fedrift.report.statistics.costs import met_at
from fedrift.report.statistics.estimates import (
    Estimate,
    best,
    estimate,
    final,
    quality_series,
    rounds_averaged,
)
from fedrift.report.statistics.findings import Finding
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Measured, until
from fedrift.report.tables import convention, measure
from fedrift.storage.run_folder import MODEL

MEGA = 1e6
MOST_ROUNDS = 12  # columns of the table of rounds


def comparison_findings(folder: Path, part: Part) -> Findings:
    """The tables and figures of the comparison in `folder`; figures are written there."""
    from fedrift.presets.figures import draw

    chosen = select([folder])
    # Without the folder, which differs from machine to machine.
    notes = [one.replace(f"{folder}/", "") for one in chosen.problems]
    runs = chosen.runs
    if part.seconds is not None:
        notes += [
            f"a run of {run.label or run.spec.algorithm} (seed {run.seed}) ends after "
            f"{run.seconds[-1]:.0f} s of its clock, before the {part.seconds:g} s that are compared"
            for run in runs
            if run.seconds[-1] < part.seconds and run.status != "diverged"
        ]
        runs = [until(run, part.seconds) for run in runs]
    findings = statistics.make_findings(
        runs, target=part.target, baseline=part.baseline, last=part.last
    )
    tables = [table for name in part.tables for table in TABLES[name](findings)]
    figures = draw(findings, folder, part.figures)
    if part.analyse:
        from fedrift.presets.figures import analysis_figures

        figures += analysis_figures(findings, folder, part)
    return Findings(tables, figures, notes, {BY_SEED: by_seed(findings)})


def by_seed(findings: statistics.Findings) -> dict[str, Any]:
    """What relations are decided by: by setting, method and quantity one number for each seed."""
    usual = "accuracy" if findings.has_accuracy else "loss"
    settings = {
        setting.label: {one.method: _quantities(one, findings) for one in row}
        for setting, row in findings.by_setting.items()
    }
    return {"usual": usual, "settings": settings}


def _quantities(one: Finding, findings: statistics.Findings) -> dict[str, list[Any]]:
    """Means over the last evaluated rounds, accuracies in per cent; None: it became infinite."""
    found: dict[str, list[Any]] = {"seed": []}
    target = None if one.target is None else one.target.value
    for run in one.group.runs:
        last = rounds_averaged(run, findings.last)
        quality, percent = quality_series(run), 100 if findings.has_accuracy else 1
        values: dict[str, float] = {
            "accuracy" if findings.has_accuracy else "loss": percent * final(run, findings.last),
            "best": percent * best(run),
            "change": percent * float(np.abs(np.diff(quality[-len(quality) // 2 :])).mean())
            if len(quality) > 2
            else math.nan,
        }
        if findings.has_accuracy:
            values["loss"] = float(run.loss[-last:].mean())
        if run.at_clients is not None:
            for column, name in AT_CLIENTS:
                scale = 1 if column == clients.JAIN else 100
                values[f"clients: {name}"] = scale * _at_clients(run, column, findings.last)
        values |= _in_domains(run, last)
        at = None if target is None else met_at(run, target)
        for axis, name, unit in COSTS:
            values[name] = math.nan if at is None else float(getattr(run, axis)[at]) / unit
        found["seed"].append(run.seed)
        logged = {name: float(column[-last:].mean()) for name, column in run.logged.items()}
        for name, value in {**logged, **values}.items():
            kept = None if not math.isfinite(value) or run.status == "diverged" else value
            found.setdefault(name, []).append(None if kept is None else float(f"{kept:.6g}"))
    return found


def _in_domains(run: Measured, last: int) -> dict[str, float]:
    """The server's model in the domains of a shift, in per cent."""
    found = None if run.domains is None else run.domains.final("server", last)
    if run.domains is None or found is None:
        return {}
    layout, shares = run.domains.layout, 100 * found
    values = {f"domain {name}": float(v) for name, v in zip(layout.names, shares, strict=True)}
    values["domains: seen"] = float(shares[layout.seen].mean())
    values["domains: worst seen"] = float(shares[layout.seen].min())
    if layout.unseen:
        values["domains: unseen"] = float(shares[list(layout.unseen)].mean())
    return values


COSTS = (
    ("rounds", "rounds to target", 1),
    ("bytes", "MB to target", MEGA),
    ("gradients", "gradients to target", 1),
    ("seconds", "seconds to target", 1),
)
"""Axis, what it is called, and its unit."""


def _score(findings: statistics.Findings, one: Finding | None) -> Cell:
    if one is None:
        return None
    if one.score.diverged:
        return f"{DIVERGED} ({one.score.diverged} of {len(one.group.runs)} seeds)"
    return _figure(one.score.final, findings.has_accuracy)


def _figure(value: Estimate, has_accuracy: bool) -> Cell:
    """A number, or `mean ± standard deviation` where there are several seeds."""
    if value.mean != value.mean:
        return None
    if value.has_interval:
        return numbers.mean_std(value, has_accuracy)
    return round(100 * value.mean, 2) if has_accuracy else float(f"{value.mean:.5g}")


def _accuracy(findings: statistics.Findings) -> list[Table]:
    """Methods × settings; of one setting also the best round and the difference to the baseline."""
    title = f"Test {measure(findings)}, {convention(findings)}"
    if len(findings.settings) > 1:
        return [_by_setting(findings, title, lambda one: _score(findings, one))]
    known, compares = findings.has_accuracy, len(findings.methods) > 1
    columns = ["method", "accuracy" if known else "loss", "best round"]
    columns += [f"difference to {findings.baseline}"] if compares else []
    rows: list[list[Cell]] = []
    for one in findings.all:
        row: list[Cell] = [one.method, _score(findings, one), _figure(one.score.best, known)]
        is_base = one.method == findings.baseline
        row += (
            ["" if is_base else numbers.difference_text(one.difference, known)] if compares else []
        )
        rows.append(row)
    return [Table(title, columns, rows)]


def _by_setting(
    findings: statistics.Findings, title: str, cell: Callable[[Finding | None], Cell]
) -> Table:
    rows = [
        [m, *(cell(findings.get(m, setting)) for setting in findings.settings)]
        for m in findings.methods
    ]
    return Table(title, ["method", *(setting.label for setting in findings.settings)], rows)


def _best(findings: statistics.Findings) -> list[Table]:
    def cell(one: Finding | None) -> Cell:
        return None if one is None else _figure(one.score.best, findings.has_accuracy)

    title = f"Test {measure(findings)}, best round"
    if len(findings.settings) > 1:
        return [_by_setting(findings, title, cell)]
    only = next(iter(findings.settings))
    return [
        Table(
            title, ["method", "best"], [[m, cell(findings.get(m, only))] for m in findings.methods]
        )
    ]


def _each_setting(
    findings: statistics.Findings, title: str, make: Callable[[Setting, str], Table]
) -> list[Table]:
    several = len(findings.settings) > 1
    return [make(s, f"{title}, {s.label}" if several else title) for s in findings.settings]


def _rounds(findings: statistics.Findings) -> list[Table]:
    """The curve in numbers: every evaluated round, or some of them where there are many."""

    def table(setting: Setting, title: str) -> Table:
        shown = findings.by_setting[setting]
        shortest = min(
            (run for one in shown for run in one.group.runs), key=lambda r: len(r.rounds)
        )
        places = _spread_out(len(shortest.rounds))
        columns = ["method", *(f"round {shortest.rounds[i]}" for i in places)]
        rows: list[list[Cell]] = []
        for one in shown:
            values = [
                estimate(
                    float(quality_series(run)[i]) for run in one.group.runs if len(run.rounds) > i
                )
                for i in places
            ]
            rows.append([one.method, *(_figure(v, findings.has_accuracy) for v in values)])
        return Table(title, columns, rows)

    return _each_setting(findings, f"Test {measure(findings)} after each round", table)


def _spread_out(number: int) -> list[int]:
    """Places of at most MOST_ROUNDS evaluated rounds, the last one among them."""
    step = -(-number // MOST_ROUNDS)
    return list(range(number - 1, -1, -step))[::-1]


def _loss(findings: statistics.Findings) -> list[Table]:
    """Test loss, for experiments that were published as curves of the loss."""

    def cell(one: Finding | None) -> Cell:
        if one is None or one.score.diverged:
            return None if one is None else DIVERGED
        ends = [float(r.loss[-rounds_averaged(r, findings.last) :].mean()) for r in one.group.runs]
        return _figure(estimate(ends), False)

    title = f"Test loss, {convention(findings)}"
    if len(findings.settings) > 1:
        return [_by_setting(findings, title, cell)]
    only = next(iter(findings.settings))
    return [
        Table(
            title, ["method", "loss"], [[m, cell(findings.get(m, only))] for m in findings.methods]
        )
    ]


def _clients(findings: statistics.Findings) -> list[Table]:
    """How the clients fare on test data of their own, and what was sent for it."""

    def table(setting: Setting, title: str) -> Table:
        rows: list[list[Cell]] = []
        for one in findings.by_setting[setting]:
            row: list[Cell] = [one.method]
            for column, _ in AT_CLIENTS:
                values = [_at_clients(run, column, findings.last) for run in one.group.runs]
                row.append(_figure(estimate(values), column != clients.JAIN))
            sent = estimate(float(run.bytes[-1]) for run in one.group.runs).mean / MEGA
            rows.append([*row, round(sent, 1)])
        return Table(title, ["method", *(name for _, name in AT_CLIENTS), "MB sent"], rows)

    title = f"Accuracy at clients (%), {convention(findings)}"
    return _each_setting(findings, title, table)


AT_CLIENTS = [
    (name, clients.FIGURES[name])
    for name in (clients.MEAN, clients.WORST, clients.BEST, clients.JAIN)
]
"""Columns of a run, and what tables and relations call them."""


def _domains(findings: statistics.Findings) -> list[Table]:
    """Accuracy of the server's model in every domain of a shift."""

    def table(setting: Setting, title: str) -> Table:
        found = {one.method: _quantities(one, findings) for one in findings.by_setting[setting]}
        names = dict.fromkeys(n for of in found.values() for n in of if n.startswith("domain"))
        columns = {n: n.removeprefix("domain ").removeprefix("domains: ") for n in names}
        columns = {n: head for n, head in columns.items() if not n.startswith("domain_")}
        rows: list[list[Cell]] = []
        for method, of in found.items():
            ends = [[v for v in of.get(n, ()) if v is not None] for n in columns]
            rows.append([method, *(_figure(estimate(v / 100 for v in e), True) for e in ends)])
        return Table(title, ["method", *columns.values()], rows)

    title = f"Accuracy by domain (%), {convention(findings)}"
    return _each_setting(findings, title, table)


def _at_clients(run: Measured, column: str, last: int | None) -> float:
    if run.at_clients is None:
        return math.nan
    return run.at_clients.final(column, rounds_averaged(run, last))


def _has_clock(findings: statistics.Findings) -> bool:
    return all(run.has_clock for run in findings.grouped.runs)


def _costs(findings: statistics.Findings) -> list[Table]:
    """What a whole run sent and computed, from the ledger, and as multiples of the baseline's; and
    the seconds of its clock, if it has one."""
    has_clock = _has_clock(findings)

    def table(setting: Setting, title: str) -> Table:
        rows: list[list[Cell]] = []
        for one in findings.by_setting[setting]:
            sent = estimate(float(run.bytes[-1]) for run in one.group.runs).mean / MEGA
            worked = estimate(float(run.gradients[-1]) for run in one.group.runs).mean
            budget = one.budget
            ratios: list[Cell] = [1.0, 1.0]
            if one.method != findings.baseline:
                ratios = [None, None] if budget is None else [budget.bytes, budget.gradients]
            exact = [round(r, 3) if isinstance(r, float) else r for r in ratios]
            row: list[Cell] = [one.method, round(sent, 3), exact[0], round(worked), exact[1]]
            if has_clock:
                row.append(round(estimate(float(r.seconds[-1]) for r in one.group.runs).mean))
            rows.append(row)
        times = f"times {findings.baseline}"
        heads = ["method", "MB sent", f"sent, {times}", "gradients", f"gradients, {times}"]
        heads += ["seconds"] if has_clock else []
        return Table(title, heads, rows)

    return _each_setting(findings, "Cost of the whole run", table)


def _target(findings: statistics.Findings) -> list[Table]:
    """Rounds, bytes and gradients until the target, and the clock's seconds where there is a clock;
    the usual target is where the baseline ends."""
    shown = [one for one in COSTS if one[0] != "seconds" or _has_clock(findings)]

    def table(setting: Setting, title: str) -> Table:
        rows: list[list[Cell]] = []
        for one in findings.by_setting[setting]:
            aim = one.target
            if aim is None or not aim.is_met:
                met = "no target" if aim is None else f"met by {aim.met} of {aim.seeds} seeds"
                rows.append([one.method, met, *(None for _ in shown[1:])])
                continue
            mean = {axis: aim.costs[axis].mean / unit for axis, _, unit in shown}
            exact = {"rounds": round(mean["rounds"], 1), "bytes": round(mean["bytes"], 3)}
            rows.append([one.method, *(exact.get(axis, round(mean[axis])) for axis in mean)])
        known = [f.target.value for f in findings.by_setting[setting] if f.target is not None]
        aim = numbers.with_unit(known[0], findings.has_accuracy) if known else "no target"
        heads = ["method", *(name for _, name, _ in shown)]
        return Table(f"{title}, {aim}", heads, rows)

    return _each_setting(findings, "Until the target", table)


def _same(findings: statistics.Findings) -> list[Table]:
    """Equal hashes mean equal weights, bit for bit."""

    def table(setting: Setting, title: str) -> Table:
        shown = findings.by_setting[setting]
        rows = [[one.method, " ".join(_hash(run.name) for run in one.group.runs)] for one in shown]
        return Table(title, ["method", "weights"], rows)

    return _each_setting(findings, "Hash of the final weights, seed by seed", table)


def _hash(run: str) -> str:
    return hashlib.sha256((Path(run) / MODEL).read_bytes()).hexdigest()[:12]


TABLES: dict[str, Callable[[statistics.Findings], Sequence[Table]]] = {
    "accuracy": _accuracy,
    "best": _best,
    "rounds": _rounds,
    "loss": _loss,
    "clients": _clients,
    "domains": _domains,
    "costs": _costs,
    "target": _target,
    "same": _same,
}
