"""`fedrift conform`: does an algorithm do what it says? For ours and for the reader's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.cli.console import console, one_line
from fedrift.errors import InputError
from fedrift.report.numbers import seconds_text

if TYPE_CHECKING:
    from fedrift.conform.report import Cell, Report


MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("–", "dim")}
SHORT = {"identities": "ident", "invariants": "invar", "isolation": "isol", "backends": "back"}
LEGEND = (
    "convergence: where it ends on a problem whose minimum is known: there, at FedAvg's point, or "
    "so far off; “moving”: not yet at rest."
)
TOLD = "convergence"  # the column that says what was seen, not only whether it is right


def conform(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAMES]...",
            show_default=False,
            help="Algorithms, or your own as module:Class,key=value; all of ours unless said.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="A model by name, such as gpt:layers=1,width=8,heads=2: what holds for any "
            "algorithm is checked there (on small images, or on tokens).",
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="An adapter, such as lora:rank=2: what holds for any algorithm is checked on "
            "it, and besides what holds for an adapter.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON list on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Check algorithms against golden numbers, identities, invariants and the wire.

    With module:Class it checks an algorithm of your own: everything that holds for any. Its
    options follow as everywhere: module:Class,mu=0.3.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift conform[/cyan]
    [cyan]fedrift conform scaffold feddyn[/cyan]
    [cyan]fedrift conform my_module:MyAlgorithm[/cyan]
    [cyan]fedrift conform scaffold --adapter lora:rank=2[/cyan]
    """
    chosen = list(dict.fromkeys(names or _all()))
    _check_names(chosen)
    _check_problem(model, adapter)
    started = time.perf_counter()
    watch = _Watch(len(chosen), silent=as_json or quiet)
    try:
        from fedrift.conform.survey import survey

        reports = survey(chosen, watch.done, model, adapter)
    finally:
        watch.close()
    if not any(report.is_checked for report in reports):
        raise InputError(next(iter(reports[0].cells.values())).text)
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump([report.row() for report in reports], indent=2))
    else:
        _show(reports, time.perf_counter() - started)
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def _all() -> list[str]:
    from fedrift.config import algorithms

    return list(algorithms.names())


def _check_names(chosen: Sequence[str]) -> None:
    """Refuses what cannot be named, before torch is imported."""
    from fedrift.config import algorithms
    from fedrift.grammar import parse

    for text in chosen:
        named = parse(text, "algorithm")
        is_bare = str(named) == named.name  # a bare wrapper is checked around something
        if not (is_bare and named.name in algorithms.names()):
            algorithms.check(named)


def _check_problem(model: str | None, adapter: str | None) -> None:
    """Refuses a model or an adapter that is none, before torch is imported."""
    from fedrift.config.adapters import parse_adapter
    from fedrift.config.models import choose_model

    if adapter is not None:
        parse_adapter(adapter)
    if model is not None and choose_model(model).attribute is not None:
        raise InputError(f"model '{model}': conform knows models of ours; use mlp, cnn, gpt, lstm")


class _Watch:
    """Shows how far it has come: a bar on a terminal, a line for each algorithm elsewhere."""

    def __init__(self, total: int, *, silent: bool) -> None:
        self._screen, self._silent, self._total, self._done = console(errors=True), silent, total, 0
        self._bar: Any = None
        if not silent and self._screen.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            shown = TextColumn("{task.fields[said]}")
            self._bar = Progress(MofNCompleteColumn(), BarColumn(), shown, console=self._screen)
            self._task = self._bar.add_task("", total=total, said="")
            self._bar.start()

    def done(self, report: Report) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, said=report.name)
        elif not self._silent:
            mark = MARKS[report.passed if report.is_checked else None][0]
            took = seconds_text(report.seconds)
            self._screen.print(f"{self._done}/{self._total} {mark} {report.name} {took}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _show(reports: Sequence[Report], seconds: float) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    columns = list(reports[0].cells)
    needed = sum(map(len, columns)) + 2 * len(columns) + 40
    table = Table(box=None, padding=(0, 1), header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for column in columns:
        head = column if screen.width >= needed else SHORT.get(column, column)
        table.add_column(head, justify="left" if column == TOLD else "center", no_wrap=True)
    for report in reports:
        cells = [_cell(column, report.cells[column]) for column in columns]
        table.add_row(Text(report.name), *cells)
    screen.print(table)
    for failure in (line for report in reports for line in report.failures):
        screen.print(Text.assemble(("✗ ", "bold red"), one_line(failure)))
    checked = [report for report in reports if report.is_checked]
    right = sum(report.passed for report in checked)
    screen.print(
        f"\n{right} of {len(checked)} as they should be, in {seconds_text(seconds)}. "
        "✓ holds, ✗ does not, – does not apply."
    )
    for report in reports:
        if not report.is_checked:
            screen.print(f"not {report.name}: {next(iter(report.cells.values())).text}")
    if any(report.cells[TOLD].passed is not None for report in reports if TOLD in columns):
        screen.print(LEGEND, style="dim")
    examples = [report.text for report in reports if report.text != report.name]
    if examples:
        screen.print(f"Checked as {', '.join(examples)}.", style="dim")


def _cell(column: str, cell: Cell) -> Any:
    from rich.text import Text

    mark, style = MARKS[cell.passed]
    words = cell.text if column == TOLD and cell.passed else ""
    return Text.assemble((mark, style), f" {words}" if words else "")
