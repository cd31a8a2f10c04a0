"""`fedrift timeline`: a run on its simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.errors import InputError

if TYPE_CHECKING:
    from fedrift.report.timeline import Pace


USUAL = "1-3"


def timeline(
    run: Annotated[Path, typer.Argument(help="A run folder made with --devices.")],
    rounds: Annotated[str, typer.Option(help="Which rounds to draw.")] = USUAL,
    out: Annotated[
        Path | None, typer.Option(help="The picture: who received, computed, sent, came too late.")
    ] = None,
) -> None:
    """Say how long clients took and how often they counted; draw a few rounds."""
    from fedrift.report.numbers import plural, seconds_text
    from fedrift.storage.run_folder import load

    first, last = _rounds(rounds)
    record = load(run)
    made = max((row["round"] for row in record.ledger), default=0)
    if last > made and rounds != USUAL:
        raise InputError(
            f"rounds '{rounds}' are beyond the end: the run has {plural(made, 'round')}"
        )
    from fedrift.report.timeline import gantt, pace_of

    pace = pace_of(record.ledger, record.clients.get("sizes") or ())
    screen = console()
    screen.print(_table(pace))
    time = record.rounds[-1].get("time") if record.rounds else None
    if time is not None:
        screen.print(f"{record.rounds[-1]['round']} rounds took {seconds_text(time)} of its clock.")
    if out is not None:
        ends = {row["round"]: row["time"] for row in record.rounds if "time" in row}
        screen.print(f"{gantt(record.ledger, ends, (first, last), out)}")


def _rounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise InputError(f"rounds must be a number such as 4 or a range such as 1-3, not '{text}'")
    return int(first), int(last)


def _table(pace: Pace) -> object:
    from rich.table import Table

    from fedrift.report.numbers import seconds_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (f"of {pace.clients} clients", "a visit takes", "replies", "samples"):
        table.add_column(heading, justify="left" if "clients" in heading else "right")
    names = ("the fastest third", "the middle", "the slowest third")
    for i, name in enumerate(names):
        samples = f"{pace.samples[i]:.0%}" if pace.samples else "–"
        table.add_row(name, seconds_text(pace.seconds[i]), f"{pace.replies[i]:.0%}", samples)
    return table
