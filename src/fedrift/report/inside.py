"""What `fedrift analyse` found in the models: tables over seeds, pictures in the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrift.core.plain_files import read_plain
from fedrift.figures.curvature import smoothed
from fedrift.figures.svg import MINUS, Line, lines_picture, percent, short, strips_picture
from fedrift.report import pictures
from fedrift.report.analyses import ENDINGS, Analysis
from fedrift.report.markup import (
    bullet_list,
    escape,
    folded,
    html_table,
    image,
    methods_legend,
    paragraph,
    section,
)
from fedrift.report.numbers import NOTHING, plural
from fedrift.report.statistics.estimates import estimate
from fedrift.report.statistics.findings import Findings
from fedrift.report.tables import Table, number, text
from fedrift.storage.jsonl import Record

MOST_SETTINGS = 4  # that have pictures of their own; the table has all
MOST_BYTES = 1_500_000  # of the figures taken from run folders
NOT_DRAWABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FLOOR = 1e-6  # of the highest density that is drawn

# The few numbers of each measurement by which runs are compared, and where they stand.

COLUMNS: dict[str, dict[str, str]] = {
    "hessian": {"largest eigenvalue": "global.eigenvalues.0", "trace": "global.trace"},
    "sharpness": {"sharpness": "global.ascent", "adaptive": "global.adaptive_ascent"}
    | {"of clients": "local_mean", "discrepancy": "discrepancy"},
    "cka": {"CKA of clients, last layer": "layers.-1.between"},
    "drift": {"update length": "distance", "cosine between": "cosine_between"}
    | {"dissimilarity": "dissimilarity.ratio"},
    "classes": {"forgetting": "mean_forgetting", "bias to presence": "bias.logits_and_presence"},
    "landscape": {"highest barrier": "lines.*.barrier"},
    "predictions": {"accuracy": "models.global.accuracy"},
}


def at(found: Any, path: str) -> float:
    """The number at a path; `-1` is the last of a table, `*` the largest of all; else NaN."""
    here, _, rest = path.partition(".")
    if not path:
        return float(found) if isinstance(found, (int, float)) else math.nan
    if here == "*" and isinstance(found, Mapping):
        return max((at(one, rest) for one in found.values()), default=math.nan)  # type: ignore[reportUnknownArgumentType]
    held: Any = found
    if here.lstrip("-").isdigit():
        held = list(held.values() if isinstance(held, Mapping) else held)  # type: ignore[reportUnknownArgumentType]
        return at(held[int(here)], rest) if held else math.nan
    return at(held[here], rest) if isinstance(held, Mapping) and here in held else math.nan


# What is drawn of each measurement: curves, or a row of dots for each method.


@dataclass(frozen=True)
class Curves:
    """Of one run: the points that `points` takes from its numbers."""

    x: str
    y: str
    points: Callable[[Record], tuple[Sequence[float], Sequence[float]]]
    y_text: Callable[[float], str] = short
    whole: bool = True
    names: Callable[[Record], Sequence[str]] | None = None
    """What the whole numbers on x stand for, if not for themselves."""


@dataclass(frozen=True)
class Dots:
    """Of one run: some numbers."""

    x: str
    values: Callable[[Record], Sequence[float]]
    x_text: Callable[[float], str] = short
    zero: bool = False


def _rows(part: str, key: str) -> Callable[[Record], tuple[list[float], list[float]]]:
    """A column of what was measured during a run, over rounds."""

    def points(numbers: Record) -> tuple[list[float], list[float]]:
        rows = [row for row in numbers["rows"] if math.isfinite(at(row.get(part, {}), key))]
        return [row["round"] for row in rows], [at(row[part], key) for row in rows]

    return points


def _density(numbers: Record) -> tuple[list[float], list[float]]:
    spectrum = numbers["global"]
    x, y = smoothed(spectrum["nodes"], spectrum["weights"])
    return x.tolist(), np.log10(np.maximum(y, FLOOR * y.max())).tolist()


def _power(value: float) -> str:
    return "10" + f"{value:g}".translate(RAISED)


def _ranked(numbers: Record) -> tuple[list[float], list[float]]:
    values = numbers["global"]["eigenvalues"]
    return [float(i + 1) for i in range(len(values))], values


def _layers(numbers: Record) -> tuple[list[float], list[float]]:
    values = [one["between"] for one in numbers["layers"].values()]
    return [float(i) for i in range(len(values))], values


def _ages(numbers: Record) -> tuple[list[float], list[float]]:
    known = [(float(i), v) for i, v in enumerate(numbers["recency"]["by_age"]) if math.isfinite(v)]
    return [age for age, _ in known], [value for _, value in known]


def _single(path: str) -> Callable[[Record], list[float]]:
    return lambda numbers: [value] if math.isfinite(value := at(numbers, path)) else []


PICTURES: dict[str, tuple[Curves | Dots, ...]] = {
    "hessian": (
        Curves("rank by size", "eigenvalue of the Hessian", _ranked),
        Curves("eigenvalue of the Hessian", "spectral density", _density, _power, whole=False),
    ),
    "sharpness": (
        Dots("rise of the loss within the radius, global model", _single("global.ascent")),
        Dots(
            "rise of the loss, local models on their own data",
            lambda numbers: [one["ascent"] for one in numbers["clients"].values()],
        ),
    ),
    "landscape": (Dots("highest barrier between two models", _single("lines.*.barrier")),),
    "cka": (
        Curves(
            "layer, from input to output",
            "linear CKA between clients",
            _layers,
            names=lambda numbers: list(numbers["layers"]),
        ),
    ),
    "drift": (
        Dots("distance of local models to the global one", lambda n: n["distances"], zero=True),
        Dots("cosine of updates with their average", lambda n: n["to_average"], zero=True),
    ),
    "classes": (
        Curves("evaluated rounds since the cohort held the class", "accuracy", _ages, percent),
        Dots("forgotten at the end", _single("mean_forgetting"), percent, zero=True),
    ),
    "predictions": (Dots("test accuracy", _single("models.global.accuracy"), percent),),
    "during": (
        Curves("round", "mean distance of local models", _rows("drift", "distance")),
        Curves(
            "round", "cosine of updates with their average", _rows("drift", "cosine_to_average")
        ),
        Curves("round", "classes of the cohort above others", _rows("classes", "lift"), percent),
        Curves("round", "forgotten", _rows("classes", "forgetting"), percent),
    ),
}
"""In the order in which the page shows them."""

DRAWN = {
    "hessian": {"eigenvalues", "density"},
    "sharpness": {"rises", "discrepancy"},
    "cka": {"layers"},
    "drift": {"updates"},
    "classes": {"over-rounds", "recency", "forgetting"},
    "during": {"drift", "recency"},
}
"""Figures of run folders that the page has drawn itself."""


def models_section(findings: Findings, analyses: Sequence[Analysis]) -> str:
    """Empty if no run was looked at."""
    if not analyses:
        return ""
    known = list(PICTURES)
    names = sorted(
        dict.fromkeys(one.what for one in analyses),
        key=lambda name: (known.index(name) if name in known else len(known), name),
    )
    left = [MOST_BYTES]
    parts = [
        _measurement(what, [a for a in analyses if a.what == what], findings, left)
        for what in names
    ]
    about = (
        "Made by fedrift analyse from saved weights, over all seeds that were analysed. A dot is a "
        "client or a seed, the mark beside it the mean; a line is the mean of the seeds, the band "
        "their range."
    )
    looked_at = {one.method for one in analyses}
    places = [i for i, method in enumerate(findings.methods) if method in looked_at]
    legend = methods_legend(
        [findings.methods[i] for i in places],
        lambda i: pictures.colour(places[i]),
        lambda i: pictures.dash(places[i]),
        switches=False,
    )
    return section("inside", "Inside the models", paragraph(about), legend, *parts)


def _measurement(
    what: str, analyses: Sequence[Analysis], findings: Findings, left: list[int]
) -> str:
    pieces = [f"<h3>{escape(analyses[0].title)}</h3>"]
    if len(analyses) == 1:
        pieces.append(bullet_list(analyses[0].sentences))
    table = over_seeds(what, analyses, len(findings.settings) > 1)
    pieces.append(html_table(table) if table is not None and len(analyses) > 1 else "")
    pieces.append(_drawn(what, analyses, findings))
    first = {(one.method, one.setting): one for one in reversed(analyses)}
    shown = [one for one in analyses if first[one.method, one.setting] is one]
    if len(analyses) == 1:
        return "".join([*pieces, _own_figures(shown[0], left)])
    each = [folded(one.run, bullet_list(one.sentences), _own_figures(one, left)) for one in shown]
    return "".join([*pieces, folded("Run by run, first seed of each", *each, is_long=True)])


def over_seeds(what: str, analyses: Sequence[Analysis], several: bool) -> Table | None:
    """The numbers that runs are compared by: mean and standard deviation over seeds."""
    columns = COLUMNS.get(what)
    if columns is None:
        return None
    groups: dict[tuple[str, str], list[Analysis]] = {}
    for one in analyses:
        groups.setdefault((one.setting, one.method), []).append(one)
    rows = [
        (
            text(method),
            *([text(setting)] if several else []),
            *(_mean([at(one.numbers, path) for one in group]) for path in columns.values()),
            number(str(len(group)), len(group)),
        )
        for (setting, method), group in groups.items()
    ]
    headings = ("method", *(["setting"] if several else []), *columns, "seeds")
    caption = "Mean ± standard deviation over the seeds that were analysed."
    return Table(f"inside-{what}", caption, headings, tuple(rows), texts=2 if several else 1)


def _mean(values: Sequence[float]) -> Any:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return text(NOTHING)
    found = estimate(known)
    return number(_with_spread(found.mean, found.std).replace("-", MINUS), found.mean)


def _with_spread(mean: float, std: float) -> str:
    """`8.2 ± 6.4`: as many digits of the mean as its spread leaves to tell."""
    if math.isnan(std):
        return f"{mean:.4g}"
    places = 1 - math.floor(math.log10(std)) if std > 0 else 0
    if std == 0 or places > 6 or std >= 1e5:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:.{max(0, places)}f} ± {std:.{max(0, places)}f}"


def _drawn(what: str, analyses: Sequence[Analysis], findings: Findings) -> str:
    """A row for each plot with a picture for each setting; one row of all plots of one setting."""
    settings = list(dict.fromkeys(one.setting for one in analyses))
    rows: list[list[str]] = []
    for plot in PICTURES.get(what, ()):
        made: list[str] = []
        for setting in settings[:MOST_SETTINGS]:
            group = [one for one in analyses if one.setting == setting]
            drawn = _picture(plot, group, findings.methods)
            named = f"<figcaption>{escape(setting)}</figcaption>" if len(settings) > 1 else ""
            made += [f"<figure>{named}{drawn}</figure>"] if drawn else []
        rows.append(made)
    if len(settings) == 1:
        rows = [[figure for row in rows for figure in row]]
    more = len(settings) - MOST_SETTINGS
    note = paragraph(f"{plural(more, 'more setting')}: see the table.") if more > 0 else ""
    blocks = (f'<div class="panels pairs">{"".join(row)}</div>' for row in rows if row)
    return "".join(blocks) + note


def _picture(plot: Curves | Dots, group: Sequence[Analysis], methods: Sequence[str]) -> str:
    """Empty where the numbers are of another version, or were not measured."""
    try:
        if isinstance(plot, Dots):
            return _dots(plot, group, methods)
        return _curves(plot, group, methods)
    except NOT_DRAWABLE:
        return ""


def _of(group: Sequence[Analysis], methods: Sequence[str]) -> list[tuple[int, str, list[Analysis]]]:
    found = [(i, m, [one for one in group if one.method == m]) for i, m in enumerate(methods)]
    return [one for one in found if one[2]]


def _dots(plot: Dots, group: Sequence[Analysis], methods: Sequence[str]) -> str:
    rows = [
        (method, pictures.colour(i), [v for one in seeds for v in plot.values(one.numbers)])
        for i, method, seeds in _of(group, methods)
    ]
    rows = [row for row in rows if row[2]]
    if not rows:
        return ""
    return strips_picture(rows, about=plot.x, x_title=plot.x, x_text=plot.x_text, zero=plot.zero)


def _curves(plot: Curves, group: Sequence[Analysis], methods: Sequence[str]) -> str:
    lines: list[Line] = []
    for i, method, seeds in _of(group, methods):
        curves = [plot.points(one.numbers) for one in seeds]
        curves = [(list(x), list(y)) for x, y in curves if len(x)]
        if not curves:
            continue
        style = (method, pictures.colour(i))
        shortest = min(len(x) for x, _ in curves)
        if all(x[:shortest] == curves[0][0][:shortest] for x, _ in curves):
            values = np.array([y[:shortest] for _, y in curves])
            band = (values.min(axis=0).tolist(), values.max(axis=0).tolist())
            mean = values.mean(axis=0).tolist()
            x = curves[0][0][:shortest]
            lines.append(Line(*style, x, mean, band if len(curves) > 1 else None, pictures.dash(i)))
        else:
            lines += [Line(*style, x, y, None, pictures.dash(i)) for x, y in curves]
    if all(len(line.x) < 2 for line in lines):  # a point is no curve
        return ""
    names = None if plot.names is None else plot.names(group[0].numbers)
    return lines_picture(
        lines,
        about=f"{plot.y} by {plot.x}",
        x_title=plot.x,
        y_title=plot.y,
        whole=plot.whole,
        x_text=short if names is None else lambda value: _name(names, value),
        y_text=plot.y_text,
        height=290,
    )


def _name(names: Sequence[str], value: float) -> str:
    return names[int(value)] if value == int(value) and 0 <= value < len(names) else ""


def _own_figures(one: Analysis, left: list[int]) -> str:
    """The figures that stand in the run folder and are not drawn above, while there is room."""
    images: list[str] = []
    for name, path in one.figures.items():
        if name in DRAWN.get(one.what, ()):
            continue
        try:
            content = read_plain(path)
        except OSError:
            continue
        if len(content) > left[0]:
            images.append(paragraph(f"{name.replace('-', ' ')}: see {path}"))
            continue
        left[0] -= len(content)
        about = f"{one.title} of {one.run}: {name.replace('-', ' ')}"
        images.append(image(content, ENDINGS[path.suffix], about))
    return f'<div class="pictures">{"".join(images)}</div>' if images else ""
