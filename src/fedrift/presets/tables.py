"""What a comparison found, as the tables a preset asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrift.presets.findings import Cell, Findings, Table
from fedrift.presets.preset import Part
from fedrift.presets.relations import DIVERGED
from fedrift.report import numbers
from fedrift.report.selection import select
from fedrift.report.statistics import findings as statistics
from fedrift.report.statistics.estimates import Estimate, counted, estimate, series
from fedrift.report.statistics.findings import Finding
from fedrift.report.statistics.grouping import Setting
from fedrift.report.tables import convention, measure
from fedrift.storage.run_folder import MODEL

MEGA = 1e6
MOST_ROUNDS = 12  # columns of the table of rounds


def compared(folder: Path, part: Part) -> Findings:
    """The tables and figures of the comparison in `folder`; figures are written there."""
    from fedrift.presets.figures import draw

    chosen = select([folder])
    found = statistics.find(chosen.runs, target=part.target, baseline=part.baseline, last=part.last)
    tables = [table for name in part.tables for table in TABLES[name](found)]
    figures = draw(found, folder, part.figures)
    if part.analyse:
        from fedrift.presets.figures import inside

        figures += inside(found, folder, part)
    # Without the folder, which differs from machine to machine.
    notes = [one.replace(f"{folder}/", "") for one in chosen.problems]
    return Findings(tables, figures, notes)


def _score(found: statistics.Findings, one: Finding | None) -> Cell:
    if one is None:
        return None
    if one.score.diverged:
        return f"{DIVERGED} ({one.score.diverged} of {len(one.group.runs)} seeds)"
    return _figure(one.score.final, found.has_accuracy)


def _figure(value: Estimate, has_accuracy: bool) -> Cell:
    """A number, or `mean ± standard deviation` where there are several seeds."""
    if value.mean != value.mean:
        return None
    if value.has_interval:
        return numbers.mean_std(value, has_accuracy)
    return round(100 * value.mean, 2) if has_accuracy else float(f"{value.mean:.5g}")


def _accuracy(found: statistics.Findings) -> list[Table]:
    """Methods × settings; of one setting also the best round and the difference to the baseline."""
    title = f"Test {measure(found)}, {convention(found)}"
    if len(found.settings) > 1:
        return [_by_setting(found, title, lambda one: _score(found, one))]
    known, compares = found.has_accuracy, len(found.methods) > 1
    columns = ["method", "accuracy" if known else "loss", "best round"]
    columns += [f"difference to {found.baseline}"] if compares else []
    rows: list[list[Cell]] = []
    for one in found.all:
        row: list[Cell] = [one.method, _score(found, one), _figure(one.score.best, known)]
        is_base = one.method == found.baseline
        row += ["" if is_base else numbers.difference(one.difference, known)] if compares else []
        rows.append(row)
    return [Table(title, columns, rows)]


def _by_setting(
    found: statistics.Findings, title: str, cell: Callable[[Finding | None], Cell]
) -> Table:
    rows = [
        [m, *(cell(found.get(m, setting)) for setting in found.settings)] for m in found.methods
    ]
    return Table(title, ["method", *(setting.label for setting in found.settings)], rows)


def _best(found: statistics.Findings) -> list[Table]:
    def cell(one: Finding | None) -> Cell:
        return None if one is None else _figure(one.score.best, found.has_accuracy)

    title = f"Test {measure(found)}, best round"
    if len(found.settings) > 1:
        return [_by_setting(found, title, cell)]
    only = next(iter(found.settings))
    return [
        Table(title, ["method", "best"], [[m, cell(found.get(m, only))] for m in found.methods])
    ]


def _each_setting(
    found: statistics.Findings, title: str, make: Callable[[Setting, str], Table]
) -> list[Table]:
    several = len(found.settings) > 1
    return [make(s, f"{title}, {s.label}" if several else title) for s in found.settings]


def _rounds(found: statistics.Findings) -> list[Table]:
    """The curve in numbers: every evaluated round, or some of them where there are many."""

    def table(setting: Setting, title: str) -> Table:
        held = found.by_setting[setting]
        shortest = min((run for one in held for run in one.group.runs), key=lambda r: len(r.rounds))
        places = _spread_out(len(shortest.rounds))
        columns = ["method", *(f"round {shortest.rounds[i]}" for i in places)]
        rows: list[list[Cell]] = []
        for one in held:
            values = [
                estimate(float(series(run)[i]) for run in one.group.runs if len(run.rounds) > i)
                for i in places
            ]
            rows.append([one.method, *(_figure(v, found.has_accuracy) for v in values)])
        return Table(title, columns, rows)

    return _each_setting(found, f"Test {measure(found)} after each round", table)


def _spread_out(number: int) -> list[int]:
    """Places of at most MOST_ROUNDS evaluated rounds, the last one among them."""
    step = -(-number // MOST_ROUNDS)
    return list(range(number - 1, -1, -step))[::-1]


def _loss(found: statistics.Findings) -> list[Table]:
    """Test loss, for experiments that were published as curves of the loss."""

    def cell(one: Finding | None) -> Cell:
        if one is None or one.score.diverged:
            return None if one is None else DIVERGED
        ends = [float(r.loss[-counted(r, found.last) :].mean()) for r in one.group.runs]
        return _figure(estimate(ends), False)

    title = f"Test loss, {convention(found)}"
    if len(found.settings) > 1:
        return [_by_setting(found, title, cell)]
    only = next(iter(found.settings))
    return [
        Table(title, ["method", "loss"], [[m, cell(found.get(m, only))] for m in found.methods])
    ]


def _costs(found: statistics.Findings) -> list[Table]:
    """What a whole run sent and computed, from the ledger, and as multiples of the baseline's."""

    def table(setting: Setting, title: str) -> Table:
        rows: list[list[Cell]] = []
        for one in found.by_setting[setting]:
            sent = estimate(float(run.bytes[-1]) for run in one.group.runs).mean / MEGA
            worked = estimate(float(run.gradients[-1]) for run in one.group.runs).mean
            budget = one.budget
            ratios: list[Cell] = [1.0, 1.0]
            if one.method != found.baseline:
                ratios = [None, None] if budget is None else [budget.bytes, budget.gradients]
            exact = [round(r, 3) if isinstance(r, float) else r for r in ratios]
            rows.append([one.method, round(sent, 3), exact[0], round(worked), exact[1]])
        times = f"times {found.baseline}"
        heads = ["method", "MB sent", f"sent, {times}", "gradients", f"gradients, {times}"]
        return Table(title, heads, rows)

    return _each_setting(found, "Cost of the whole run", table)


