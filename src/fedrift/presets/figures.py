"""The figures a preset asks for: curves of its comparison, and analyses of its models.

`fedrift.report.figures` draws those of a report, `fedrift.figures` those of single analyses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.analysis.case import Options
from fedrift.analysis.examine import examine
from fedrift.analysis.saved import Loader
from fedrift.config.grid import slug
from fedrift.core.isolation import one_thread
from fedrift.figures import style
from fedrift.figures.style import COLOURS, save
from fedrift.presets.preset import Part
from fedrift.report.statistics.estimates import quality_series
from fedrift.report.statistics.findings import Findings
from fedrift.report.statistics.measured import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ENDINGS = ("png", "svg")
LINES = ("-", "--", ":")  # of the methods beyond the number of colours
LABELS = {
    "bytes": "bytes sent",
    "gradients": "gradient evaluations",
    "seconds": "time on the simulated clock",
}
WIDE = 6.4  # inches of a single panel
MARKS = 5  # with their units, which would run into each other if there were more


def draw(findings: Findings, folder: Path, names: Sequence[str]) -> list[str]:
    """Writes NAME.png and NAME.svg for each; gives the names."""
    for name in names:
        figure = FIGURES[name](findings)
        for ending in ENDINGS:
            save(figure, folder / f"{name}.{ending}")
    return list(names)


def _rounds(findings: Findings) -> Figure:
    return _over(findings, "rounds")


def _bytes(findings: Findings) -> Figure:
    return _over(findings, "bytes")


def _time(findings: Findings) -> Figure:
    return _over(findings, "seconds")


def _loss(findings: Findings) -> Figure:
    """A logarithmic axis shows small differences of small losses."""
    figure = _over(findings, "rounds", loss=True)
    for axis in figure.axes:
        style.log_heights(axis)
    return figure


def _loss_bytes(findings: Findings) -> Figure:
    """Both axes logarithmic: who exchanges seldom sends a small part of what others send."""
    from matplotlib.ticker import EngFormatter

    figure = _over(findings, "bytes", loss=True)
    for axis in figure.axes:
        style.log_heights(axis)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(EngFormatter("B"))
    return figure


def _loss_gradients(findings: Findings) -> Figure:
    """Over the work done, where rounds of the methods are of different length."""
    figure = _over(findings, "gradients", loss=True)
    for axis in figure.axes:
        style.log_heights(axis)
    return figure


def _over(findings: Findings, cost: str, loss: bool = False) -> Figure:
    """One panel for each setting, one line for each method."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = style.empty_figure()
    axes = style.panels(
        figure, len(findings.settings), width=WIDE if len(findings.settings) == 1 else 4.6
    )
    for axis, setting in zip(axes, findings.settings, strict=True):
        for one in findings.by_setting[setting]:
            runs = [run for run in one.group.runs if not run.is_blank]
            values = [run.loss if loss else quality_series(run) for run in runs]
            place = findings.methods.index(one.method)
            _seeds(axis, [getattr(r, cost) for r in runs], values, one.method, place)
        _label(axis, setting.label if len(axes) > 1 else "", findings.has_accuracy and not loss)
        if cost in LABELS:
            axis.set_xlabel(LABELS[cost])
        if cost == "seconds":
            style.time_ticks(axis, MARKS)
        if cost == "bytes":
            axis.xaxis.set_major_locator(MaxNLocator(MARKS))
            axis.xaxis.set_major_formatter(EngFormatter("B"))
    style.legend(figure, axes)
    return figure


def _settings(findings: Findings) -> Figure:
    """One panel for each method, one line for each setting."""
    figure = style.empty_figure()
    axes = style.panels(figure, len(findings.methods))
    for axis, method in zip(axes, findings.methods, strict=True):
        for place, setting in enumerate(findings.settings):
            one = findings.get(method, setting)
            if one is not None:
                runs = one.group.runs
                rounds, values = [r.rounds for r in runs], [quality_series(r) for r in runs]
                _seeds(axis, rounds, values, setting.label, place)
        _label(axis, method if len(axes) > 1 else "", findings.has_accuracy)
    style.legend(figure, axes)
    return figure


