"""What a page opens with: a title, three figures with their intervals, and what follows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrift.figures.svg import wrapped
from fedrift.report import sentences
from fedrift.report.markup import bullet_list, escape, folded, prose, section
from fedrift.report.numbers import (
    FAILED,
    NOTHING,
    difference_text,
    interval_ends,
    interval_text,
    plural,
    quantity_text,
    signed,
    with_unit,
)
from fedrift.report.provenance import Extras, option_sentences
from fedrift.report.statistics.estimates import Estimate, quality_series
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting

MOST = 3


@dataclass(frozen=True)
class Headline:
    """One figure in large letters, what it is, and how sure it is."""

    figure: str
    about: str
    interval: str
    estimate: Estimate | None = None
    """Drawn beside the words; a difference with the place of zero."""
    is_difference: bool = False


def headlines(findings: Findings) -> list[Headline]:
    """At most three, of the one setting, of each of a few, or of all of many."""
    settings = findings.settings
    if len(settings) == 1:
        return _of_one(findings, settings[0])
    if len(settings) <= MOST:
        each = [_of_setting(findings, setting) for setting in settings]
        return [*each, *_extremes(findings)[: MOST - len(each)]]
    return [*_winner(findings), *_extremes(findings)]


def _of_one(findings: Findings, setting: Setting) -> list[Headline]:
    best = findings.best(setting)
    if best is None:
        return [_failed(one, findings) for one in findings.by_setting[setting][:MOST]]
    made = [_final(best, findings)]
    rival = _rival(best, findings, setting)
    if rival is not None and rival.difference is not None:
        made.append(_difference(rival, findings))
    made.append(_cost(best, findings))
    if len(made) < MOST:
        made.insert(1, _best_round(best, findings))
    return made


def _final(best: Finding, findings: Findings) -> Headline:
    known = findings.has_accuracy
    measured = "test accuracy" if known else "test loss"
    most = f"{'highest' if known else 'lowest'} " if len(findings.methods) > 1 else ""
    return Headline(
        with_unit(best.score.final.mean, known),
        f"{best.method}: {most}{measured}",
        _sure(best.score.final, interval_text(best.score.final, known)),
        best.score.final,
    )


def _failed(one: Finding, findings: Findings) -> Headline:
    """Where it stood, and why that is no figure."""
    known, runs = findings.has_accuracy, one.group.runs
    ends = [float(quality_series(run)[-1]) for run in runs if not run.is_blank]
    figure = with_unit(sum(ends) / len(ends), known) if ends else NOTHING
    return Headline(figure, f"{one.method}: {one.score.why}", f"{FAILED}: no figure to compare")


def _rival(best: Finding, findings: Findings, setting: Setting) -> Finding | None:
    """Whose difference to the baseline is told: the best, or the second if that is the baseline."""
    if best.method != findings.baseline:
        return best
    return next((f for f in findings.by_setting[setting] if f.rank == 2), None)


def _difference(one: Finding, findings: Findings, place: str = "") -> Headline:
    shift, known = one.difference, findings.has_accuracy
    assert shift is not None
    low, high = interval_ends(shift, known)
    return Headline(
        signed(shift.mean, known) + (" points" if known else ""),
        f"{one.method} against {findings.baseline}{place}",
        _sure(shift, f"{low} to {high}") + _verdict(shift),
        shift,
        is_difference=True,
    )


def _verdict(shift: Estimate) -> str:
    if not shift.has_interval:
        return ""
    return ", free of 0" if shift.is_free_of_zero else ", contains 0: not shown to differ"


def _sure(estimate: Estimate, ends: str) -> str:
    seeds = plural(estimate.n, "seed")
    if not estimate.has_interval:
        return f"{seeds}: no interval"
    return f"95 % interval {ends}, {seeds}"


def _best_round(best: Finding, findings: Findings) -> Headline:
    known, run = findings.has_accuracy, best.group.runs[0]
    values = quality_series(run)
    place = int(np.nanargmax(values) if known else np.nanargmin(values))
    which = f"best, in round {run.rounds[place]:,}" if best.score.best.n == 1 else "best round"
    return Headline(
        with_unit(best.score.best.mean, known),
        f"{best.method}: {which}",
        _sure(best.score.best, interval_text(best.score.best, known)),
        best.score.best,
    )


def _cost(best: Finding, findings: Findings) -> Headline:
    """Rounds to the target where others compete for it, else what the run cost."""
    target = best.target
    if len(findings.methods) > 1 and target is not None and target.is_met:
        costs = target.costs["rounds"]
        rounds = quantity_text(costs.mean, "rounds")
        low, high = (quantity_text(max(0.0, v), "rounds") for v in (costs.low, costs.high))
        base = findings.get(findings.baseline, best.group.setting)
        aim = with_unit(target.value, findings.has_accuracy)
        others = base is not best and base is not None and base.target is not None
        beside = ""
        if others and base.target.is_met:  # type: ignore[union-attr]
            theirs = quantity_text(base.target.costs["rounds"].mean, "rounds")  # type: ignore[union-attr]
            beside = f"; {findings.baseline} needs {theirs}"
        return Headline(
            f"{rounds} round" + ("" if rounds == "1" else "s"),
            f"{best.method}: to {aim}",
            _sure(costs, f"{low} to {high}") + beside,
            costs if costs.has_interval else None,
        )
    run = best.group.runs[0]
    spent = [
        text
        for axis in ("bytes", "gradients", "seconds")
        if (text := quantity_text(float(getattr(run, axis)[-1]), axis)) != "–"
    ]
    words = dict(zip(("bytes", "gradients", "seconds"), spent, strict=False))
    rest = [f"{words['gradients']} gradient evaluations"] if "gradients" in words else []
    clock = " on the clock" if run.has_clock else ""
    rest += [words["seconds"] + clock] if "seconds" in words else []
    rounds = plural(int(run.rounds[-1]), "round")
    return Headline(words.get("bytes", rounds), f"{best.method}: sent in {rounds}", ", ".join(rest))


def _of_setting(findings: Findings, setting: Setting) -> Headline:
    """The best of one of a few settings, with its lead."""
    known, best = findings.has_accuracy, findings.best(setting)
    if best is None:
        return Headline("–", f"{setting.label}: no method has a figure", "")
    rival = _rival(best, findings, setting)
    lead = ""
    if rival is not None and rival.difference is not None:
        text = difference_text(rival.difference, known)
        who = "" if rival is best else f"{rival.method} "
        lead = f"; {who}{text} against {findings.baseline}"
    return Headline(
        with_unit(best.score.final.mean, known),
        f"{setting.label}: {best.method}",
        _sure(best.score.final, interval_text(best.score.final, known)) + lead,
        best.score.final,
    )


def _winner(findings: Findings) -> list[Headline]:
    winners = [best.method for s in findings.settings if (best := findings.best(s))]
    if not winners:
        return []
    most = max(dict.fromkeys(winners), key=winners.count)
    return [
        Headline(
            f"{winners.count(most)} of {len(findings.settings)}",
            f"settings in which {most} has the best mean",
            f"{plural(len(findings.methods), 'method')} compared",
        )
    ]


def _extremes(findings: Findings) -> list[Headline]:
    """The largest lead over the baseline, and the largest lag behind it."""
    better = 1 if findings.has_accuracy else -1
    known = [(better * one.difference.mean, one) for one in findings.all if one.difference]
    ordered = [one for _, one in sorted(known, key=lambda pair: -pair[0])]
    ends = dict.fromkeys(ordered[:1] + ordered[-1:])
    return [_difference(one, findings, f", {one.group.setting.label}") for one in ends]


# As HTML.

WIDE, TALL = 220.0, 16.0


def _drawn(one: Headline) -> str:
    """The interval as a line with its mean; a difference with the place of zero."""
    shift = one.estimate
    if shift is None or not shift.has_interval:
        return ""
    ends = [shift.low, shift.high, *([0.0] if one.is_difference else [])]
    low, high = min(ends), max(ends)
    room = (high - low or 1.0) * 0.06

    def at(value: float) -> float:
        return WIDE * (value - low + room) / (high - low + 2 * room)

    middle = TALL / 2
    kind = " free" if one.is_difference and shift.is_free_of_zero else ""
    parts = [
        f'<line class="reach{kind}" x1="{at(shift.low):.1f}" x2="{at(shift.high):.1f}" '
        f'y1="{middle}" y2="{middle}"/>',
        f'<circle class="mean{kind}" cx="{at(shift.mean):.1f}" cy="{middle}" r="4.5"/>',
    ]
    if one.is_difference:
        zero = f"{at(0.0):.1f}"
        parts.insert(0, f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="{TALL}"/>')
    return wrapped(parts, f"{one.about}: {one.interval}", WIDE, TALL)


def headlines_block(made: Sequence[Headline]) -> str:
    cards = "".join(
        f'<div class="headline"><strong>{prose(one.figure)}</strong>'
        f"<span>{prose(one.about)}</span>{_drawn(one)}<small>{prose(one.interval)}</small></div>"
        for one in made
    )
    return f'<div class="headlines">{cards}</div>' if cards else ""


def summary_section(findings: Findings, extras: Extras) -> str:
    """Title, what was compared, what could not be used, and the figures."""
    problems = ""
    if extras.problems:
        heading = "<h2>Not everything could be used</h2>"
        problems = (
            f'<div class="problems" role="note">{heading}{bullet_list(extras.problems)}</div>'
        )
    return (
        f'<section id="summary" aria-label="Summary"><h1>{escape(extras.title)}</h1>'
        f'<p class="soft">{prose(sentences.scope(findings))}</p>{problems}'
        f"{headlines_block(headlines(findings))}</section>"
    )


def findings_section(findings: Findings, extras: Extras) -> str:
    """The sentences, each with what it does not show folded below it."""
    said = "".join(
        f"<li>{prose(one.text)}"
        + (folded(_heading(one.caveats), bullet_list(one.caveats)) if one.caveats else "")
        + "</li>"
        for one in sentences.findings_said(findings)
    )
    every = sentences.of_all_figures(findings)
    return section(
        "findings",
        "What the numbers show",
        f'<ul class="said">{said}</ul>',
        folded("What holds for all figures", bullet_list(every)) if every else "",
        folded("With which options", bullet_list([*option_sentences(findings), *extras.notes])),
    )


def _heading(caveats: Sequence[str]) -> str:
    return f"Before you quote it: {plural(len(caveats), 'caveat')}"
