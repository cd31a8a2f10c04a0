"""The section about the domains of a shift: accuracy in those that clients have and in others."""

from __future__ import annotations

import math

import numpy as np

from fedrift.figures.svg import Line, lines_picture
from fedrift.report import numbers, pictures
from fedrift.report.markup import escape, html_table, methods_legend, paragraph, section
from fedrift.report.statistics.domains import Layout
from fedrift.report.statistics.estimates import estimate, rounds_averaged
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Floats
from fedrift.report.tables import Cell, Table, convention, number, text

WHOSE = {"server": "server's test set", "clients": "clients' own"}
LONGEST = 8  # letters of a domain's name on an axis; longer ones give way to numbers
MOST_NAMES = 12  # on an axis
FEW = 6  # domains that are columns of the table at once


def domains_section(findings: Findings) -> str:
    """A line over the domains for each method, and the figures; empty without domains."""
    known = [one for one in findings.all if _layout(one) is not None]
    if not known:
        return ""
    has_unseen = any(layout.unseen for one in known if (layout := _layout(one)) is not None)
    about = (
        "Accuracy in each domain of the shift. The server evaluates its model on the same test "
        "images as they look there; clients evaluate on test data of their own, with their own "
        "model where they have one."
    )
    if has_unseen:
        about += " No client has a domain that is shaded: nobody trained on it."
    return section(
        "domains",
        "Domains",
        paragraph(about),
        methods_legend(findings.methods, pictures.colour, pictures.dash, switches=False),
        _figures(findings),
        *(html_table(table) for table in domain_tables(findings)),
    )


def _layout(one: Finding) -> Layout | None:
    found = one.group.runs[0].domains
    return None if found is None else found.layout


def _ends(findings: Findings, one: Finding, whose: str) -> list[Floats]:
    """The last figures of every seed, by domain."""
    layout = _layout(one)
    values = [
        run.domains.final(whose, rounds_averaged(run, findings.last))
        for run in one.group.runs
        if run.domains is not None and run.domains.layout == layout
    ]
    return [value for value in values if value is not None]


def _figures(findings: Findings) -> str:
    several = len(findings.settings) > 1
    figures: list[str] = []
    for setting in findings.settings:
        for whose, words in WHOSE.items():
            lines = _lines(findings, setting, whose)
            if lines:
                name = f"{setting.label}: {words}" if several else words
                drawn = _picture(findings, setting, lines, name)
                figures.append(f"<figure><figcaption>{escape(name)}</figcaption>{drawn}</figure>")
    return f'<div class="panels pairs">{"".join(figures)}</div>'


def _lines(findings: Findings, setting: Setting, whose: str) -> list[Line]:
    lines: list[Line] = []
    for one in findings.by_setting[setting]:
        ends = np.array(_ends(findings, one, whose))
        if not len(ends):
            continue
        at = np.flatnonzero(np.isfinite(ends).all(axis=0))
        place, ends = findings.methods.index(one.method), ends[:, at]
        band = None
        if len(ends) > 1:
            band = ends.min(axis=0).tolist(), ends.max(axis=0).tolist()
        mean = ends.mean(axis=0).tolist()
        colour, dash = pictures.colour(place), pictures.dash(place)
        lines.append(Line(one.method, colour, at.astype(float).tolist(), mean, band, dash))
    return lines


def _picture(findings: Findings, setting: Setting, lines: list[Line], about: str) -> str:
    layouts = (_layout(one) for one in findings.by_setting[setting])
    layout = next(one for one in layouts if one is not None)
    has_short = max(map(len, layout.names)) <= LONGEST

    def name(domain: float) -> str:
        return layout.names[round(domain)] if has_short else f"{domain:g}"

    return lines_picture(
        lines,
        about=f"Accuracy in each domain, {about}",
        x_title="domain" if has_short else "number of the domain",
        y_title="accuracy (%)",
        whole=True,
        x_marks=MOST_NAMES,
        x_text=name,
        y_text=lambda share: f"{100 * share:g}",
        x_range=(-0.5, len(layout.names) - 0.5),
        shaded=[(d - 0.5, d + 0.5) for d in layout.unseen],
        height=290,
    )


def domain_tables(findings: Findings) -> list[Table]:
    """Methods × domains, one table for all settings that have the same domains."""
    layouts = dict.fromkeys(_layout(one) for one in findings.all)
    known = [layout for layout in layouts if layout is not None]
    return [_table(findings, layout, f"in-domains-{i}") for i, layout in enumerate(known)]


def _table(findings: Findings, layout: Layout, name: str) -> Table:
    several = len(findings.settings) > 1
    heads = ["method", *(["setting"] if several else []), "evaluated on"]
    words = len(heads)
    heads += ["seen: mean", "seen: worst", *(["unseen: mean"] if layout.unseen else [])]
    sums = len(heads)
    heads += [f"{n} (unseen)" if d in layout.unseen else n for d, n in enumerate(layout.names)]
    rows: list[tuple[Cell, ...]] = []
    for one in findings.all:
        if _layout(one) != layout:
            continue
        for whose, said in WHOSE.items():
            if ends := _ends(findings, one, whose):
                label = [text(one.group.setting.label)] if several else []
                rows.append((text(one.method), *label, text(said), *_cells(layout, ends)))
    has_spread = any(len(one.group.runs) > 1 for one in findings.all)
    spread = ", ± standard deviation over seeds" if has_spread else ""
    caption = (
        f"Accuracy (%) by domain, {convention(findings)}{spread}. Means are over domains, each of "
        "which counts alike."
    )
    shown = range(len(heads) if len(layout.names) <= FEW else sums)
    return Table(name, caption, tuple(heads), tuple(rows), texts=words, usual=tuple(shown))


def _cells(layout: Layout, ends: list[Floats]) -> list[Cell]:
    def cell(values: list[float]) -> Cell:
        known = [value for value in values if math.isfinite(value)]
        found = estimate(known if len(known) == len(values) else [])
        return number(numbers.mean_std(found, True), found.mean)

    seen, unseen = layout.seen, list(layout.unseen)
    cells = [
        cell([float(one[seen].mean()) for one in ends]),
        cell([float(one[seen].min()) for one in ends]),
    ]
    if unseen:
        cells.append(cell([float(one[unseen].mean()) for one in ends]))
    return cells + [cell([float(one[d]) for one in ends]) for d in range(len(layout.names))]
