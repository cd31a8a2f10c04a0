"""What a run notes of every round beside its test result: training, own metrics, logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedrift.figures.svg import Line, lines_picture, percent, short
from fedrift.report import pictures
from fedrift.report.markup import escape, folded, methods_legend, paragraph, section
from fedrift.report.statistics.findings import Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Floats, Measured
from fedrift.storage.run_folder import OPENINGS

TRAIN = "train_"
MOST_SETTINGS = 4  # that have pictures; the frame has all
MOST_PANELS = 12  # of a setting
DOTTED = "2 3"
Series = Callable[[Measured], Floats | None]


def noted(findings: Findings) -> list[str]:
    """Names of own metrics and of what algorithms log, in the order in which they first come."""
    names = dict.fromkeys(name for run in findings.grouped.runs for name in run.logged)
    return [n for n in names if not n.startswith(OPENINGS)]


def training_section(findings: Findings) -> str:
    """Training and test side by side, and the gap between them; empty without either."""
    of = "accuracy" if findings.has_accuracy else "loss"
    known = [run for run in findings.grouped.runs if f"{TRAIN}{of}" in run.logged]
    if not known:
        return ""
    test: Series = (lambda run: run.accuracy) if of == "accuracy" else (lambda run: run.loss)
    gap = "train − test, in points" if of == "accuracy" else "test − train"
    words, lead = (percent, _points) if of == "accuracy" else (short, short)
    figures: list[str] = []
    for setting in findings.settings[:MOST_SETTINGS]:
        both = [
            *_lines(findings, setting, _column(f"{TRAIN}{of}"), DOTTED),
            *_lines(findings, setting, test),
        ]
        between = _lines(findings, setting, lambda run: _gap(run, of))
        figures += [
            _figure(findings, setting, f"train (dotted) and test {of}", both, words),
            _figure(findings, setting, f"generalisation gap: {gap}", between, lead),
        ]
        if of == "accuracy":
            losses = [
                *_lines(findings, setting, _column(f"{TRAIN}loss"), DOTTED),
                *_lines(findings, setting, lambda run: run.loss),
            ]
            figures.append(
                _figure(findings, setting, "train (dotted) and test loss", losses, short)
            )
        ends = [
            *_lines(findings, setting, _column(f"{TRAIN}loss_before"), DOTTED),
            *_lines(findings, setting, _column(f"{TRAIN}loss_after")),
        ]
        title = "local loss before (dotted) and after a visit"
        figures.append(_figure(findings, setting, title, ends, short))
    about = (
        "Training is what clients report of their own minibatches, in training mode and while the "
        "model moves; test is the server's model after the round."
    )
    return section(
        "training", "Training and test", paragraph(about), _legend(findings), _grid(figures)
    )


def noted_section(findings: Findings) -> str:
    """A panel for each own metric and each number that an algorithm logs."""
    names = noted(findings)
    if not names:
        return ""
    figures = [
        _figure(findings, setting, name, _lines(findings, setting, _column(name)), _words(name))
        for setting in findings.settings[:MOST_SETTINGS]
        for name in names[:MOST_PANELS]
    ]
    about = "Own metrics, and what algorithms log of themselves, in every evaluated round."
    more = names[MOST_PANELS:]
    rest = folded("Columns without a panel", paragraph(", ".join(more))) if more else ""
    return section(
        "noted", "Noted by the way", paragraph(about), _legend(findings), _grid(figures), rest
    )


def _points(share: float) -> str:
    """Between two accuracies: `−4`."""
    return short(100 * share)


def _words(name: str) -> Callable[[float], str]:
    """How values of a column are written: accuracies in percent, as everywhere else."""
    return percent if name.endswith("accuracy") else short


def _column(name: str) -> Series:
    return lambda run: run.logged.get(name)


def _gap(run: Measured, of: str) -> Floats | None:
    train, test = run.logged.get(f"{TRAIN}{of}"), run.accuracy if of == "accuracy" else run.loss
    if train is None or test is None:
        return None
    return train - test if of == "accuracy" else test - train


def _lines(findings: Findings, setting: Setting, series: Series, dash: str = "") -> list[Line]:
    found: list[Line] = []
    for one in findings.by_setting[setting]:
        place = findings.methods.index(one.method)
        usual = dash or pictures.dash(place)
        line = pictures.mean_line(one, pictures.colour(place), series, usual)
        found += [] if line is None else [line]
    return found


def _figure(
    findings: Findings,
    setting: Setting,
    title: str,
    lines: Sequence[Line],
    words: Callable[[float], str],
) -> str:
    if not lines:
        return ""
    where = f", {setting.label}" if len(findings.settings) > 1 else ""
    picture = lines_picture(
        lines,
        about=title + where,
        x_title="round",
        y_title="",
        whole=True,
        y_text=words,
        height=240,
    )
    return f"<figure><figcaption>{escape(title + where)}</figcaption>{picture}</figure>"


def _grid(figures: Sequence[str]) -> str:
    return f'<div class="panels pairs">{"".join(figures)}</div>'


def _legend(findings: Findings) -> str:
    return methods_legend(findings.methods, pictures.colour, pictures.dash, switches=False)