def _target(found: statistics.Findings) -> list[Table]:
    """Rounds, bytes and gradients until the target; the usual one is where the baseline ends."""

    def table(setting: Setting, title: str) -> Table:
        rows: list[list[Cell]] = []
        for one in found.by_setting[setting]:
            aim = one.target
            if aim is None or not aim.is_met:
                words = "no target" if aim is None else f"{aim.met} of {aim.seeds} seeds"
                rows.append([one.method, None if aim is None or aim.met else "not met", words, ""])
                continue
            mean = {axis: aim.costs[axis].mean for axis in ("rounds", "bytes", "gradients")}
            sent = round(mean["bytes"] / MEGA, 3)
            rows.append([one.method, round(mean["rounds"], 1), sent, round(mean["gradients"])])
        known = [f.target.value for f in found.by_setting[setting] if f.target is not None]
        aim = numbers.with_unit(known[0], found.has_accuracy) if known else "no target"
        heads = ["method", "rounds to target", "MB to target", "gradients to target"]
        return Table(f"{title}, {aim}", heads, rows)

    return _each_setting(found, "Until the target", table)


def _same(found: statistics.Findings) -> list[Table]:
    """Equal hashes mean equal weights, bit for bit."""

    def table(setting: Setting, title: str) -> Table:
        held = found.by_setting[setting]
        rows = [[one.method, " ".join(_hash(run.name) for run in one.group.runs)] for one in held]
        return Table(title, ["method", "weights"], rows)

    return _each_setting(found, "Hash of the final weights, seed by seed", table)


def _hash(run: str) -> str:
    return hashlib.sha256((Path(run) / MODEL).read_bytes()).hexdigest()[:12]


TABLES: dict[str, Callable[[statistics.Findings], Sequence[Table]]] = {
    "accuracy": _accuracy,
    "best": _best,
    "rounds": _rounds,
    "loss": _loss,
    "costs": _costs,
    "target": _target,
    "same": _same,
}
