"""`fedrift run`: one run from flags, a TOML file, or both."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrift.config.spec import GROUPS, OUTPUT, SETTINGS

# Every setting of the spec as a flag, for `run` and, where each may be repeated, for `compare`.


def _flag(panel: str, help: str, metavar: str, *names: str) -> Any:
    # Numbers come as text too: the spec's own sentence says what is wrong with them.
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


def _names(name: str, also: str) -> list[str]:
    return [f"--{name.replace('_', '-')}", also] if also else []


def with_settings(
    command: Callable[..., None], but: Collection[str], *, repeated: bool, after: str
) -> None:
    """Puts the flags of all settings but some in the place of `**options`, behind `after`."""
    hints: dict[str, Any] = typing.get_type_hints(command, include_extras=True)
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    added: list[inspect.Parameter] = []
    for name, one in sorted(SETTINGS.items(), key=lambda pair: GROUPS.index(pair[1].group)):
        if name in but:
            continue
        many = repeated or one.field.is_list
        flag = _flag(one.group, one.help, one.field.shown, *_names(name, one.also))
        hints[name] = Annotated[list[str] | None, flag] if many else Annotated[str | None, flag]
        kind = inspect.Parameter.KEYWORD_ONLY
        added.append(inspect.Parameter(name, kind, default=None, annotation=hints[name]))
    hints.pop("options", None)
    place = [p.name for p in own].index(after) + 1
    own = [p.replace(annotation=hints[p.name]) for p in own]
    parameters = [*own[:place], *added, *own[place:]]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints


def given_flags(options: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were given."""
    return {key: value for key, value in options.items() if value not in (None, [], False)}


WATCH = typer.Option(
    "--watch",
    help="Open a page that shows it while it runs, as fedrift watch does.",
    rich_help_panel=OUTPUT,
)
TRACK = _flag(
    OUTPUT,
    "Follow it in tensorboard, mlflow or wandb too; mlflow:FOLDER says where. Can be repeated.",
    "NAME",
)


def run(
    algorithm: Annotated[str | None, typer.Argument(show_default=False)] = None,
    spec: Annotated[
        Path | None,
        _flag(
            OUTPUT, "The same options in a TOML file (per_round = 10); flags come first.", "FILE"
        ),
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    analyse: Annotated[
        str | None,
        _flag(
            OUTPUT,
            "Measure on the way: every=10,what=drift,classes (these two cost next to nothing).",
            "PLAN",
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Say where the time of every round goes.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object on standard output.", rich_help_panel=OUTPUT),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the result.", rich_help_panel=OUTPUT)
    ] = False,
    watch: Annotated[bool, WATCH] = False,
    **options: Any,
) -> None:
    """Train with one federated algorithm and show what came out of it.

    ALGORITHM is a name with its options, such as scaffold:server_lr=0.5; fedavg unless said.
    See: fedrift list algorithms.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift run fedavg[/cyan]
    [cyan]fedrift run scaffold --data mnist5k --partition dirichlet:0.1 --lr 0.05[/cyan]
    [cyan]fedrift run fedavg:weights=uniform --clients 100 --per-round 10 --json[/cyan]
    [cyan]fedrift run --spec experiment.toml --seed 1 --out runs/seed1[/cyan]
    """
    from fedrift.cli.launch import chosen, start

    start(
        chosen(given_flags({**options, "algorithm": algorithm}), spec),
        as_json=as_json,
        quiet=quiet,
        track=track or [],
        analyse=analyse,
        profile=profile,
        watch=watch,
    )


with_settings(run, ["algorithm"], repeated=False, after="algorithm")
