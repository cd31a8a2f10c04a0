"""`fedrift report`: a page, tables and figures from run folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.errors import InputError

if TYPE_CHECKING:
    from fedrift.report import Written
    from fedrift.report.methods import Explainer


WHAT, OUTPUT = "What is compared", "Output"


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS...", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The page.", rich_help_panel=OUTPUT)
    ] = Path("report.html"),
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Accuracy whose cost is compared, such as 0.9 (what the baseline ends with).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The method others are compared to (fedavg, else the first).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Evaluated rounds at the end that are averaged (a tenth, at most 100).",
            rich_help_panel=WHAT,
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="md,latex,csv", help="Tables too.", rich_help_panel=OUTPUT
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(metavar="pdf,png,svg", help="Figures for papers too.", rich_help_panel=OUTPUT),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Heading.", rich_help_panel=OUTPUT)
    ] = None,
    explained: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show how the algorithms work, too: a picture of a round of each.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The figures as one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Compare finished runs in one page that opens anywhere and needs no network.

    RUNS are run folders, comparison folders, or folders of these.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift report runs/compare -o report.html[/cyan]
    [cyan]fedrift report runs/a runs/b --target 0.9 --baseline fedavg --last 10[/cyan]
    [cyan]fedrift report runs/compare --format md,latex --figures pdf[/cyan]
    """
    from fedrift.report import write

    if not runs:
        raise InputError("name the runs: run folders, comparison folders, or folders of these")
    written = write(
        runs,
        out,
        target=_share(target),
        baseline=baseline,
        last=_whole(last),
        format=_names(formats),
        figures=_names(figures),
        title=title,
        explain=_explainer() if explained else None,
    )
    _show(written, as_json)


def _explainer() -> Explainer:
    from fedrift.explain import workings

    return workings


def _names(text: str | None) -> list[str]:
    return [] if text is None else [name.strip().lower() for name in text.split(",")]


def _share(text: str | None) -> float | None:
    """`0.9` or `90%`."""
    if text is None:
        return None
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise InputError(f"target must be an accuracy such as 0.9 or 90%, not '{text}'") from None


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"last must be a whole number of at least 1, not '{text}'") from None


def _show(written: Written, as_json: bool) -> None:
    from fedrift.cli.console import console, one_line
    from fedrift.report.numbers import bytes_text

    errors = console(errors=True)
    for problem in written.problems:
        errors.print(f"note: {one_line(problem)}")
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump(_object(written)))
        return
    for file in written.files:
        console().print(f"{file}  {bytes_text(file.stat().st_size)}")


def _object(written: Written) -> dict[str, Any]:
    from fedrift.report.statistics.findings import as_records

    return {
        "files": [str(file) for file in written.files],
        "baseline": written.findings.baseline,
        "problems": list(written.problems),
        "results": as_records(written.findings),
    }
