"""`fedrift compare`: a grid of runs on one pool of workers, with a table at the end."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrift.cli.run import TRACK, run

GRID = "The comparison"
OWN = ("algorithm", "spec", "out", "as_json", "quiet", "seed", "track")


def compare(
    algorithms: Annotated[list[str] | None, typer.Argument(show_default=False)] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="How many seeds (1), or which: 3 or 0,7,42.", metavar="N", rich_help_panel=GRID
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="Choose an option per algorithm on held-out training data: lr=0.01,0.03,0.1.",
            metavar="KEY=VALUES",
            rich_help_panel=GRID,
        ),
    ] = None,
    tune_budget: Annotated[
        str | None,
        typer.Option(
            help="Rounds an algorithm may spend on tuning, all candidates together.",
            metavar="N",
            rich_help_panel=GRID,
        ),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="The same in a TOML file.", metavar="FILE", rich_help_panel=GRID),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder for the runs; the same command goes on where it stopped.",
            metavar="FOLDER",
            rich_help_panel=GRID,
        ),
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object.", rich_help_panel=GRID)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the result.", rich_help_panel=GRID)
    ] = False,
    **options: Any,
) -> None:
    """Run several algorithms under the same conditions and compare them.

    Every option of a run may have several values and becomes an axis of the grid: numbers
    separated by commas, other flags repeated. For one seed all algorithms start from the same
    weights, ask the same clients and see the same batches.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift compare fedavg scaffold --partition classes:2 --seeds 3[/cyan]
    [cyan]fedrift compare fedavg fedprox:mu=0.3 --partition dirichlet --alpha 0.1,1[/cyan]
    [cyan]fedrift compare fedavg fedsam --tune lr=0.01,0.03,0.1 --seeds 3 --out runs/tuned[/cyan]
    """
    from fedrift.cli.contest import contest, gathered  # here, so that --help need not wait for it

    flags = {key: value for key, value in options.items() if value not in (None, [], False)}
    grid = gathered(algorithms or [], flags, seeds, spec)
    contest(
        grid,
        tune or [],
        out,
        budget=tune_budget,
        track=track or [],
        as_json=as_json,
        quiet=quiet,
    )


def _with_the_flags_of_run() -> None:
    """Give the command every flag of `run`, each of which may be repeated: they exist once."""
    own = inspect.signature(compare)
    fixed = [p for p in own.parameters.values() if p.name != "options"]
    hints = typing.get_type_hints(compare, include_extras=True)
    kinds: Mapping[str, Any] = typing.get_type_hints(run, include_extras=True)
    added: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(run).parameters.items():
        if name in OWN:
            continue
        info = kinds[name].__metadata__[0]
        kind = Annotated[list[str] | None, info]
        hints[name] = kind
        added.append(parameter.replace(annotation=kind, default=None))
    hints.pop("options", None)
    annotated = [p.replace(annotation=hints[p.name]) for p in fixed]
    compare.__signature__ = own.replace(parameters=[*annotated, *added])  # type: ignore[attr-defined]
    compare.__annotations__ = hints


_with_the_flags_of_run()
