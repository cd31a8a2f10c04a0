"""What the numbers show and what they do not, in sentences made from the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrift.config.own_code import IN_PYTHON
from fedrift.report.numbers import interval_ends, listed, mean_std, plural, signed
from fedrift.report.statistics.costs import AXES, differing_cohorts, fair_axes
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.tables import convention

MOST_SETTINGS = 6  # that have a sentence each
MANY_COMPARISONS = 5  # from which a chance finding is to be expected
FEW_SEEDS = 5


def title(findings: Findings) -> str:
    """`4 methods on digits`."""
    data = findings.grouped.runs[0].spec.data
    where = "data given in Python" if data == IN_PYTHON else data
    methods = findings.methods
    return f"{methods[0] if len(methods) == 1 else f'{len(methods)} methods'} on {where}"


def scope(findings: Findings) -> str:
    """What was compared, in one sentence."""
    runs = findings.grouped.runs
    first = runs[0]
    test = plural(first.samples, "test sample")
    if first.class_total:
        test += f" of {plural(len(first.class_total), 'class').replace('classs', 'classes')}"
    if first.is_judged_at_clients:
        test = "the clients' own test data, mean over clients"
    rounds = sorted({run.spec.rounds for run in runs})
    seeds = sorted({run.seed for run in runs})
    named = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]} to {seeds[-1]}"
    methods, settings = len(findings.methods), len(findings.settings)
    figures = f"test {'accuracy' if findings.has_accuracy else 'loss'}, {convention(findings)}"
    if len(runs) == 1:
        setting = findings.settings[0]
        return (
            f"1 run: {setting.partition}, {setting.participation}, {first.spec.rounds:,} rounds, "
            f"seed {first.seed}, evaluated on {test}. Figures are {figures}."
        )
    return (
        f"{plural(methods, 'method')} in {plural(settings, 'setting')}{_common(findings)}, "
        f"{' or '.join(f'{r:,}' for r in rounds)} rounds, {plural(len(seeds), 'seed')} ({named}): "
        f"{plural(len(runs), 'run')}, evaluated on {test}. Figures are {figures}."
    )


def _common(findings: Findings) -> str:
    """What of the settings is the same in all and therefore in none of their names."""
    shared = [
        words.pop()
        for words in (
            {setting.partition for setting in findings.settings},
            {setting.participation for setting in findings.settings},
        )
        if len(words) == 1
    ]
    return f" ({', '.join(shared)})" if shared else ""


@dataclass(frozen=True)
class Said:
    """One finding, and what has to be known before it is quoted."""

    text: str
    caveats: tuple[str, ...] = ()


def findings_said(findings: Findings) -> list[Said]:
    """What the numbers show, each with what it does not show."""
    settings = findings.settings
    lines = [
        Said(verdict(findings, setting), tuple(_caveats(findings, setting)))
        for setting in settings[:MOST_SETTINGS]
    ]
    if len(settings) > MOST_SETTINGS:
        first = Said(f"The first {MOST_SETTINGS} settings:")
        lines = [Said(_winners(findings), tuple(_many_comparisons(findings))), first, *lines]
    return [*lines, *map(Said, _failures(findings))]


def _caveats(findings: Findings, setting: Setting) -> list[str]:
    """What a setting's verdict does not show, and what to look at instead."""
    few = len(findings.settings) <= MOST_SETTINGS
    return [
        *_seeds(findings, setting),
        *budgets(findings, setting),
        *_clients(findings, setting),
        *(_many_comparisons(findings) if few and setting == findings.settings[0] else []),
    ]


def of_all_figures(findings: Findings) -> list[str]:
    """What holds wherever the page is looked at."""
    has_clock = all(run.has_clock for run in findings.grouped.runs)
    return [*_versions(findings), CLOCK if has_clock else SECONDS]


CLOCK = (
    "Time is that of the simulated clock: it follows from the devices, the bytes and the gradient "
    "evaluations, which are counted exactly."
)
SECONDS = (
    "Seconds were measured while the runs were made, on their machine and with whatever else "
    "ran there; bytes and gradient evaluations are counted exactly."
)


def verdict(findings: Findings, setting: Setting) -> str:
    """Who is best in a setting and whether that could be chance."""
    place = f"{setting.label}: " if len(findings.settings) > 1 else ""
    best, known = findings.best(setting), findings.has_accuracy
    if best is None:
        return f"{place}{'no' if place else 'No'} method has a figure."
    seeds = plural(len(best.group.runs), "seed")
    figure = mean_std(best.score.final, known) + (" %" if known else "")
    if len(findings.by_setting[setting]) == 1:
        return f"{place}{best.method} ends at {figure} ({seeds})."
    most = "highest" if known else "lowest"
    opening = f"{place}{best.method} has the {most} mean, {figure} ({seeds})."
    if best.method != findings.baseline:
        return f"{opening} {_against(best, findings)}"
    second = next((f for f in findings.by_setting[setting] if f.rank == 2), None)
    if second is None:
        return f"{opening} It is the baseline."
    return f"{opening} It is the baseline; next is {second.method}. {_against(second, findings)}"


def _against(one: Finding, findings: Findings) -> str:
    """The paired difference and what follows from it."""
    shift, base, known = one.difference, findings.baseline, findings.has_accuracy
    if shift is None:
        return f"It cannot be compared to {base} seed by seed."
    points = " points" if known else ""
    if not shift.has_interval:
        return (
            f"Its difference to {base} is {signed(shift.mean, known)}{points} in the one seed "
            "they share, which says nothing about chance."
        )
    seeds, (low, high) = plural(shift.n, "common seed"), interval_ends(shift, known)
    text = (
        f"Its difference to {base} is {signed(shift.mean, known)}{points}, 95 % interval "
        f"{low} to {high} over {seeds}"
    )
    if not shift.is_free_of_zero:
        return f"{text}: the interval contains 0, so this does not show that they differ."
    better = (shift.mean > 0) == known
    verb = "better" if better else "worse"
    return f"{text}: the interval is free of 0, {one.method} is {verb} here."


