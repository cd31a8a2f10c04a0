"""`fedrift list`: what can be named."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedrift.cli.screen import console
from fedrift.errors import unknown

KINDS = ("algorithms", "data", "partitions", "models")


def list_names(
    kind: Annotated[str, typer.Argument(metavar="algorithms|data|partitions|models")],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show options, defaults and references too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List the algorithms, data sets, partitions or models that can be named."""
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    entries = _algorithms() if kind == "algorithms" else _named(kind)
    if as_json:
        from fedrift.records import dump

        typer.echo(dump(entries, indent=2))
        return
    _show(kind, entries, verbose)


def _algorithms() -> list[dict[str, Any]]:
    from fedrift import catalogue

    return [
        {
            "name": entry.name,
            "about": entry.summary,
            "usage": entry.usage,
            "reference": entry.citation,
            "options": [
                {
                    "name": option.name,
                    "type": str(option.kind),
                    "default": option.default,
                    "required": option.required,
                    "about": option.about,
                }
                for option in entry.options
            ],
        }
        for entry in catalogue.algorithms().values()
    ]


def _named(kind: str) -> list[dict[str, Any]]:
    if kind == "models":
        from fedrift.model_names import GRAMMAR, NAMES, OWN

        models = {**NAMES, OWN: "your own nn.Module, built by calling it"}
        return [
            {"name": name, "about": about, "usage": GRAMMAR.get(name, name)}
            for name, about in models.items()
        ]
    if kind == "data":
        from fedrift.data.datasets import NAMES as TABLE
    else:
        from fedrift.data.partition import NAMES as TABLE
    return [
        {"name": name, "about": entry.about, "usage": entry.grammar}
        for name, entry in TABLE.items()
    ]


def _show(kind: str, entries: list[dict[str, Any]], verbose: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for entry in entries:
        table.add_row(Text(entry["name"], "bold"), entry["about"])
        if verbose:
            _details(table, entry)
    screen.print(table)
    if not verbose:
        screen.print(f"\nfedrift list {kind} --verbose shows how each is written.", style="dim")


def _details(table: Any, entry: dict[str, Any]) -> None:
    from rich.text import Text

    table.add_row("", Text(entry["usage"], "cyan"))
    for option in entry.get("options", ()):
        table.add_row("", Text(f"  {option['name']}: {option['about']} ({option['type']})"))
    if entry.get("reference"):
        table.add_row("", Text(entry["reference"], "dim"))
    table.add_row("", "")
