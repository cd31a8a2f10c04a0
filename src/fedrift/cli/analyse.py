"""`fedrift analyse`: the microscope, on runs that were kept with --out."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.cli.console import console, fitting, one_line
from fedrift.cli.launch import check_trust
from fedrift.cli.resume import TRUST
from fedrift.config.analyses import WHAT, parse_names
from fedrift.config.grid import COMPARISON, RUNS
from fedrift.errors import INTERRUPTED, InputError
from fedrift.storage import run_folder

if TYPE_CHECKING:
    from rich.table import Table

    from fedrift.analysis.case import Finding, Options
    from fedrift.analysis.examine import Examined


# From what the user names to run folders with names that tell them apart.


def named_runs(given: Sequence[Path], trust: bool) -> tuple[dict[str, Path], Path | None]:
    """Run folders by name, and where figures of several runs go: None for a single run."""
    folders: list[Path] = []
    for path in given:
        inside = _inside(path)
        if not inside:
            raise InputError(f"'{path}' holds no run folder: there is no {run_folder.SPEC} in it")
        folders += [folder for folder in inside if folder not in folders]
    algorithms = [check_trust(folder, trust)[0].algorithm_named for folder in folders]
    specs = [one.name if one.inner is None else str(one) for one in algorithms]
    if len(set(specs)) < len(specs):  # the options tell them apart
        specs = [str(one) for one in algorithms]
    named: dict[str, Path] = {}
    for folder, name in zip(folders, specs, strict=True):
        own = name if specs.count(name) == 1 else folder.name
        named[one_line(own if own not in named else str(folder))] = folder
    return named, _beside(given, folders) if len(folders) > 1 else None


def _inside(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"'{path}' does not exist; name run folders or comparison folders")
    if (path / run_folder.SPEC).is_file():
        return [path]
    if not path.is_dir():
        return []
    places = (path / RUNS,) if (path / COMPARISON).is_file() else (path, path / RUNS)
    folders = [p for place in places if place.is_dir() for p in sorted(place.iterdir())]
    found = [folder for folder in folders if (folder / run_folder.SPEC).is_file()]
    for folder in (path / RUNS, *found):
        if folder.is_symlink():  # what is found would be written there
            raise InputError(f"'{folder}' is a link to elsewhere; name the runs themselves")
    return found


def _beside(given: Sequence[Path], folders: Sequence[Path]) -> Path:
    if len(given) == 1:
        return given[0] / run_folder.ANALYSIS
    common = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    if common.name == RUNS and (common.parent / COMPARISON).is_file():
        common = common.parent
    here = Path.cwd()
    return (
        common.relative_to(here) if common.is_relative_to(here) else common
    ) / run_folder.ANALYSIS


LOOK, OUTPUT = "What is looked at", "Output"
FIGURES = ("svg", "png", "pdf")


def _flag(panel: str, help: str, metavar: str = "N") -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel)


def analyse(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUNS...", show_default=False)
    ] = None,
    what: Annotated[
        str, _flag(LOOK, f"Any of {', '.join(WHAT)}; or all.", "NAMES")
    ] = "drift,classes",
    data: Annotated[
        str, _flag(LOOK, "Where losses and Hessians are taken: train or test.", "train|test")
    ] = "train",
    images: Annotated[str, _flag(LOOK, "Samples of that set at most; 0: all.")] = "2000",
    clients: Annotated[
        str, _flag(LOOK, "Local models of sharpness, cka, predictions at most; 0: the cohort.")
    ] = "5",
    curved: Annotated[str, _flag(LOOK, "Local models whose Hessian is measured.")] = "2",
    local_density: Annotated[
        bool,
        typer.Option("--local-density", help="Their spectral density, too.", rich_help_panel=LOOK),
    ] = False,
    top: Annotated[str, _flag(LOOK, "Eigenvalues.")] = "5",
    steps: Annotated[str, _flag(LOOK, "Lanczos steps for the spectral density.")] = "100",
    probes: Annotated[str, _flag(LOOK, "Random vectors for the spectral density.")] = "1",
    rho: Annotated[str, _flag(LOOK, "Radius of sharpness.", "NUMBER")] = "0.05",
    rho_a: Annotated[
        str, _flag(LOOK, "Radius of adaptive sharpness, in units of the weights.", "NUMBER")
    ] = "0.5",
    data_dir: Annotated[
        str | None, _flag(LOOK, "Where data files are looked for first.", "FOLDER")
    ] = None,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help=TRUST, rich_help_panel=LOOK)
    ] = False,
    figures: Annotated[
        str,
        _flag(OUTPUT, "Formats of the figures; svg is always kept for the report.", "svg,png,pdf"),
    ] = "svg,png",
    out: Annotated[
        Path | None,
        _flag(OUTPUT, "For figures that compare runs (analysis beside the runs).", "FOLDER"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The numbers as one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Of several runs the words, too.", rich_help_panel=OUTPUT
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the result.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Look inside finished runs: flatness, similarity, drift and bias of their models.

    RUNS are run folders, comparison folders, or folders of these. Numbers and figures are kept
    in the folder analysis of each run, and shown by: fedrift report.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift analyse runs/first[/cyan]
    [cyan]fedrift analyse runs/fedavg runs/fedsam --what hessian,sharpness --images 1000[/cyan]
    [cyan]fedrift analyse runs/compared --what all --figures pdf[/cyan]
    """
    if not runs:
        raise InputError("name the runs: run folders, comparison folders, or folders of these")
    names = tuple(WHAT) if what.strip() == "all" else parse_names(what)
    endings = _endings(figures)
    folders, beside = named_runs(runs, trust_code)
    numbers = _numbers(locals())
    if data not in ("train", "test"):
        raise InputError(f"data must be train or test, not '{data}'")
    from fedrift.cli.progress import watching

    with watching(silent=as_json or quiet) as watch:
        from fedrift.analysis.case import Options

        options = replace(Options(data=data, watch=watch), **numbers)  # type: ignore[arg-type]
        done: list[Examined] = []
        try:
            for one in _each(folders, names, options, endings, data_dir, watch):
                done.append(one)
        except KeyboardInterrupt:
            watch.close()
            _interrupted(done)
            raise typer.Exit(INTERRUPTED) from None
    _finish(done, out or beside, endings, as_json=as_json, verbose=verbose)


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    from fedrift.grammar import number

    whole = {"images": 0, "clients": 0, "curved": 0, "top": 1, "steps": 1, "probes": 1}
    numbers: dict[str, Any] = {
        key: number(given[key], key, kind=int, low=low) for key, low in whole.items()
    }
    radii = {key: number(given[key], key, low=0, low_open=True) for key in ("rho", "rho_a")}
    return numbers | radii | {"local_density": given["local_density"]}


