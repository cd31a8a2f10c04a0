"""`fedrift flower`: an app for a real federation, development certificates, and a whole demo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrift.errors import InputError

app = typer.Typer(
    no_args_is_help=True, help="Take an experiment to a Flower federation.", rich_markup_mode="rich"
)
Deadline = Annotated[float, typer.Option(metavar="SECONDS", help="How long an exchange may take.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    spec: Annotated[
        Path, typer.Option(metavar="FILE", help="The experiment, as of fedrift run --spec.")
    ],
    deadline: Deadline = 600.0,
    shape: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="Of one sample, if the data set is not here."),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(metavar="N", help="Number of classes, with --shape.")
    ] = None,
) -> None:
    """Write a Flower app that runs an experiment, ready for flwr run.

    \b
    [bold]Example[/bold]
    [cyan]fedrift flower init my-app --spec experiment.toml[/cyan]
    """
    from fedrift.config.spec import Spec
    from fedrift.federation.config import FederationConfig
    from fedrift.federation.template import write_app

    wanted = Spec.from_toml(spec)
    wanted.validate()
    if (shape is None) != (classes is None):
        raise InputError("shape and classes belong together; give both or none")
    if shape is None:
        from fedrift.engine.prepare import prepare

        config = FederationConfig.of(wanted, prepare(wanted))
    else:
        if wanted.model is None or wanted.clients is None:
            raise InputError("a spec for data elsewhere must say model and clients")
        numbers = int(classes or 0), wanted.clients
        config = FederationConfig(wanted, _shape(shape), *numbers, named=False)
    for file in write_app(folder, config, deadline):
        typer.echo(file)
    typer.echo(f"start it with: flwr run {folder} NAME --stream")


def _shape(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InputError(f"shape '{text}' must be numbers such as 1,28,28")
    return numbers


@app.command()
def papers(
    folder: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    nodes: Annotated[int, typer.Option(metavar="N", help="How many nodes get a key.", min=1)] = 3,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name or address of the SuperLink; may be repeated."),
    ] = None,
) -> None:
    """Make certificates and node keys for development: TLS and SuperNode authentication.

    In production, certificates come from your own authority and every site makes its own key.
    """
    from fedrift.federation.certificates import make_certificates

    hosts = host or ["localhost", "127.0.0.1"]
    certificates = make_certificates(folder, [f"node{i}" for i in range(nodes)], hosts)
    for file in (
        certificates.authority,
        certificates.certificate,
        certificates.key,
        *certificates.nodes.values(),
    ):
        typer.echo(file)


@app.command()
def demo(
    algorithms: Annotated[list[str] | None, typer.Argument(show_default=False)] = None,
    nodes: Annotated[int, typer.Option(metavar="K", help="SuperNodes to start.", min=2)] = 3,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds of each run.", min=1)] = 3,
    data: Annotated[str, typer.Option(metavar="NAME", help="Data set.")] = "digits",
    partition: Annotated[
        str, typer.Option(metavar="NAME", help="How it is divided.")
    ] = "dirichlet:0.3",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model.")] = None,
    secure: Annotated[
        bool, typer.Option(help="TLS and SuperNode authentication, with new keys.")
    ] = True,
    deadline: Deadline = 300.0,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for everything.")] = Path(
        "flower-demo"
    ),
) -> None:
    """Start a SuperLink and SuperNodes on this machine and compare algorithms (fedavg, scaffold).

    Each node is given a file with its own samples, the server one with test samples. Every
    process is stopped at the end, and a report is written as for simulations.
    """
    from fedrift.cli.console import console
    from fedrift.config.spec import Spec
    from fedrift.federation.demo import run_demo

    values: dict[str, Any] = {"data": data, "partition": partition, "clients": nodes}
    values |= {"rounds": rounds, "model": model, "batch_size": 32}
    spec = Spec.of({k: v for k, v in values.items() if v is not None})
    screen, began = console(errors=True), time.perf_counter()

    def say(algorithm: str, row: dict[str, Any]) -> None:
        passed = f"{time.perf_counter() - began:6.1f} s"
        if text := _told(row, rounds):
            screen.print(f"{passed}  {algorithm or 'federation':<12} {text}", markup=False)

    chosen = algorithms or ["fedavg", "scaffold"]
    runs = run_demo(chosen, spec, out, secure=secure, deadline=deadline, say=say)
    from fedrift.cli.report import report

    report(runs, out=out / "report.html")


def _told(row: dict[str, Any], rounds: int) -> str:
    if row["event"] == "round":
        score = f"  accuracy {row['accuracy']:.4f}" if "accuracy" in row else ""
        return f"round {row['round']}/{rounds}{score}"
    if row["event"] == "started":
        return f"{row['clients']} clients, {row['parameters']:,} parameters"
    if row["event"] == "finished":
        return f"{row['status']}, fingerprint {row['fingerprint']}"
    return str(row.get("text", ""))
