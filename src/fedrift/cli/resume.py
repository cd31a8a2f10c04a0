"""`fedrift resume`: goes on with a run that was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.run import TRACK
from fedrift.errors import InputError

TRUST = "Allow the folder's spec to use code (package.module:name), data or clusters of others."


def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
    workers: Annotated[
        str | None,
        typer.Option(metavar="auto|N", help="Other workers than before: the bits stay the same."),
    ] = None,
    rounds: Annotated[
        str | None,
        typer.Option(metavar="N", help="More rounds than it was to have, in all; finished or not."),
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Continue an interrupted run from its last checkpoint, or a finished one with more rounds, to
    the bits of a run that was never interrupted.

    FOLDER is what was given as --out.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift resume runs/a[/cyan]
    [cyan]fedrift resume runs/a --rounds 100[/cyan]
    """
    from fedrift.cli.console import console
    from fedrift.cli.launch import check_trust, execute, report
    from fedrift.config.analyses import read_live_plan
    from fedrift.config.own_code import IN_PYTHON
    from fedrift.config.spec import FIELDS
    from fedrift.engine.trackers import tracks
    from fedrift.storage.run_folder import SUMMARY, check_idle
    from fedrift.storage.run_record import read_summary

    spec, origin = check_trust(folder, trust_code)
    summary = read_summary(folder)
    if spec.data == IN_PYTHON:
        raise InputError(
            f"'{folder}' was made in Python; to continue, make the same call there once more"
        )
    if workers is not None:
        read = FIELDS["workers"]
        spec = replace(spec, workers=read.read(read.parse(workers, "workers"), "workers"))
    is_longer = False
    if rounds is not None:
        read, there = FIELDS["rounds"], spec.rounds
        spec = replace(spec, rounds=read.read(read.parse(rounds, "rounds"), "rounds"))
        if spec.rounds < there:
            raise InputError(f"--rounds {rounds}: '{folder}' has {there}; give more")
        is_longer = spec.rounds > there
    spec.validate()
    if summary.get("status") == "diverged" or (summary.get("status") == "done" and not is_longer):
        if "fingerprint" not in summary:
            raise InputError(
                f"'{folder / SUMMARY}' is damaged: it has no fingerprint; fedrift verify says what "
                "else is wrong"
            )
        more = "; --rounds N makes it longer" if summary.get("status") == "done" else ""
        console(errors=True).print(f"'{folder}' is finished; nothing is left to do{more}")
        try:
            report(summary, str(folder), as_json=as_json)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise InputError(f"'{folder / SUMMARY}' is damaged: numbers are missing") from None
        return
    check_idle(folder)
    tracks(track)
    execute(
        spec,
        str(folder),
        as_json=as_json,
        quiet=quiet,
        track=track or [],
        analyse=read_live_plan(folder),
        origin=origin,
    )


# `fedrift fork`: a new run that leaves another one after some round.


def fork(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
    at_round: Annotated[int, typer.Option(metavar="N", help="The last round in common.")],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder of the new run.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What is other from then on; repeatable."),
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Start a new run from a round of another, with some settings changed.

    The rounds before are computed again, to the same bits as those of FOLDER.

    \b
    [bold]Example[/bold]
    [cyan]fedrift fork runs/a --at-round 300 --set lr=0.01 --out runs/b[/cyan]
    """
    from fedrift.cli.launch import check_trust, execute
    from fedrift.config.own_code import IN_PYTHON
    from fedrift.storage.fork import fork_spec
    from fedrift.storage.run_folder import check_free

    spec, before = check_trust(folder, trust_code)
    if spec.data == IN_PYTHON:
        raise InputError(f"'{folder}' was made in Python; only runs of the command line are forked")
    if before is not None:
        raise InputError(f"'{folder}' is a fork itself; fork the run it comes from")
    changes: dict[str, str] = {}
    for text in change or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set '{text}' must be KEY=VALUE, such as lr=0.01")
        changes[key.strip().replace("-", "_")] = value.strip()
    new, origin = fork_spec(spec, at_round, changes)
    check_free(Path(out))
    execute(new, out, as_json=as_json, quiet=quiet, origin=origin)
