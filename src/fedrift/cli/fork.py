"""`fedrift fork`: a new run that leaves another one after some round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.resume import TRUST
from fedrift.errors import InputError


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
    from fedrift.cli.start import IN_PYTHON, check_trust, execute  # --help need not wait for it
    from fedrift.origin import forked
    from fedrift.run_files import check_free

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
    new, origin = forked(spec, at_round, changes)
    check_free(Path(out))
    execute(new, out, as_json=as_json, quiet=quiet, origin=origin)