def _seeds(
    axis: Axes, costs: Sequence[Any], values: Sequence[Floats], label: str, place: int
) -> None:
    """Mean of the seeds as far as all of them go, with their range."""
    shortest = min(map(len, values), default=0)
    if not shortest:
        return
    curves = np.array([one[:shortest] for one in values])
    x = np.mean([one[:shortest] for one in costs], axis=0)
    colour, line = style.colour_of(place), LINES[place // len(COLOURS) % len(LINES)]
    mark = "o" if shortest == 1 else None  # one point is no line
    axis.plot(x, curves.mean(axis=0), color=colour, ls=line, marker=mark, ms=5, label=label, lw=1.6)
    if len(curves) > 1:
        low, high = curves.min(axis=0), curves.max(axis=0)
        axis.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)


def _label(axis: Axes, title: str, has_accuracy: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_title(title, fontsize=10, parse_math=False)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("test accuracy" if has_accuracy else "test loss")
    if has_accuracy:
        axis.yaxis.set_major_formatter(style.percent_mark)


def _clients(findings: Findings) -> Figure:
    """One panel for each method, one line for each client: accuracy on the classes it holds."""
    runs = [one.group.runs[0] for one in findings.by_setting[findings.settings[0]]]
    figure = style.empty_figure()
    axes = style.panels(figure, len(runs))
    for axis, one in zip(axes, findings.by_setting[findings.settings[0]], strict=True):
        run = one.group.runs[0]
        shares = None if run.clients is None else run.clients.shares
        if shares is not None and run.classes is not None:
            for client, share in enumerate(shares):
                classes = ", ".join(str(c) for c in np.flatnonzero(share))
                label = f"client {client} ({classes})" if share.astype(bool).sum() <= 3 else ""
                axis.plot(
                    run.rounds,
                    run.classes @ share,
                    color=style.colour_of(client),
                    label=label or f"client {client}",
                    linewidth=1.4,
                )
        if run.accuracy is not None:
            axis.plot(run.rounds, run.accuracy, color="grey", ls="--", label="all", linewidth=1.8)
        _label(axis, one.method, True)
        axis.set_ylim(-0.02, 1.02)
    style.legend(figure, axes)
    return figure


def _partition(findings: Findings) -> Figure:
    """Who holds how many samples of which class, in the first seed of each setting."""
    figure = style.empty_figure()
    axes = style.panels(figure, len(findings.settings), height=2.9)
    for axis, setting in zip(axes, findings.settings, strict=True):
        clients = findings.by_setting[setting][0].group.runs[0].clients
        if clients is not None and clients.counts is not None:
            counts = clients.counts.T
            top = float(counts.max())
            style.colour_table(axis, counts, "samples", low=0, high=top, map="Blues")
        axis.set_title(setting.partition, fontsize=10, parse_math=False)
        axis.set_xlabel("client")
        axis.set_ylabel("class")
    return figure


FIGURES: dict[str, Callable[[Findings], Figure]] = {
    "rounds": _rounds,
    "loss": _loss,
    "loss-bytes": _loss_bytes,
    "loss-gradients": _loss_gradients,
    "bytes": _bytes,
    "time": _time,
    "settings": _settings,
    "clients": _clients,
    "partition": _partition,
}


# Figures of `fedrift.analysis`, of the first seed of each method.

EVERYBODY = 0


def analysis_figures(findings: Findings, folder: Path, part: Part) -> list[str]:
    """Names of the figures, which are copied beside those of the comparison."""
    loader, names = Loader(), list[str]()
    for one in findings.all:
        run = Path(one.group.runs[0].name)
        case = loader.case(run, one.method)
        with one_thread():
            for seen in examine(case, run, part.analyse, Options(clients=EVERYBODY), ENDINGS):
                for file in seen.files:
                    if file.suffix[1:] in ENDINGS:
                        name = f"{file.stem}-{slug(one.method)}"
                        shutil.copyfile(file, folder / f"{name}{file.suffix}")
                        names += [name] if name not in names else []
    return names
