"""`fedrift partition`: how a data set is divided among clients, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.errors import InputError

if TYPE_CHECKING:
    from fedrift.config.spec import Spec
    from fedrift.data.describe import Statistics


MOST_CLIENTS = 40  # rows shown
MOST_CLASSES = 12  # columns shown


def partition(
    scheme: Annotated[str | None, typer.Argument(show_default=False)] = None,
    data: Annotated[str | None, typer.Option(help="Data set: digits unless said.")] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where data files are looked for first.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option(metavar="N", help="Number of clients (10).")
    ] = None,
    alpha: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Takes the place of the alpha in the name.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N", help="Fixes every random choice (0).")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save a manifest for --partition manifest:FILE."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the partition: .png, .pdf or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Show how data are divided among clients: sizes, labels, distance to the whole.

    SCHEME is a name such as dirichlet:0.1; dirichlet:0.5 unless said. See: fedrift list partitions.

    \b
    [bold]Example[/bold]
    [cyan]fedrift partition dirichlet:0.1 --data mnist5k --clients 20 --picture split.png[/cyan]
    """
    from fedrift.config.spec import FIELDS, Spec

    texts = {
        "partition": scheme,
        "data": data,
        "data_dir": data_dir,
        "clients": clients,
        "alpha": alpha,
        "seed": seed,
    }
    given = {key: text for key, text in texts.items() if text is not None}
    spec = Spec.of({key: FIELDS[key].parse(text, key) for key, text in given.items()})
    spec.validate()
    _check_picture(picture)
    _divide(spec, save, picture, as_json)


def _check_picture(picture: Path | None) -> None:
    """Before anything is written: a format that cannot be drawn, a missing library."""
    if picture is None:
        return
    from importlib.util import find_spec

    from fedrift.data.describe import FORMATS

    if picture.suffix.lower() not in FORMATS:
        raise InputError(f"picture '{picture}' must end in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise InputError(f"picture '{picture}' needs matplotlib; install it with pip")


def _divide(spec: Spec, save: Path | None, picture: Path | None, as_json: bool) -> None:
    from fedrift.data import manifest
    from fedrift.data.describe import statistics
    from fedrift.engine.prepare import prepare

    prepared = prepare(spec)
    if prepared.data.generated is not None:
        raise InputError(f"data '{spec.data}' has too many clients to be shown; use fewer")
    data, parts = prepared.data, prepared.partition
    counts = statistics(parts, data.y, data.classes)
    if save is not None:
        manifest.save(parts, data.y, save)
    if picture is not None:
        from fedrift.data.describe import save_picture as draw

        draw(counts, picture, data.class_names)
    if as_json:
        _print_json(counts, data.class_names)
        return
    is_natural = spec.partition == "natural"
    _show(counts, data.class_names, data.user_names if is_natural else ())
    screen = console()
    if save is not None:
        screen.print(f"manifest  {save}  (use it with --partition manifest:{save})")
    if picture is not None:
        screen.print(f"picture   {picture}")


def _print_json(statistics: Statistics, names: tuple[str, ...]) -> None:
    from fedrift.storage.jsonl import dump

    typer.echo(
        dump(
            {
                "partition": statistics.name,
                "seed": statistics.seed,
                "sha256": statistics.digest,
                "clients": len(statistics.sizes),
                "samples": int(statistics.sizes.sum()),
                "sizes": statistics.sizes,
                "classes_per_client": statistics.classes_per_client,
                "label_distance": statistics.distances,
                "mean_label_distance": statistics.mean_distance,
                "class_names": names,
                "counts": statistics.counts,
                "note": statistics.note,
            }
        )
    )


def _show(statistics: Statistics, names: tuple[str, ...], users: tuple[str, ...]) -> None:
    from rich.table import Table

    headings, rows = statistics.table(names)
    clients, classes = statistics.counts.shape
    if classes <= MOST_CLASSES:  # every class has its own column
        headings = [*headings[:-1], *(names or map(str, range(classes)))]
        rows = [
            [*row[:-1], *(f"{count:,}" if count else "·" for count in counts)]
            for row, counts in zip(rows, statistics.counts.tolist(), strict=True)
        ]
    if users:
        headings = [*headings[:1], "user", *headings[1:]]
        rows = [[*row[:1], user, *row[1:]] for row, user in zip(rows, users, strict=True)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "largest classes" else "right")
    for row in rows[:MOST_CLIENTS]:
        table.add_row(*row)
    screen = console()
    screen.print(table)
    if clients > MOST_CLIENTS:
        screen.print(
            f"… and {clients - MOST_CLIENTS:,} more clients (--json lists all)", style="dim"
        )
    screen.print()
    summary = Table.grid(padding=(0, 2))
    for name, value in statistics.summary():
        summary.add_row(name, value)
    screen.print(summary)
