"""The section about the clients: what each found on test data of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedrift.figures.svg import Line, lines_picture, table_picture
from fedrift.report import numbers, pictures
from fedrift.report.markup import (
    escape,
    folded,
    html_table,
    methods_legend,
    paragraph,
    section,
)
from fedrift.report.statistics.clients import FIGURES, JAIN, WORST, Asked, AtClients
from fedrift.report.statistics.estimates import Estimate, estimate, rounds_averaged
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Floats
from fedrift.report.tables import Cell, Table, number, text

SHARES = np.linspace(0, 1, 101)
FEW = 12  # clients that have a line each; more are rows of a table of colours
MOST_MAPS = 12  # methods × settings whose clients are shown over rounds


def is_measured(findings: Findings) -> bool:
    """Whether clients of some run have evaluated."""
    return any(run.at_clients is not None for run in findings.grouped.runs)


def clients_section(findings: Findings) -> str:
    """Sorted clients, the worst tenth over rounds, every client over rounds, and the figures."""
    about = (
        "Accuracy of every client on test data of its own, which it never trained on, with its own "
        "model where it has one. First the clients of the last evaluation from the worst to the "
        "best, mean of the seeds: a flat line serves all alike. Then the mean of the worst tenth "
        "of the clients over the rounds."
    )
    return section(
        "clients",
        "Clients",
        paragraph(about),
        methods_legend(findings.methods, pictures.colour, pictures.dash, switches=False),
        _pairs(findings),
        html_table(clients_table(findings)),
        _maps(findings),
    )


def _hundredths(share: float) -> str:
    return f"{100 * share:g}"


def _found(one: Finding) -> list[AtClients]:
    return [run.at_clients for run in one.group.runs if run.at_clients is not None]


def _pairs(findings: Findings) -> str:
    low = min(
        (
            float(asked.accuracy[np.isfinite(asked.accuracy)].min(initial=1.0))
            for asked in _ends_of(findings)
        ),
        default=0.0,
    )
    y_range = (max(0.0, low - 0.04), 1.02)
    several = len(findings.settings) > 1
    figures: list[str] = []
    for setting in findings.settings:
        for title, draw in (("from worst to best", _sorted), ("worst tenth", _worst)):
            name = f"{setting.label}: {title}" if several else title
            drawn = draw(findings, setting, y_range)
            figures.append(f"<figure><figcaption>{escape(name)}</figcaption>{drawn}</figure>")
    return f'<div class="panels pairs">{"".join(figures)}</div>'


def _ends_of(findings: Findings) -> list[Asked]:
    return [f.table[-1] for one in findings.all for f in _found(one) if f.table]


def _lines(
    findings: Findings,
    setting: Setting,
    values: Callable[[AtClients], tuple[Floats, Floats] | None],
    has_band: bool,
) -> list[Line]:
    """A line for each method: the mean of its seeds, and a band from the lowest to the highest."""
    lines: list[Line] = []
    for one in findings.by_setting[setting]:
        known = [pair for found in _found(one) if (pair := values(found)) is not None]
        if not known:
            continue
        length = min(len(y) for _, y in known)
        table = np.array([y[:length] for _, y in known])
        place, x = findings.methods.index(one.method), known[0][0][:length]
        band = None
        if len(table) > 1 and has_band:
            band = table.min(axis=0).tolist(), table.max(axis=0).tolist()
        mean = table.mean(axis=0).tolist()
        colour, dash = pictures.colour(place), pictures.dash(place)
        lines.append(Line(one.method, colour, x.tolist(), mean, band, dash))
    return lines


def _sorted(findings: Findings, setting: Setting, y_range: tuple[float, float]) -> str:
    def values(found: AtClients) -> tuple[Floats, Floats] | None:
        if not found.table:
            return None
        last = found.table[-1].accuracy
        known = last[np.isfinite(last)]
        return (SHARES, np.quantile(known, SHARES)) if len(known) else None

    return lines_picture(
        _lines(findings, setting, values, has_band=False),
        about=f"Accuracy of the clients from worst to best, {setting.label}",
        x_title="clients (%), from the worst to the best",
        y_title="accuracy (%)",
        x_text=_hundredths,
        y_text=_hundredths,
        y_range=y_range,
        height=290,
    )


def _worst(findings: Findings, setting: Setting, y_range: tuple[float, float]) -> str:
    def values(found: AtClients) -> tuple[Floats, Floats]:
        return found.rounds.astype(np.float64), found.columns[WORST]

    lowest = [f.columns[WORST].min() for o in findings.by_setting[setting] for f in _found(o)]
    low = max(0.0, min([y_range[0], *(float(v) - 0.04 for v in lowest)]))
    return lines_picture(
        _lines(findings, setting, values, has_band=True),
        about=f"Mean of the worst tenth of the clients over rounds, {setting.label}",
        x_title="round",
        y_title="accuracy of the worst tenth (%)",
        whole=True,
        y_text=_hundredths,
        y_range=(low, y_range[1]),
        height=290,
    )


def clients_table(findings: Findings) -> Table:
    """A row per method and setting: figures of fairness, and who was not visited yet."""
    several = len(findings.settings) > 1
    heads = ("method", *(("setting",) if several else ()), *FIGURES.values())
    rows: list[tuple[Cell, ...]] = []
    for setting in findings.settings:
        for one in findings.by_setting[setting]:
            if not (known := _found(one)):
                continue
            last = rounds_averaged(one.group.runs[0], findings.last)
            row = [text(one.method), *([text(setting.label)] if several else [])]
            for column in FIGURES:
                value = estimate(found.final(column, last) for found in known)
                words = _jain(value) if column == JAIN else numbers.mean_std(value, True)
                row.append(number(words, value.mean))
            asked = [len(f.table[-1].client) if f.table else 0 for f in known]
            never = [int(f.not_visited[-1]) for f in known]
            row.append(number(f"{np.mean(asked):,.0f}", float(np.mean(asked))))
            row.append(number(f"{np.mean(never):,.4g}", float(np.mean(never))))
            rows.append(tuple(row))
    spread = (
        ", ± standard deviation over seeds" if any(len(_found(o)) > 1 for o in findings.all) else ""
    )
    caption = (
        f"Accuracy at clients (%) at the end{spread}: mean over clients, weighted by test samples, "
        "of the worst and the best tenth, standard deviation between clients, and Jain's index, 1 "
        "if all are served alike. Not visited yet: clients that never took part before the end."
    )
    columns = (*heads, "clients asked", "not visited yet")
    hidden = ("weighted mean", "best tenth", "clients asked")
    usual = tuple(i for i, name in enumerate(columns) if name not in hidden)
    texts = 2 if several else 1
    return Table("at-clients", caption, columns, tuple(rows), texts=texts, usual=usual)


def _jain(value: Estimate) -> str:
    spread = f" ± {value.std:.3f}" if value.has_interval else ""
    return f"{value.mean:.3f}{spread}"


def _maps(findings: Findings) -> str:
    """Every client over the rounds, one picture per method, of the first seed."""
    shown = [one for one in findings.all if _found(one) and _found(one)[0].table][:MOST_MAPS]
    if not shown:
        return ""
    several = len(findings.settings) > 1
    figures = [
        f"<figure><figcaption>{escape(_name(one, several))}</figcaption>"
        f"{client_map(_found(one)[0], _name(one, several), findings.methods.index(one.method))}"
        "</figure>"
        for one in shown
    ]
    are_few = [_has_lines(_found(one)[0]) for one in shown]
    how = {
        "a line each": any(are_few),
        "a row each, the worst at the end on top, the darker the better (in the dark, the "
        "lighter)": not all(are_few),
    }
    about = (
        "Every client over the rounds in which it was asked, of the first seed: "
        f"{'; '.join(words for words, is_used in how.items() if is_used)}. A client that had not "
        "been visited yet was evaluated with the model that it began with."
    )
    return folded(
        "Every client over the rounds",
        paragraph(about),
        f'<div class="panels pairs">{"".join(figures)}</div>',
        is_long=True,
    )


def _name(one: Finding, several: bool) -> str:
    return f"{one.method}, {one.group.setting.label}" if several else one.method


def _has_lines(found: AtClients) -> bool:
    return len(_asked(found)) <= FEW and len(found.table) > 1


def _asked(found: AtClients) -> NDArray[np.int64]:
    return np.unique(np.concatenate([asked.client for asked in found.table]))


def client_map(found: AtClients, name: str, method: int = 0) -> str:
    """A line per client if they are few, else a row of colours, the worst at the end on top."""
    ids = _asked(found)
    table = np.full((len(ids), len(found.table)), np.nan)
    for i, asked in enumerate(found.table):
        table[np.searchsorted(ids, asked.client), i] = asked.accuracy
    order = np.argsort(np.nan_to_num(table[:, -1], nan=-1.0), kind="stable")
    rounds = [asked.round for asked in found.table]
    if _has_lines(found):
        lines = [
            Line(
                f"client {ids[row]}",
                pictures.colour(method),
                kept,
                table[row][good].tolist(),
                opacity=0.6,
            )
            for row in order
            for good in [np.isfinite(table[row])]
            for kept in [[float(r) for r, is_there in zip(rounds, good, strict=True) if is_there]]
            if good.any()
        ]
        return lines_picture(
            lines,
            about=f"Accuracy of each client over rounds, {name}",
            x_title="round",
            y_title="accuracy (%)",
            whole=True,
            y_text=_hundredths,
            height=290,
        )
    return table_picture(
        np.nan_to_num(table[order]).tolist(),
        about=f"Accuracy of each client over rounds, {name}",
        x_title="round",
        y_title="clients, the worst at the end on top",
        columns=rounds,
        colour="var(--high)",
        scale="accuracy",
    )
