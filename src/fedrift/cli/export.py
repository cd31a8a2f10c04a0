"""`fedrift export`: what a run has trained, as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.console import console
from fedrift.cli.launch import check_trust
from fedrift.cli.resume import TRUST


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    what: Annotated[
        str, typer.Option(help="adapter: as the library PEFT reads it; merged: the whole model.")
    ] = "adapter",
    data_dir: Annotated[str | None, typer.Option(help="Where data files are looked for.")] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
) -> None:
    """Write the adapter that a run has trained, or the merged model, as safetensors."""
    check_trust(run, trust_code)
    from fedrift.adapters import export
    from fedrift.analysis.saved import load

    case = load(run, data_dir=data_dir)
    problem, shown = case.task.problem, case.shown
    moved = dict(zip(problem.moving, shown.buffers, strict=True)) | dict(shown.frozen)
    files = export.exported(what, problem, shown.w, moved, case.task.spec.adapter)
    export.write(folder, files)
    console().print(f"{', '.join(files)} in {folder}")