def _endings(text: str) -> tuple[str, ...]:
    from fedrift.errors import unknown

    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in FIGURES:
            raise unknown("figures", name, FIGURES)
    return tuple(dict.fromkeys(names))


def _each(
    folders: dict[str, Path],
    names: Sequence[str],
    options: Options,
    endings: Sequence[str],
    data_dir: str | None,
    watch: Any,
) -> Any:
    from fedrift.analysis.examine import examine
    from fedrift.analysis.saved import Loader
    from fedrift.core.isolation import one_thread

    loader = Loader(data_dir)
    for run, folder in folders.items():
        case = loader.case(folder, run)
        for note in case.notes:
            watch.say(f"note: {run}: {note}")
        with one_thread():
            for what in names:
                watch.turn(run, what)
                yield from examine(case, folder, (what,), options, endings)


def _interrupted(done: Sequence[Examined]) -> None:
    kept = ", ".join(f"{one.what} of {one.run}" for one in done if one.finding is not None)
    console(errors=True).print(f"interrupted; kept: {kept or 'nothing'}")


def _table(findings: Mapping[str, Mapping[str, Finding]]) -> Table:
    """A row for each run, the few numbers of each measurement by which runs are compared."""
    from rich.table import Table

    from fedrift.report.inside import COLUMNS, at
    from fedrift.report.numbers import MINUS, NOTHING

    columns = [(what, name, path) for what in findings for name, path in COLUMNS[what].items()]
    table = Table("run", *(name for _, name, _ in columns))
    for column in table.columns[1:]:
        column.justify = "right"
    for run in dict.fromkeys(run for runs in findings.values() for run in runs):
        cells: list[str] = []
        for what, _, path in columns:
            finding = findings[what].get(run)
            value = math.nan if finding is None else at(finding.numbers, path)
            cells.append(NOTHING if math.isnan(value) else f"{value:.4g}".replace("-", MINUS))
        table.add_row(one_line(run), *cells)
    return table


def _finish(
    done: Sequence[Examined],
    beside: Path | None,
    endings: Sequence[str],
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    from fedrift.analysis.examine import write_common_figures

    errors = console(errors=True)
    for one in done:
        if one.finding is None:
            errors.print(f"note: {one_line(one.run)}: no {one.what}: {one_line(one.why)}")
    findings: dict[str, dict[str, Finding]] = {}
    for one in done:
        if one.finding is not None:
            findings.setdefault(one.what, {})[one.run] = one.finding
    if not findings:
        raise InputError(f"nothing could be measured: {done[0].why}")
    together = write_common_figures(findings, beside, endings) if beside is not None else []
    if as_json:
        from fedrift.storage.jsonl import dump

        numbers = {w: {r: f.numbers for r, f in runs.items()} for w, runs in findings.items()}
        files = [str(file) for one in done for file in one.files] + [str(f) for f in together]
        typer.echo(dump({"numbers": numbers, "files": files}))
        return
    screen = console()
    is_many = len({one.run for one in done if one.finding is not None}) > 1
    if is_many:
        for table in fitting(_table(findings), screen):
            screen.print(table)
    for one in done if verbose or not is_many else ():
        if one.finding is not None:
            screen.print(f"{one.run}: {one.finding.title}")
            for sentence in one.finding.sentences:
                screen.print(f"  {one_line(sentence)}")
    places = list(dict.fromkeys(os.path.dirname(file) for one in done for file in one.files))
    shown = [f"{places[0]} and {len(places) - 1} more like it"] if len(places) > 2 else places
    for folder in (*shown, *([str(beside)] if together else [])):
        screen.print(f"numbers and figures: {folder}")
    if is_many and not verbose:
        screen.print("what the numbers mean: --verbose, or fedrift report")
