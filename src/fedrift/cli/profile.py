"""The table of `--profile`: milliseconds of every round by kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedrift.cli.screen import console

FIRST, LAST = 3, 7  # rounds that are shown of a long run; the means are of all
HELP = {
    "gradient": "forward and backward passes",
    "optimizer": "the rest of the local steps: corrections, clipping, update",
    "batch": "choosing and augmenting minibatches",
    "client": "the client method outside training: state, messages",
    "transport": "workers reading what is sent to them and writing their replies",
    "evaluate": "the test set",
    "send": "main process: writing what goes out",
    "fold": "main process: adding up replies",
    "checkpoint": "main process: saving",
    "idle": "workers had nothing to do; without workers: everything else",
}


def show(rounds: Sequence[Mapping[str, float]]) -> None:
    """Prints the rounds, their mean, and each kind's share of the time of all processes."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    if not rounds:
        screen.print("no profile: the run was finished before")
        return
    kinds = [k for k in HELP if any(row[k] for row in rounds)]
    table = Table("round", "wall", *kinds, title="Milliseconds per round, all workers together")
    for column in table.columns:
        column.justify = "right"
    is_long = len(rounds) > FIRST + LAST
    for row in [*rounds[:FIRST], *rounds[-LAST:]] if is_long else rounds:
        table.add_row(f"{row['round']:.0f}", *_cells(row, kinds))
    mean = {k: sum(row[k] for row in rounds) / len(rounds) for k in ("wall", *kinds)}
    table.add_section()
    table.add_row("mean", *_cells(mean, kinds))
    total = sum(mean[k] for k in kinds) or 1.0
    table.add_row("share", "", *(f"{mean[k] / total:.1%}" for k in kinds))
    screen.print(table)
    for kind in kinds:
        screen.print(Text.assemble((f"{kind:<10} ", "dim"), HELP[kind]))


def _cells(row: Mapping[str, float], kinds: Sequence[str]) -> list[str]:
    return [_milliseconds(row[kind]) for kind in ("wall", *kinds)]


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
