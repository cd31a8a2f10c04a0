"""The command line. Nothing here imports torch: that happens when a run starts."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import click
import typer
from typer.core import TyperArgument
from typer.models import ArgumentInfo
from typer.utils import get_params_from_function

from fedrift.cli.analyse import analyse
from fedrift.cli.attack import app as attack
from fedrift.cli.compare import compare
from fedrift.cli.conform import conform
from fedrift.cli.console import complain
from fedrift.cli.experts import experts
from fedrift.cli.explain import explain
from fedrift.cli.export import export
from fedrift.cli.flower import app as flower
from fedrift.cli.listing import list_names
from fedrift.cli.merge import merge
from fedrift.cli.partition import partition
from fedrift.cli.preset import app as preset
from fedrift.cli.report import report
from fedrift.cli.resume import fork, resume
from fedrift.cli.run import run
from fedrift.cli.timeline import timeline
from fedrift.cli.verify import verify
from fedrift.cli.watch import watch
from fedrift.errors import (
    BAD_INPUT,
    DONE,
    ELSEWHERE,
    FAILED,
    INTERRUPTED,
    InputError,
    RunError,
    describe,
    is_out_of_memory,
    sentence,
)

app = typer.Typer(
    name="fedrift",
    rich_markup_mode="rich",
    no_args_is_help=True,
    suggest_commands=False,  # click does it already
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True)(run)
app.command(no_args_is_help=True)(compare)
app.command(no_args_is_help=True)(report)
app.command(no_args_is_help=True)(analyse)
app.command(no_args_is_help=True)(merge)
app.command(no_args_is_help=True)(experts)
app.command(no_args_is_help=True)(export)
app.command(no_args_is_help=True)(timeline)
app.command()(watch)
app.command()(resume)
app.command()(fork)
app.command()(verify)
app.command()(conform)
app.command(no_args_is_help=True)(explain)
app.command("list")(list_names)
app.command()(partition)
app.add_typer(preset, name="preset")
app.add_typer(attack, name="attack")
app.add_typer(flower, name="flower")


HINT = "set FEDRIFT_DEBUG=1 to see the way there"


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"fedrift {version('fedrift')}")
    except PackageNotFoundError:
        typer.echo("fedrift, not installed")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and stop.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    """Federated learning: algorithms, data splits and honest comparisons.

    Start with [bold]fedrift run fedavg[/bold]; [bold]fedrift list algorithms[/bold] shows the rest.
    """


@functools.cache
def tree() -> click.Command:
    """All commands with their options, made once in a process."""
    return flowing(typer.main.get_command(app))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `fedrift`: exit code 0 done, 1 failed, 2 the user's input, 130 interrupted."""
    sys.exit(code_of(arguments))


def flowing(command: click.Command) -> click.Command:
    """Paragraphs of its help wrap where the terminal ends, not where they do in the source; those
    marked with a backspace keep their lines, and lose the mark, which would be an empty one."""
    for one in getattr(command, "commands", {}).values():
        flowing(one)
    _help_of_arguments(command)
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(
        one[2:] if one.startswith("\b\n") else one.replace("\n", " ") for one in paragraphs
    )
    return command


def _help_of_arguments(command: click.Command) -> None:
    """Puts back what typer tells click's arguments of their help, which click 8.5 forgets."""
    untold = [one for one in command.params if isinstance(one, TyperArgument) and one.help is None]
    if not untold or command.callback is None:
        return
    written = get_params_from_function(inspect.unwrap(command.callback))
    for argument in untold:
        default = written[argument.name or ""].default
        argument.help = default.help if isinstance(default, ArgumentInfo) else None


def _usage(error: click.ClickException) -> str:
    """What does not belong in a command, and where to read what does."""
    words = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.NoSuchOption) and context is not None:
        ours = ELSEWHERE.get(error.option_name.strip("-").replace("-", "_"), "")
        if ours in {one.name for one in context.command.params}:
            flag = f"--{ours.replace('_', '-')}"
            return f"No such option '{error.option_name}'. Did you mean '{flag}'?"
    if context is None or "did you mean" in words.lower():
        return words
    path = context.command_path
    several = "; fedrift compare takes several algorithms"
    more = several if path == "fedrift run" and "extra argument" in words else ""
    return f"{words.rstrip('.')}{more}; see {path} --help"


def code_of(arguments: Sequence[str] | None) -> int:
    """Runs a command and says in one sentence what went wrong."""
    command = tree()
    given = None if arguments is None else list(arguments)
    try:
        # Without standalone mode click returns the code of typer.Exit and raises the rest.
        code = command.main(given, prog_name="fedrift", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return BAD_INPUT
    except click.ClickException as error:
        return complain(_usage(error), BAD_INPUT)
    except InputError as error:
        return complain(str(error), BAD_INPUT, error)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for Ctrl-D at a prompt
            return complain(f"{describe(error.__cause__)}; {HINT}", FAILED, error)
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`fedrift list data | head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except RunError as error:
        return complain(str(error), FAILED, error)
    except OSError as error:
        return complain(sentence(error), FAILED, error)
    except Exception as error:
        if is_out_of_memory(error):
            fix = "use a smaller model, batch or data set, or fewer workers"
            return complain(f"the machine has not enough memory; {fix}", FAILED, error)
        return complain(f"{describe(error)}; {HINT}", FAILED, error)
    return code if isinstance(code, int) else DONE
