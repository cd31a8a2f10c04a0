"""A report's curves, differences and clients as figure files; `fedrift.figures` draws analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.figures.style import COLOURS, new_figure, percent_mark, save, time_ticks
from fedrift.report.statistics.costs import client_accuracy
from fedrift.report.statistics.estimates import quality_series
from fedrift.report.statistics.findings import Finding, Findings
from fedrift.report.statistics.grouping import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STYLES = ("-", "--", ":", "-.")
MARKS = 5  # with their units, which would run into each other if there were more
MOST_PANELS = 6  # side by side; further settings go to further figures
SHARES = np.linspace(0, 1, 101)
LABELS = {
    "rounds": "round",
    "bytes": "bytes sent",
    "gradients": "gradient evaluations",
    "seconds": "time on the machine of the run",
}


def draw(findings: Findings, stem: Path, endings: Sequence[str]) -> list[Path]:
    """Curves over every axis, differences to the baseline, expected accuracy of the clients."""
    files: list[Path] = []
    settings = findings.settings
    pages = [settings[i : i + MOST_PANELS] for i in range(0, len(settings), MOST_PANELS)]
    for number, page in enumerate(pages, start=1):
        part = f"-{number}" if len(pages) > 1 else ""
        drawings: dict[str, Figure] = {
            f"over-{axis}": _curves(findings, page, axis) for axis in LABELS
        }
        if any(one.spread is not None for setting in page for one in findings.by_setting[setting]):
            drawings["clients"] = _clients(findings, page)
        if any(one.difference is not None for s in page for one in findings.by_setting[s]):
            drawings["differences"] = _differences(findings, page)
        for name, figure in drawings.items():
            for ending in endings:
                files.append(save(figure, stem.with_name(f"{stem.name}-{name}{part}.{ending}")))
    return files


def _style(findings: Findings, method: str) -> dict[str, Any]:
    place = findings.methods.index(method)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STYLES[place // len(COLOURS) % len(STYLES)],
    }


def _panels(findings: Findings, settings: Sequence[Setting]) -> tuple[Figure, list[Axes]]:
    figure, axes = new_figure(len(settings))
    for axis, setting in zip(axes, settings, strict=True):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if len(findings.settings) > 1:
            axis.set_title(setting.label, fontsize=10, parse_math=False)
    return figure, axes


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One for all panels, below them, so that it hides no curve."""
    lines: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, handle)
    if len(lines) < 2:
        return
    legend = figure.legend(
        lines.values(),
        lines.keys(),
        loc="outside lower center",
        ncols=min(len(lines), 2 + 2 * len(axes)),
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _curves(findings: Findings, settings: Sequence[Setting], axis: str) -> Figure:
    """Mean of the seeds as far as all of them go, with their range."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure, axes = _panels(findings, settings)
    for panel, setting in zip(axes, settings, strict=True):
        for one in findings.by_setting[setting]:
            _line(panel, one, axis, _style(findings, one.method))
        is_simulated = axis == "seconds" and all(r.has_clock for r in findings.grouped.runs)
        panel.set_xlabel("time of the simulated clock" if is_simulated else LABELS[axis])
        if axis == "seconds":
            time_ticks(panel)
        if axis in ("bytes", "gradients"):
            panel.xaxis.set_major_locator(MaxNLocator(MARKS))
            panel.xaxis.set_major_formatter(EngFormatter("B" if axis == "bytes" else ""))
        if findings.has_accuracy:
            panel.yaxis.set_major_formatter(percent_mark)
    axes[0].set_ylabel("test accuracy" if findings.has_accuracy else "test loss")
    _legend(figure, axes)
    return figure


def _line(panel: Axes, one: Finding, axis: str, style: dict[str, Any]) -> None:
    runs = [run for run in one.group.runs if not run.is_blank]
    if not runs:
        return
    shortest = min(len(run.rounds) for run in runs)
    x = np.mean([getattr(run, axis)[:shortest] for run in runs], axis=0)
    y = np.array([quality_series(run)[:shortest] for run in runs])
    if not np.isfinite(x).all():  # an older version did not count it
        return
    panel.plot(x, y.mean(axis=0), label=one.method, linewidth=1.8, **style)
    if len(y) > 1:
        colour = style["color"]
        panel.fill_between(x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.16, lw=0)
    for run in runs:
        if run.status == "diverged":
            panel.plot(getattr(run, axis)[-1], quality_series(run)[-1], "x", color=style["color"])


def _clients(findings: Findings, settings: Sequence[Setting]) -> Figure:
    """Clients from the worst to the best, mean over seeds."""
    figure, axes = _panels(findings, settings)
    for panel, setting in zip(axes, settings, strict=True):
        for one in findings.by_setting[setting]:
            accuracies = [client_accuracy(run, findings.last) for run in one.group.runs]
            known = [np.quantile(values, SHARES) for values in accuracies if values is not None]
            if known:
                style = _style(findings, one.method)
                mean = np.mean(known, axis=0)
                panel.plot(100 * SHARES, 100 * mean, label=one.method, linewidth=1.8, **style)
        panel.set_xlabel("clients, from worst to best (%)")
    axes[0].set_ylabel("expected accuracy (%)")
    _legend(figure, axes)
    return figure


def _differences(findings: Findings, settings: Sequence[Setting]) -> Figure:
    """Paired differences to the baseline with their 95 % intervals."""
    figure, axes = _panels(findings, settings)
    scale = 100 if findings.has_accuracy else 1
    methods = [method for method in findings.methods if method != findings.baseline]
    figure.set_size_inches(figure.get_figwidth(), 1.5 + 0.32 * len(methods))
    for panel, setting in zip(axes, settings, strict=True):
        panel.axvline(0, color="grey", linewidth=1)
        for place, method in enumerate(methods):
            one = findings.get(method, setting)
            if one is None or one.difference is None:
                continue
            shift, colour = one.difference, _style(findings, method)["color"]
            panel.plot(scale * shift.mean, place, "o", color=colour)
            if shift.has_interval:
                panel.hlines(place, scale * shift.low, scale * shift.high, color=colour, lw=2)
        unit = " (points)" if findings.has_accuracy else ""
        panel.set_xlabel(f"difference to {findings.baseline}{unit}, 95 % interval")
        panel.xaxis.label.set_parse_math(False)
        panel.set_yticks(range(len(methods)), methods, parse_math=False)
        panel.set_ylim(len(methods) - 0.5, -0.5)
    return figure
