"""`fedrift verify`: computes a run again and compares every number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.resume import TRUST
from fedrift.errors import InputError, RunError


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="K", help="Only the first K rounds, a spot check.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="auto|N", help="Other workers than before.")
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Check a run folder: its weights against its fingerprint, and its rounds by doing them again.

    Exit code 0 if all agrees to the last bit, 1 if not, 2 if the folder cannot be read.
    """
    from fedrift.cli.start import check_trust  # --help need not wait for it
    from fedrift.verification import again, consistent

    if rounds is not None and rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, not {rounds}")
    check_trust(folder, trust_code)
    found = again(consistent(folder), rounds, workers, quiet)
    if found.differences:
        raise RunError("; ".join([found.differences[0], *found.hints]))
    typer.echo(found.said)
