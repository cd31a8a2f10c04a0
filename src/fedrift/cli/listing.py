"""`fedrift list`: what can be named."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.cli.console import console
from fedrift.errors import InputError, unknown

if TYPE_CHECKING:
    from rich.console import Console


KINDS = (
    "algorithms",
    "data",
    "partitions",
    "models",
    "adapters",
    "losses",
    "shifts",
    "augments",
    "schedules",
)
SCHEDULES = {
    "constant": "the same rate in every round",
    "exp": "the rate times FACTOR after every round",
    "step": "the rate times FACTOR after every N rounds",
    "cosine": "half a cosine from the rate down to FLOOR of it",
}


def list_names(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=", ".join(KINDS), show_default=False)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show options, defaults and references too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """List what can be named: algorithms, data sets, partitions, models, and the rest."""
    if kind is None:
        raise InputError(f"KIND is missing; name one: {', '.join(KINDS)}")
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    entries = _algorithms() if kind == "algorithms" else _named(kind)
    if as_json:
        from fedrift.storage.jsonl import dump

        typer.echo(dump(entries, indent=2))
        return
    _show(kind, entries, verbose)


def _algorithms() -> list[dict[str, Any]]:
    from fedrift.config import algorithms

    costs = _costs()
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
            "cost": costs.get(entry.name),
        }
        for entry in algorithms.algorithms().values()
    ]


def _costs() -> dict[str, Any]:
    """What each algorithm sends, computes and keeps: measured once, because it takes torch."""
    import json

    from fedrift.config.algorithms import PACKAGE

    table = PACKAGE / "algorithms" / "costs.json"  # by path: the package itself imports torch
    return json.loads(table.read_text(encoding="utf-8"))["algorithms"]


def _named(kind: str) -> list[dict[str, Any]]:
    if kind == "models":
        from fedrift.config.models import GRAMMAR, NAMES, OWN

        models = {**NAMES, OWN: "your own nn.Module, built by calling it"}
        return [
            {"name": name, "about": about, "usage": GRAMMAR.get(name, name)}
            for name, about in models.items()
        ]
    if kind == "adapters":
        from fedrift.config.adapters import KINDS as ADAPTERS

        return [{"name": n, "about": a.about, "usage": a.grammar} for n, a in ADAPTERS.items()]
    if kind == "losses":
        from fedrift.config.models import LOSSES
        from fedrift.config.models import OWN_LOSS as MINE

        losses = {**LOSSES, MINE: "your function of output and target"}
        return [{"name": n, "about": a, "usage": n} for n, a in losses.items()]
    if kind == "augments":
        from fedrift.data.augment import GRAMMAR as WRITTEN
        from fedrift.data.augment import NAMES as AUGMENTS

        return [{"name": n, "about": a, "usage": WRITTEN[n]} for n, a in AUGMENTS.items()]
    if kind == "schedules":
        from fedrift.config.local_work import SCHEDULES as FORMS

        return [{"name": n, "about": SCHEDULES[n], "usage": f.example} for n, f in FORMS.items()]
    if kind == "shifts":
        from fedrift.data.shift import NAMES as SHIFTS
        from fedrift.data.shift import OPTIONS

        shifts = {n: (s.about, s.grammar) for n, s in SHIFTS.items()}
        shifts |= {usage.partition("=")[0]: (about, usage) for usage, about in OPTIONS.items()}
        return [{"name": n, "about": about, "usage": usage} for n, (about, usage) in shifts.items()]
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
    if verbose:
        indent = 2 + max(len(entry["name"]) for entry in entries)
        for entry in entries:
            _details(screen, entry, indent)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for entry in entries:
        table.add_row(Text(entry["name"], "bold"), entry["about"])
    screen.print(table)
    screen.print(f"\nfedrift list {kind} --verbose shows how each is written.", style="dim")


def _details(screen: Console, entry: dict[str, Any], indent: int) -> None:
    from rich.text import Text

    def tell(text: str, style: str = "", hanging: int = 0) -> None:
        first, rest = " " * indent, " " * (indent + hanging)
        width = max(screen.width, indent + 40)
        for line in wrap(text, width, initial_indent=first, subsequent_indent=rest):
            screen.print(Text(line, style), soft_wrap=True)

    name = Text(entry["name"].ljust(indent), "bold")
    screen.print(name.append(Text(entry["about"], "not bold")), soft_wrap=True)
    usage = Text(" " * indent + entry["usage"], "cyan")
    screen.print(usage, soft_wrap=True)  # whole, so that it can be copied
    for option in entry.get("options", ()):
        tell(f"· {option['name']}: {option['about']} ({option['type']})", hanging=2)
    if cost := entry.get("cost"):
        measured = "" if cost["measured_as"] == entry["name"] else f" ({cost['measured_as']})"
        tell(f"sent down{measured}: {cost['down']}", hanging=2)
        tell(f"sent up{measured}: {cost['up']}", hanging=2)
        tell(f"gradient evaluations: {cost['gradients']}", hanging=2)
        tell(f"kept by the server besides the model: {cost['server']}", hanging=2)
        tell(f"kept by a client: {cost['client']}", hanging=2)
    if entry.get("reference"):
        tell(entry["reference"], "dim")
    screen.print()
