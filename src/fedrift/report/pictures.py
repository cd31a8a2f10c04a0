"""A still picture behind every chart: what print, and a browser without scripts, show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedrift.figures.style import COLOURS
from fedrift.figures.svg import (
    Line,
    bars_picture,
    kept,
    lines_picture,
    percent,
    short,
    table_picture,
)
from fedrift.report.markup import escape
from fedrift.report.statistics.costs import client_accuracy
from fedrift.report.statistics.estimates import quality_series
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Floats, Measured
from fedrift.report.tables import SEEN, traffic_per_round

DASHES = ("", "8 4", "2 3", "8 3 2 3")
LEAST = 0.02  # of an axis of accuracy: less would be rounding
FIELDS = 4  # greys of the page
SHARES = np.linspace(0, 1, 51)


def colour(place: int) -> str:
    """Of a method: a variable of the page, so that it is the same in the dark."""
    return f"var(--m{place % len(COLOURS)})"


def dash(place: int) -> str:
    return DASHES[place // len(COLOURS) % len(DASHES)]


def variables() -> str:
    """The colours of the methods, declared once; lighter in the dark, black as the page's ink."""
    return "".join(f"--m{i}:{_themed(one)};" for i, one in enumerate(COLOURS))


def field_colours(kinds: Sequence[tuple[str, str]]) -> list[str]:
    """Of what travels each way: greys, since colours stand for methods."""
    places = [[field for way, field in kinds if way == own].index(field) for own, field in kinds]
    return [f"var(--f{place % FIELDS})" for place in places]


def _themed(one: str) -> str:
    if one == "#000000":
        return "var(--ink)"
    return f"color-mix(in srgb, {one} var(--own), white)"


def chance(findings: Findings) -> float | None:
    """The share of the most frequent class of the test set."""
    total = findings.grouped.runs[0].class_total
    return max(total) / sum(total) if total and sum(total) else None


def curve(findings: Findings, setting: Setting, y_range: tuple[float, float] | None) -> str:
    """Test accuracy, or loss, over rounds: mean and range of the seeds."""
    known = findings.has_accuracy
    lines = [
        line
        for one in findings.by_setting[setting]
        if (line := _line(one, findings.methods.index(one.method))) is not None
    ]
    if not lines:
        return ""
    measured = "test accuracy" if known else "test loss"
    return lines_picture(
        lines,
        about=f"{measured} over rounds, {setting.label}",
        x_title="round",
        y_title=measured,
        whole=True,
        y_text=percent if known else _plain,
        y_range=y_range,
        level=chance(findings) if known else None,
        height=290,
    )


def common_range(findings: Findings) -> tuple[float, float] | None:
    """The same heights in all panels, so that settings can be compared by eye."""
    if not findings.has_accuracy:
        return None
    values = [quality_series(run) for run in findings.grouped.runs if not run.is_blank]
    ends = [float(end) for one in values for end in (one.min(), one.max()) if np.isfinite(end)]
    level = chance(findings)
    ends += [] if level is None else [level]
    if not ends:
        return None
    span = max(ends) - min(ends)
    room = max(0.04 * span, (LEAST - span) / 2)
    return max(0.0, min(ends) - room), min(1.0, max(ends) + room)


def _plain(value: float) -> str:
    return f"{value:.3g}"


def _line(one: Finding, place: int) -> Line | None:
    return mean_line(one, colour(place), quality_series, dash(place))


def mean_line(
    one: Finding, tint: str, series: Callable[[Measured], Floats | None], dashes: str
) -> Line | None:
    """The mean of the seeds as far as all of them go, and their range."""
    runs = [run for run in one.group.runs if not run.is_blank and series(run) is not None]
    if not runs:
        return None
    shortest = min(len(run.rounds) for run in runs)
    values = np.array([series(run)[:shortest] for run in runs])  # type: ignore[index]
    good = np.isfinite(values).all(axis=0)
    if not good.any():
        return None
    x, values = runs[0].rounds[:shortest][good], values[:, good]
    band = (values.min(axis=0).tolist(), values.max(axis=0).tolist()) if len(values) > 1 else None
    return Line(one.method, tint, x.tolist(), values.mean(axis=0).tolist(), band, dashes)


def expected(findings: Findings, setting: Setting) -> str:
    """The clients from worst to best."""
    lines: list[Line] = []
    for one in findings.by_setting[setting]:
        accuracies = [client_accuracy(run, findings.last) for run in one.group.runs]
        known = [np.quantile(values, SHARES) for values in accuracies if values is not None]
        if known:
            place = findings.methods.index(one.method)
            mean = np.mean(known, axis=0).tolist()
            lines.append(Line(one.method, colour(place), SHARES.tolist(), mean, None, dash(place)))
    if not lines:
        return ""
    return lines_picture(
        lines,
        about=f"Expected accuracy of the clients, {setting.label}",
        x_title="clients, from worst to best",
        y_title="expected accuracy",
        x_text=percent,
        y_text=percent,
        height=290,
    )


def clients(run: Measured) -> str:
    """Which share of each client's samples is of which class, or how many samples it holds."""
    table = run.clients
    if table is None:
        return ""
    number = len(table.sizes)
    if table.shares is None:
        shown = kept(number, 40)
        rows = {f"client {i}": [(float(table.sizes[i]), "var(--accent)", "")] for i in shown}
        return bars_picture(rows, about="Samples per client", x_title="samples")
    return table_picture(
        table.shares.T.tolist(),
        about="Classes per client",
        x_title="client",
        y_title="class",
        columns=list(range(number)),
        colour="var(--high)",
        scale="share",
    )


def classes(run: Measured) -> str:
    """Accuracy per class over rounds."""
    if run.classes is None:
        return ""
    table: Floats = np.nan_to_num(run.classes.T)
    return table_picture(
        table.tolist(),
        about="Accuracy per class and round",
        x_title="round",
        y_title="class",
        columns=run.rounds.tolist(),
        colour="var(--high)",
        scale="accuracy",
    )


def ledger(findings: Findings, setting: Setting) -> str:
    """Bytes of a round, one bar per method, one piece per field."""
    sent: dict[str, Sequence[tuple[str, str, str, float]]] = {
        one.method: traffic_per_round(one.group.runs[0]) for one in findings.by_setting[setting]
    }
    whole = max((sum(size for *_, size in pieces) for pieces in sent.values()), default=0)
    seen: dict[str, list[tuple[str, str, float]]] = {}
    for method, pieces in sent.items():
        sizes: dict[tuple[str, str], float] = {}  # over all exchanges of a round
        for _, way, field, size in pieces:
            sizes[way, field] = sizes.get((way, field), 0.0) + size
        if sizes:
            seen[method] = [(*kind, size) for kind, size in sizes.items() if size >= SEEN * whole]
    kinds = list(dict.fromkeys((way, field) for own in seen.values() for way, field, _ in own))
    colours = dict(zip(kinds, field_colours(kinds), strict=True))
    rows = {
        method: [(size, colours[way, field], way) for way, field, size in own]
        for method, own in seen.items()
    }
    if not rows:
        return ""
    about = "bytes of one round, all its clients"
    return bars_picture(
        rows, about=f"{about}, {setting.label}", x_title=about, x_text=_sent
    ) + "".join(
        f'<span class="key"><i class="{way}" style="background-color:{colours[way, field]}"></i>'
        f"{way}: {escape(field)}</span>"
        for way, field in kinds
    )


def _sent(size: float) -> str:
    """`2 MB`, `500 B`."""
    text = short(size)
    return text if text == "0" else f"{text}{'B' if text[-1].isalpha() else ' B'}"
