"""`fedrift compare`: a grid of runs on one pool of workers, with a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.cli.console import console, fitting, one_line
from fedrift.cli.run import TRACK, WATCH, given_flags, with_settings
from fedrift.cli.watch import page_beside
from fedrift.config.backends import starts_workers
from fedrift.config.grid import COMPARISON, Cell, Entrant, Grid, from_toml, seeds_of
from fedrift.config.spec import FIELDS, Spec
from fedrift.config.tuning import searches
from fedrift.core.plain_files import taken_back, write_file
from fedrift.engine.trackers import tracks
from fedrift.errors import INTERRUPTED, InputError
from fedrift.storage.jsonl import dump
from fedrift.storage.run_folder import check_comparable

if TYPE_CHECKING:
    from fedrift.comparison import Comparison
    from fedrift.engine.trackers import Track


# Starts a comparison, shows it while it runs, and prints its table.


def gathered(
    algorithms: Sequence[str], flags: Mapping[str, Any], seeds: str | None, file: Path | None
) -> Grid:
    """The grid of the file, if there is one, with what the flags say in its place."""
    grid = Grid((), Spec()) if file is None else from_toml(file)
    values: dict[str, list[Any]] = {}
    for key, texts in flags.items():
        field = FIELDS[key]
        if key == "augment":  # several augmentations belong to one run
            values[key] = [tuple(texts)]
            continue
        # Flags whose text may hold commas of its own are repeated: --partition A --partition B.
        pieces = [p for text in texts for p in (text.split(",") if field.is_number else [text])]
        values[key] = [field.read(field.parse(p, key), key) for p in pieces]
    known = {k: v for k, v in grid.base.to_dict().items() if file is not None}
    base = Spec.of({**known, **{k: v[0] for k, v in values.items() if len(v) == 1}})
    axes = {k: v for k, v in grid.axes.items() if k not in values}
    axes |= {k: v for k, v in values.items() if len(v) > 1}
    chosen = tuple(Entrant(a) for a in algorithms) or grid.entrants
    tuned = None if algorithms else grid.tuned
    return Grid(chosen, base, axes, grid.seeds if seeds is None else seeds_of_text(seeds), tuned)


def seeds_of_text(text: str) -> tuple[int, ...]:
    """`3` is a number of seeds, `0,7,42` are seeds."""
    try:
        numbers = [int(piece) for piece in text.split(",")]
    except ValueError:
        raise InputError(f"seeds '{text}' must be a number or numbers such as 0,7,42") from None
    return seeds_of(numbers if "," in text else numbers[0])


def run_comparison(
    grid: Grid,
    tune: Sequence[str],
    out: str | None,
    *,
    budget: str | None = None,
    track: Sequence[str] = (),
    as_json: bool,
    quiet: bool,
    watch: bool = False,
) -> None:
    """Check everything, run what is not there yet, print the table."""
    cells = grid.cells()
    most, wanted = _budget(budget, tune), tracks(track)
    if tune:
        searches(grid, tune, most)  # refuses before anything is started
    folder = None if out is None else Path(out)
    if folder is not None:
        check_comparable(folder)
    refusing = nullcontext() if folder is None else taken_back(folder, COMPARISON)
    with refusing, page_beside(folder, wanted=watch):
        made = _made(grid, cells, tune, folder, most, wanted, silent=as_json or quiet)
    _show(made, as_json=as_json)
    failed = [o for o in made.outcomes if o.result is None]
    for outcome in failed:
        failure = one_line(f"failed: {outcome.item.label}: {outcome.error}")
        print(failure, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _made(
    grid: Grid,
    cells: Sequence[Cell],
    tune: Sequence[str],
    folder: Path | None,
    most: int | None,
    wanted: Sequence[Track],
    *,
    silent: bool,
) -> Comparison:
    """The runs, with what they show while they are made."""
    from fedrift.backends import importing, prestart
    from fedrift.cli.compare_view import watcher

    if starts_workers(grid.base.backend, grid.base.workers):
        prestart()
    watch = watcher(silent=silent)
    if not tune:
        watch.restart(cells)
    try:
        with importing():
            from fedrift import comparison

        if tune:
            grid = comparison.tuned(grid, tune, folder, watch.callbacks, most, begins=watch.restart)
            cells = grid.cells()
            watch.restart(cells)
        if folder is not None:
            write_file(folder / COMPARISON, grid.to_toml())
        how = (grid.base.workers, watch.callbacks, wanted, grid.base.backend)
        return comparison.run_grid(cells, folder, *how)
    except KeyboardInterrupt:
        watch.close()
        kept = "the same command goes on from here" if folder else "nothing was kept without --out"
        print(f"interrupted; {kept}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        watch.close()


def _budget(text: str | None, tune: Sequence[str]) -> int | None:
    if text is None:
        return None
    if not tune:
        raise InputError("tune_budget is given, but nothing is tuned; add --tune KEY=VALUES")
    number = FIELDS["rounds"].read(FIELDS["rounds"].parse(text, "tune_budget"), "tune_budget")
    return int(str(number))


def _show(made: Comparison, *, as_json: bool) -> None:
    from fedrift.cli.compare_view import findings, remarks, table

    summary = findings(made)
    if as_json:
        from fedrift.report.statistics.findings import as_records

        runs = [
            {"label": o.item.label, **o.item.axes, **o.result.summary()}
            for o in made.outcomes
            if o.result is not None
        ]
        compared: dict[str, Any] = {}
        if summary is not None:
            compared = {"baseline": summary.baseline, "results": as_records(summary)}
        typer.echo(dump({"runs": runs, **compared}))
        return
    if summary is not None:
        names = 1 + (len(summary.settings) > 1)
        for part in fitting(table(summary), console(), names):
            console().print(part)
        for remark in remarks(summary):
            console().print(remark)
    if made.folder is not None:
        console().print(f"runs in {made.folder}; a page of it: fedrift report {made.folder}")


GRID = "The comparison"


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
    watch: Annotated[bool, WATCH] = False,
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
    grid = gathered(algorithms or [], given_flags(options), seeds, spec)
    run_comparison(
        grid,
        tune or [],
        out,
        budget=tune_budget,
        track=track or [],
        as_json=as_json,
        quiet=quiet,
        watch=watch,
    )


with_settings(compare, ["algorithm", "seed", "out"], repeated=True, after="watch")
