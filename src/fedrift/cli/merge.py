"""`fedrift merge`: the models of several runs made one, without training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.cli.launch import check_trust
from fedrift.cli.resume import TRUST
from fedrift.config.merging import RULES, check_rule
from fedrift.errors import decimals
from fedrift.storage.run_folder import check_free

if TYPE_CHECKING:
    from rich.table import Table

    from fedrift.merging import Merged

DIGITS = 4  # of scores, behind the point
COEFFICIENTS = 2
HOW = "; ".join(f"{rule.grammar}: {rule.about}" for rule in RULES.values())


def merge(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of one model.")],
    how: Annotated[str, typer.Option(help=f"The rule. {HOW}.")] = "mean",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data of a task that no run has seen, by name: the rule looks at its training "
            "samples, and all models are measured on its test, instead of on the runs' own tasks."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the merged model, its figures and a picture.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data files are looked for.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
) -> None:
    """Make one model of those of several runs; measure it on the task of each, or on a new one."""
    check_rule(how)
    if out is not None:
        check_free(out)
    for folder in runs:
        check_trust(folder, trust_code)
    from fedrift.merging import merge as merge_models

    merged = merge_models(list(runs), how, data=data, data_dir=data_dir, seed=seed)
    if out is not None:
        merged.save(out)
        merged.plot(out / "merge.png")
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump(merged.record()))
        return
    _show(merged)
    if out is not None:
        console().print(f"merged model, figures and picture: {out}")


def _signed(
    corner: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]], most: int
) -> Table:
    """Numbers with their signs: a row for each name on the left, a column for each model."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(corner)
    for name in names:
        table.add_column(name, justify="right")
    rows = list(rows)
    digits = decimals([value for _, row in rows for value in row], most)
    for name, row in rows:
        table.add_row(name, *(f"{value:+.{digits}f}" for value in row))
    return table


def _show(merged: Merged) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{merged.measure} of ↓ on →")
    names = [Path(name).name for name in merged.names]
    for task in merged.tasks:
        table.add_column(Path(task).name, justify="right")
    digits = decimals(merged.scores.flat, DIGITS)
    for name, row in zip((*names, f"merged ({merged.how})"), merged.scores.tolist(), strict=True):
        table.add_row(name, *(f"{score:.{digits}f}" for score in row))
    screen = console()
    screen.print(table)
    costs = merged.interference.tolist()
    digits = decimals(costs, DIGITS)
    cost = ", ".join(
        f"{name} {value:+.{digits}f}" for name, value in zip(names, costs, strict=True)
    )
    screen.print(f"interference (own − merged): {cost}")
    if len(names) > 2 and not isnan(merged.pairs[0, 1]):
        lost = zip(names, merged.pairs.tolist(), strict=True)
        screen.print(_signed("lost with ↓ alone by →", names, lost, DIGITS))
    if merged.coefficients:
        screen.print(
            _signed("coefficient in ↓ of →", names, merged.coefficients.items(), COEFFICIENTS)
        )
    screen.print(f"sent up: {merged.bytes_up:,} bytes, in one exchange")
