"""Makes measurements of runs and keeps each as soon as it is finished: numbers, then figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from fedrift.analysis import cka, classes, drift, hessian, landscape, predictions
from fedrift.analysis.case import Case, DrawTogether, Finding, Measure, NotMeasured, Options
from fedrift.analysis.saved import analysis_folder, write_json
from fedrift.analysis.sharpness import measure as measure_sharpness
from fedrift.core.plain_files import write_file
from fedrift.figures.style import drawn, empty_figure
from fedrift.storage.jsonl import Record

MEASURES: dict[str, Measure] = {
    "hessian": hessian.measure,
    "sharpness": measure_sharpness,
    "cka": cka.measure,
    "drift": drift.measure,
    "classes": classes.measure,
    "landscape": landscape.measure,
    "predictions": predictions.measure,
}
"""What `fedrift analyse --what` names."""

ENDINGS = ("svg", "png", "pdf")
REPORTED = "svg"  # the form that reports show


@dataclass(frozen=True)
class Examined:
    """One measurement of one run: what was found and written, or why there is nothing."""

    run: str
    what: str
    finding: Finding | None
    files: tuple[Path, ...] = ()
    why: str = ""


def examine(
    case: Case, folder: Path, what: Sequence[str], options: Options, endings: Sequence[str]
) -> Iterator[Examined]:
    """One after another; what has been given out is on disk."""
    for name in what:
        try:
            finding = MEASURES[name](case, options)
        except NotMeasured as reason:
            yield Examined(case.name, name, None, why=str(reason))
            continue
        yield Examined(
            case.name, name, finding, write_finding(case, folder, name, finding, options, endings)
        )


def write_finding(
    case: Case, folder: Path, what: str, finding: Finding, options: Options, endings: Sequence[str]
) -> tuple[Path, ...]:
    """The figures first: the numbers say that all is there. Reports show the svg."""
    inside = analysis_folder(folder)
    wanted = tuple(dict.fromkeys((*endings, REPORTED)))
    files = [
        draw_file(draw, inside / f"{what}-{name}.{ending}")
        for name, draw in finding.figures.items()
        for ending in wanted
    ]
    for old in inside.glob(f"{what}-*.*"):  # of an earlier time: they show other numbers
        if old not in files and old.suffix[1:] in ENDINGS:
            old.unlink()
    record: Record = {
        "what": what,
        "run": case.name,
        "title": finding.title,
        "said": list(finding.sentences),
        "notes": list(case.notes),
        "options": {f.name: getattr(options, f.name) for f in fields(options) if f.name != "watch"},
        "figures": list(finding.figures),
        "numbers": finding.numbers,
    }
    return (write_json(inside / f"{what}.json", record), *files)


def write_common_figures(
    findings: Mapping[str, Mapping[str, Finding]], folder: Path, endings: Sequence[str]
) -> list[Path]:
    """Figures that compare runs; `findings` is by what was measured, then by run."""
    files: list[Path] = []
    for what, by_run in findings.items():
        if len(by_run) < 2:
            continue
        numbers = {run: finding.numbers for run, finding in by_run.items()}
        pictures: dict[str, DrawTogether] = {}
        for finding in by_run.values():
            pictures |= finding.together
        shared = {
            name: draw
            for name, draw in pictures.items()
            if all(name in finding.together for finding in by_run.values())
        }
        for name, draw in shared.items():
            for ending in endings:
                path = folder / f"{what}-{name}.{ending}"
                files.append(draw_file(lambda figure, d=draw, n=numbers: d(figure, n), path))
    return files


def draw_file(draw: object, path: Path) -> Path:
    """One figure as a file; the same numbers give the same bytes."""
    from matplotlib import rc_context

    assert callable(draw)
    figure = empty_figure()
    draw(figure)
    ending = path.suffix[1:]
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "fedrift", "pdf.fonttype": 42}):
        write_file(path, drawn(figure, ending, dated.get(ending)))
    return path
