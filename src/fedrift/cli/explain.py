"""`fedrift explain`: one round of an algorithm, step by step, as a page or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrift.errors import InputError

HOW, OUTPUT = "How it is run", "Output"


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[:options]",
            show_default=False,
            help="The algorithm: scaffold, fedprox:mu=0.3, or your own as module:Class,key=value.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A page (.html) or a picture (.png, .svg, .pdf); explain-NAME.html unless said.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="K", help="Local steps, or 3,9 for each client.", rich_help_panel=HOW),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds.", rich_help_panel=HOW)] = 10,
    lr: Annotated[
        float | None, typer.Option(metavar="RATE", help="Local rate.", rich_help_panel=HOW)
    ] = None,
    terrain: Annotated[
        str | None,
        typer.Option(
            metavar="bowls|wells",
            help="Two bowls that differ, or a narrow pit beside a wide valley.",
            rich_help_panel=HOW,
        ),
    ] = None,
    turns: Annotated[
        bool | None,
        typer.Option(
            "--turns/--together",
            help="Clients take part one after the other, or both in every round.",
            show_default=False,
            rich_help_panel=HOW,
        ),
    ] = None,
) -> None:
    """Watch an algorithm work: two clients, two dimensions, every step drawn.

    The real algorithm runs; local paths, corrections and the server's step are recorded. What is
    not said is chosen so that the effect can be seen.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift explain scaffold[/cyan]
    [cyan]fedrift explain fedprox:mu=0.3 -o fedprox.png[/cyan]
    [cyan]fedrift explain fedavg --steps 1[/cyan]
    """
    _check_name(name)
    from fedrift.cli.console import console
    from fedrift.explain import explain as make
    from fedrift.report.numbers import bytes_text

    done = make(name, out, steps=_steps(steps), rounds=rounds, lr=lr, terrain=terrain, turns=turns)
    console().print(done.words)
    console().print(f"{done.path}  {bytes_text(done.path.stat().st_size)}")


def _check_name(text: str) -> None:
    """Refuses what cannot be named, before torch is imported."""
    from fedrift.config import algorithms
    from fedrift.grammar import parse

    named = parse(text, "algorithm")
    is_ours = named.name in algorithms.names()
    if not is_ours or named.inner is not None or not algorithms.entry(named.name).is_wrapper:
        algorithms.check(named)


def _steps(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"steps must be a whole number, or two such as 3,9, not '{text}'"
        ) from None