def _winners(findings: Findings) -> str:
    first = [best.method for s in findings.settings if (best := findings.best(s))]
    counts = {method: first.count(method) for method in dict.fromkeys(first)}
    order = sorted(counts, key=lambda method: -counts[method])
    words = [f"{method} in {counts[method]}" for method in order]
    return f"Best mean of {len(findings.settings)} settings: {listed(words)}."


def _failures(findings: Findings) -> list[str]:
    several = len(findings.settings) > 1
    return [
        f"{one.method}{f' ({one.group.setting.label})' if several else ''} is marked (X): "
        f"{one.score.why}."
        for one in findings.all
        if one.score.failed
    ]


def _many_comparisons(findings: Findings) -> list[str]:
    intervals = [f.difference for f in findings.all if f.difference and f.difference.has_interval]
    if len(intervals) < MANY_COMPARISONS:
        return []
    free = sum(interval.is_free_of_zero for interval in intervals)
    return [
        f"{free} of {len(intervals)} differences to {findings.baseline} have an interval free "
        "of 0; of equal methods, about one in twenty would by chance."
    ]


def _seeds(findings: Findings, setting: Setting) -> list[str]:
    fewest = min(len(one.group.runs) for one in findings.by_setting[setting])
    if fewest == 1 and len(findings.methods) == 1:
        return [
            "It ran with one seed only: how far another seed would end from it cannot be said. "
            "Three seeds are a beginning."
        ]
    if fewest == 1:
        return [
            "Some methods ran with one seed only: how much of their difference is chance cannot "
            "be said. Three seeds are a beginning."
        ]
    if fewest < FEW_SEEDS and len(findings.methods) > 1:
        return [
            f"With {fewest} seeds an interval is wide: methods that look alike here may differ, "
            "and more seeds would tell. The best was picked by looking at these same runs."
        ]
    return []


def budgets(findings: Findings, where: Setting | None = None) -> list[str]:
    """Methods that were given more than the baseline, and the axis that is fair to both; in one
    setting, or in all."""
    settings_by_text: dict[str, list[str]] = {}
    looked_at = findings.settings if where is None else (where,)
    for setting in looked_at:
        spent = [f.budget for f in findings.by_setting[setting] if f.budget is not None]
        for budget in spent:
            if not budget.unequal:
                continue
            words = [f"{_times(getattr(budget, n))} the {NAMES[n]}" for n in budget.unequal]
            has_clock = all(run.has_clock for run in findings.grouped.runs)
            axes = [OVER.get(axis, AXES[axis]) for axis in fair_axes([budget], has_clock)]
            text = (
                f"{budget.method} used {listed(words)} of {findings.baseline}: the same number of "
                f"rounds is not the same budget. Look at the curves over {listed(axes)}."
            )
            settings_by_text.setdefault(text, []).append(setting.label)
    return [
        text if len(names) == len(looked_at) else f"{', '.join(names)}: {text}"
        for text, names in settings_by_text.items()
    ]


def _times(ratio: float) -> str:
    return "less than 0.01 times" if ratio < 0.005 else f"{ratio:.2f} times"


NAMES = {
    "rounds": "rounds",
    "gradients": "gradient evaluations",
    "bytes": "bytes",
    "steps": "local steps",
}


OVER = {"seconds": "the time of the simulated clock, which counts them all"}


def _clients(findings: Findings, setting: Setting) -> list[str]:
    differing = differing_cohorts([f.group for f in findings.by_setting[setting]])
    if not differing:
        return []
    one, other, seed = differing[0]
    return [
        f"{one} and {other} did not see the same clients in seed {seed}, "
        "so differences between them hold more chance than the pairing takes out."
    ]


def _versions(findings: Findings) -> list[str]:
    lines: list[str] = []
    for key in ("fedrift", "torch", "instructions"):
        versions = {str(run.environment.get(key, "")) for run in findings.grouped.runs} - {""}
        # Earlier versions named the instruction set only, which is no other one.
        versions = {one for one in versions if not any(v.startswith(f"{one}/") for v in versions)}
        if len(versions) > 1:
            name = "CPU arithmetic" if key == "instructions" else key
            lines.append(
                f"The runs were made with different {name}: {', '.join(sorted(versions))}."
            )
    return lines


EXPECTED = (
    "Accuracy per client is expected, not measured: test accuracy per class, weighted by the "
    "labels a client holds. It does not see that a client's own samples may be harder."
)


def problems(left_out: Sequence[str], findings: Findings) -> list[str]:
    """Runs that are not what they should be."""
    groups = findings.grouped.groups
    waiting = [run for group in groups for run in group.unfinished]
    lines = [f"'{run.name}' is unfinished and left out of every figure." for run in waiting]
    for group in groups:
        if not group.is_finished:
            lines.append(
                f"{group.method} ({group.setting.label}) has no finished run: its figures are of "
                "the last rounds so far and take no part in the ranking."
            )
    runs = [run for group in groups for run in (*group.runs, *group.unfinished)]
    lines += [f"'{run.name}': {problem}." for run in runs for problem in run.problems]
    return [*(f"{problem}." for problem in left_out), *lines]
