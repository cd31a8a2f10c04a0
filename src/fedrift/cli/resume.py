"""`fedrift resume`: goes on with a run that was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.run import TRACK
from fedrift.errors import InputError

TRUST = "Allow the folder's spec to use the code (package.module:name) or cluster it names."


def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
    workers: Annotated[
        str | None,
        typer.Option(metavar="auto|N", help="Other workers than before: the bits stay the same."),
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Continue an interrupted run from its last checkpoint, to the same bits.

    FOLDER is what was given as --out.
    """
    from fedrift.cli.screen import console  # here, so that --help need not wait for it
    from fedrift.cli.start import IN_PYTHON, check_trust, execute, report
    from fedrift.examinations import planned
    from fedrift.experiment import FIELDS
    from fedrift.records import read_file
    from fedrift.run_files import SUMMARY, check_idle
    from fedrift.track import tracks

    spec, origin = check_trust(folder, trust_code)
    summary = read_file(folder / SUMMARY) or {}
    if spec.data == IN_PYTHON:
        raise InputError(
            f"'{folder}' was made in Python; to continue, make the same call there once more"
        )
    if workers is not None:
        read = FIELDS["workers"]
        spec = replace(spec, workers=read.read(read.parse(workers, "workers"), "workers"))
    spec.validate()
    if summary.get("status") in ("done", "diverged"):
        console(errors=True).print(f"'{folder}' is finished; nothing is left to do")
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
        analyse=planned(folder),
        origin=origin,
    )
