"""`fedrift watch`: a page of the runs in a folder, while they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedrift.cli.console import console
from fedrift.core.plain_files import taken_back
from fedrift.errors import InputError


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of runs; new ones are found.")] = Path(
        "runs"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine (0: any free one).")
    ] = 0,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address; open no browser.")
    ] = False,
) -> None:
    """Show running and finished runs on a page of this machine, with curves that grow.

    The page reads run folders and changes nothing in them; its one button ends a run as Ctrl-C
    would. Ctrl-C here ends the page, not the runs.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift watch runs[/cyan]
    [cyan]fedrift watch runs/compare --port 8765 --no-open[/cyan]
    """
    from fedrift.watch.server import WatchServer

    with WatchServer(folder, port) as server:
        screen = console(errors=True)
        screen.print(f"watching {folder}; Ctrl-C ends this page, not the runs")
        typer.echo(server.address)
        if not no_open:
            import webbrowser

            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            screen.print("the page has ended; runs go on")


@contextmanager
def page_beside(folder: Path | None, *, wanted: bool) -> Generator[None]:
    """The page in a process of its own, which ends with the work: `--watch`."""
    if not wanted:
        yield
        return
    if folder is None:
        raise InputError("--watch shows what a run writes; give --out FOLDER")
    with taken_back(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _page(folder):
            yield


@contextmanager
def _page(folder: Path) -> Generator[None]:
    command = [sys.executable, "-m", "fedrift", "watch", str(folder)]
    kinds = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # a session of its own: Ctrl-C is for the run, which is then seen to end
    with subprocess.Popen(command, text=True, start_new_session=True, **kinds) as process:  # type: ignore[call-overload]
        try:
            if process.stdout is not None and (address := process.stdout.readline().strip()):
                console(errors=True).print(f"{'page':<10} {address}")
            yield
        finally:
            process.terminate()
