"""`fedrift timeline`: a run on its simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.errors import InputError

if TYPE_CHECKING:
    from fedrift.report.timeline import Pace


USUAL = 3  # rounds that are drawn unless said


def timeline(
    run: Annotated[Path, typer.Argument(help="A run folder made with --devices.")],
    rounds: Annotated[
        str | None,
        typer.Option(help="Which rounds to draw, such as 4 or 2-5; the first three unless said."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The picture: who received, computed, sent, came too late.")
    ] = None,
) -> None:
    """Say how long clients took and how often they counted; draw a few rounds."""
    from fedrift.report.numbers import plural, seconds_text
    from fedrift.storage.run_record import load

    asked = None if rounds is None else _rounds(rounds)
    record = load(run)
    made = max((row["round"] for row in record.ledger), default=0)
    first, last = asked or (1, max(1, min(USUAL, made)))
    if last > made and asked is not None:
        raise InputError(
            f"rounds '{rounds}' are beyond the end: the run has {plural(made, 'round')}"
        )
    from fedrift.report.timeline import gantt, pace_of

    pace = pace_of(record.ledger, record.clients.get("sizes") or ())
    screen = console()
    screen.print(_table(pace, len(record.clients.get("sizes") or ())))
    time = record.rounds[-1].get("time") if record.rounds else None
    if time is not None:
        made = plural(record.rounds[-1]["round"], "round")
        screen.print(f"{made} took {seconds_text(time)} of its clock.")
    if out is not None:
        ends = {row["round"]: row["time"] for row in record.rounds if "time" in row}
        screen.print(f"{gantt(record.ledger, ends, (first, last), out)}")


def _rounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise InputError(f"rounds must be a number such as 4 or a range such as 1-3, not '{text}'")
    return int(first), int(last)


def _table(pace: Pace, population: int) -> object:
    from rich.table import Table

    from fedrift.report.numbers import NOTHING, percent_text, plural, seconds_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    some = pace.clients < population
    asked = f"{pace.clients} of {population}" if some else str(pace.clients)
    whose = f"the {asked} clients asked" if some else plural(pace.clients, "client")
    for heading in (whose, "a visit takes", "replies", "samples"):
        table.add_column(heading, justify="left" if heading == whose else "right")
    names = ("the fastest third", "the middle", "the slowest third")
    for i, name in enumerate(names):
        takes = pace.seconds[i]
        if takes is None:  # there are fewer than three
            continue
        samples = percent_text(pace.samples[i], 0) if pace.samples else NOTHING
        table.add_row(name, seconds_text(takes), percent_text(pace.replies[i], 0), samples)
    return table
