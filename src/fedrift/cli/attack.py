"""`fedrift attack`: what a curious server could learn from what it is sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import console
from fedrift.grammar import number
from fedrift.report.numbers import percent_text

if TYPE_CHECKING:
    from fedrift.attack.gradients import Attack

app = typer.Typer(no_args_is_help=True, help="What a curious server could learn.")


@app.callback()
def _group() -> None:
    """What a curious server could learn from what it is sent."""


@app.command()
def gradients(
    data: Annotated[str, typer.Option(help="Whose inputs: images, or other numbers.")] = "digits",
    model: Annotated[str, typer.Option(help="Its first layer is linear: mlp or logistic.")] = "mlp",
    samples: Annotated[int, typer.Option(min=1, help="Inputs that the client has.")] = 4,
    steps: Annotated[str, typer.Option(help="Local steps of FedAvg to try.")] = "1,5,20",
    noises: Annotated[str, typer.Option(help="Noise to try, in multiples of the clip.")] = (
        "0.001,0.01,0.1"
    ),
    crowds: Annotated[str, typer.Option(help="Clients in a secure sum to try.")] = "4,16",
    out: Annotated[
        Path | None, typer.Option(help="A picture of what was read: png, svg or pdf.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data files are looked for.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Fixes every random choice.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a client's inputs out of the gradient of the first layer, against what prevents it."""
    local = [number(t, "steps", kind=int, low=1) for t in steps.split(",")]
    noised = [number(t, "noises", low=0, low_open=True) for t in noises.split(",")]
    summed = [number(t, "crowds", kind=int, low=2) for t in crowds.split(",")]
    from fedrift.attack.gradients import attack

    made = attack(
        data,
        model=model,
        samples=samples,
        steps=local,
        noises=noised,
        crowds=summed,
        data_dir=data_dir,
        seed=seed,
    )
    if out is not None:
        made.plot(out)
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump({"data": made.data, "settings": made.rows(), "note": made.note}))
        return
    _show(made)
    if out is not None:
        console().print(f"picture: {out}")


def _show(made: Attack) -> None:
    from rich.table import Table

    from fedrift.attack.gradients import RECOVERED

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("what the server sees", "inputs read", "mean correlation", "ε (δ = 1e-5)"):
        table.add_column(name, justify="left" if name.startswith("what") else "right")
    for row in made.rows():
        epsilon = "" if row["epsilon"] is None else f"{row['epsilon']:.3g}"
        read = percent_text(row["read"], 0)
        table.add_row(row["setting"], read, f"{row['correlation']:.2f}", epsilon)
    console().print(table)
    console().print(
        f"Read: a correlation of {RECOVERED:g} or more with the input. The row nearest to each "
        "input is taken, which only its owner could choose: no server finds more this way."
    )
    if made.note:
        console().print(made.note)
