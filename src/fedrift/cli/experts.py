"""`fedrift experts`: the models of several runs side by side, with a router."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.cli.launch import check_trust
from fedrift.cli.resume import TRUST

if TYPE_CHECKING:
    from fedrift.merging.experts import Experts


def experts(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of one model and seed.")],
    router: Annotated[
        str,
        typer.Option(help="ridge: regression on the start's features; prototype: nearest mean."),
    ] = "ridge",
    mix: Annotated[str, typer.Option(help="top-1: one expert computes; soft: all do.")] = "top-1",
    data_dir: Annotated[str | None, typer.Option(help="Where data files are looked for.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
) -> None:
    """Put a router before the models of several runs, and measure them on the task of each."""
    for folder in runs:
        check_trust(folder, trust_code)
    from fedrift.merging.experts import experts as make

    made = make(list(runs), router, mix, data_dir=data_dir)
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump(made.record()))
        return
    _show(made)


def _show(made: Experts) -> None:
    from rich.table import Table

    names = [Path(name).name for name in made.names]
    screen = console()
    for title, rows, values in (
        (f"{made.measure} of ↓ on →", [*names, f"{made.router}, {made.mix}"], made.scores),
        ("inputs of ↓ routed to →", names, made.routed),
    ):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title)
        for name in names:
            table.add_column(name, justify="right")
        for name, row in zip(rows, values.tolist(), strict=True):
            table.add_row(name, *(f"{value:.4f}" for value in row))
        screen.print(table)
    screen.print(
        f"{made.passes:.2f} of {len(names)} experts compute for an input: "
        f"{made.parameters_used:,.0f} of {made.parameters:,} parameters"
    )
    screen.print(f"sent up: {made.ledger.bytes_up:,} bytes, in one exchange")
