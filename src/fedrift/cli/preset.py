"""`fedrift preset`: the literature's experiments, each by one command."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.errors import INTERRUPTED, InputError, unknown

if TYPE_CHECKING:
    from fedrift.cli.compare_view import Watcher
    from fedrift.presets.findings import Table
    from fedrift.presets.preset import Preset, Size
    from fedrift.storage.jsonl import Record


# What a preset found, as it is printed.


def report(preset: Preset, size: Size, records: Mapping[str, Record], folder: Path) -> None:
    """The tables, the published figures with ours beside them, and the relations."""
    from rich.table import Table as Rich

    from fedrift.presets.findings import Findings
    from fedrift.presets.relations import shown, spoken

    screen = console()
    findings = {name: Findings.of(record["findings"]) for name, record in records.items()}
    for name, part_findings in findings.items():
        for table in part_findings.tables:
            _table(name if len(findings) > 1 else "", table)
        for note in part_findings.notes:
            screen.print(f"note: {note}")
    if preset.published:
        rows = Rich("what", "setting", "published", f"ours, {size.name}")
        for one in preset.published:
            ours = one.ours(findings, size.name)
            if ours is not None or not one.table:  # of large tables what was run
                setting = f"{one.table}, {one.setting}" if one.table else one.setting
                rows.add_row(one.what, setting, one.figure, shown(ours))
        screen.print(rows)
    for relation in preset.asked(size.name):
        verdict = relation.decide(findings)
        numbers = "" if verdict is None else f" ({verdict.numbers})"
        said = spoken(verdict, relation.certain)
        screen.print(f"{said}: {relation.words}{numbers}")
    screen.print(f"runs, tables and figures in {folder}")


def _table(part: str, table: Table) -> None:
    from rich.table import Table as Rich

    from fedrift.presets.relations import shown

    title = f"{part}: {table.title}" if part else table.title
    rich_table = Rich(*table.columns, title=title, title_justify="left")
    for row in table.rows:
        rich_table.add_row(*map(shown, row))
    console().print(rich_table)


SIZE = "laptop (minutes), evening (hours, where there is one) or full, as published."
Wanted = Annotated[str | None, typer.Option("--size", metavar="SIZE", help=SIZE)]
Full = Annotated[bool, typer.Option("--full", help="The same as --size full.")]


def minutes_text(minutes: float) -> str:
    """`9 min`, `2.5 h`."""
    return f"{minutes:g} min" if minutes < 100 else f"{minutes / 60:.2g} h".replace("e+0", "e")


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    suggest_commands=False,
    help="Run the literature's experiments: in minutes, in an evening, or in the published size.",
)


@app.command("list")
def list_presets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List the presets: what each asks, and how long its laptop version takes."""
    from fedrift import presets

    presets_listed = [presets.find(name) for name in presets.names()]
    if as_json:
        from fedrift.storage.jsonl import dump

        rows = [
            {"name": p.name, "title": p.title, "question": p.question, "source": p.source}
            | {f"minutes_{size.name}": size.minutes for size in p.sizes.values()}
            for p in presets_listed
        ]
        typer.echo(dump(rows, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for preset in presets_listed:
        times = [minutes_text(s.minutes) for n, s in preset.sizes.items() if n != "full"]
        table.add_row(Text(preset.name, "bold"), " · ".join(times), preset.question)
    console().print(table)
    words = "\nOn two cores, laptop · evening. fedrift preset show NAME says what is run, run NAME"
    words += " runs it."
    console().print(words, style="dim")


@app.command(no_args_is_help=True)
def show(
    name: Name,
    size: Wanted = None,
    full: Full = False,
    part: Annotated[
        str | None,
        typer.Option(metavar="PART", help="Only this part: a file for fedrift compare --spec."),
    ] = None,
) -> None:
    """Show what was published and what is run, as files that fedrift compare --spec reads."""
    from fedrift import presets

    preset = presets.find(name)
    wanted = _size(preset, size, full)
    if part is not None:
        known = {one.name: one for one in wanted.parts if one.compare is not None}
        if part not in known:
            raise unknown("comparison of the preset", part, known)
        typer.echo(known[part].grid.to_toml(), nl=False)
        return
    _describe(preset, wanted)


def _size(preset: Preset, name: str | None, full: bool) -> Size:
    if full and name not in (None, "full"):
        raise InputError(f"--full and --size {name} say two things; keep one")
    return preset.size("full" if full else name or "laptop")


def _describe(preset: Preset, size: Size) -> None:
    """As comments, so that all that is printed is one TOML text for each part."""
    from textwrap import wrap

    from fedrift.presets.preset import published_lines

    lines = [preset.title, "", preset.question, f"Source: {preset.source}"]
    lines += [f"Caveat: {preset.caveat}"] if preset.caveat else []
    lines += [f"Published: {line}" for line in published_lines(preset)]
    lines += [f"Expected: {one.words}; decided by {one.rule}" for one in preset.asked(size.name)]
    lines += ["", f"{size.name}: about {minutes_text(size.minutes)} on two cores. {size.note}"]
    for line in lines:
        typer.echo("\n".join(wrap(line, 98, initial_indent="# ", subsequent_indent="#   ")) or "#")
    for part in size.parts:
        typer.echo(f"\n# part {part.name}")
        if part.compare is not None:
            typer.echo(part.grid.to_toml(), nl=False)
            continue
        import tomlkit

        typer.echo(f"# study {part.study}, which is a program; its settings:")
        typer.echo(tomlkit.dumps(dict(part.settings)), nl=False)


@app.command(no_args_is_help=True)
def run(
    name: Name,
    size: Wanted = None,
    full: Full = False,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds, or which: 3 or 0,7,42.", metavar="N")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "--data-folder",
            help="Where data files are looked for first; else in FEDRIFT_DATA.",
            metavar="FOLDER",
        ),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Worker processes (auto: one per core).", metavar="auto|N")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the runs (runs/presets/NAME); the same command goes on there.",
            metavar="FOLDER",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Run an experiment of the literature and put its figures beside the published ones.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift preset run fedopt-servers[/cyan]
    [cyan]fedrift preset run mnist-scaffold --seeds 3 --data-dir data[/cyan]
    [cyan]fedrift preset run fedgf-table --size evening[/cyan]
    """
    from fedrift import presets
    from fedrift.cli.compare import seeds_of_text
    from fedrift.config.spec import FIELDS
    from fedrift.presets import running

    preset = presets.find(name)
    wanted = _size(preset, size, full)
    folder = out or running.folder_of(preset, wanted)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out '{folder}' is a file; name a folder")
    if data_dir is not None and not data_dir.is_dir():
        raise InputError(f"data_dir '{data_dir}' is no folder; name the one with the data files")
    order = running.Order(
        preset,
        wanted,
        folder,
        data_dir,
        None if seeds is None else seeds_of_text(seeds),
        None if workers is None else _workers(FIELDS["workers"].parse(workers, "workers")),
    )
    errors = console(errors=True)

    def tell(words: str) -> None:
        if not quiet:
            errors.print(words)

    time = minutes_text(wanted.minutes)
    tell(f"{preset.title}: {wanted.name}, about {time} on two cores. {wanted.note}")

    @contextmanager
    def watching() -> Generator[Watcher]:
        from fedrift.cli.compare_view import watcher

        watch = watcher(silent=quiet)
        try:
            yield watch
        finally:
            watch.close()

    try:
        records = running.run(order, watching, tell)
    except KeyboardInterrupt:
        errors.print("interrupted; the same command goes on from here")
        raise typer.Exit(INTERRUPTED) from None
    report(preset, wanted, records, folder)


def _workers(value: object) -> int | str:
    from fedrift.config.spec import FIELDS

    workers = FIELDS["workers"].read(value, "workers")
    assert isinstance(workers, int | str)
    return workers
