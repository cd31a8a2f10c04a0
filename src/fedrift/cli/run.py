"""`fedrift run`: one run from flags, a TOML file, or both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrift.config.backends import public_names

TASK, WHO, LOCAL = "Data and model", "Who takes part", "Local work"
FAULTS = "Faults and protection"
HOW, OUTPUT = "How it runs", "Output"
NUMBER, N = "NUMBER", "N"


def _flag(panel: str, help: str, metavar: str = "NAME") -> Any:
    # Numbers come as text too: the spec's own sentence says what is wrong with them.
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel)


TRACK = _flag(
    OUTPUT,
    "Follow it in tensorboard, mlflow or wandb too; mlflow:FOLDER says where. Can be repeated.",
    "NAME",
)


def run(
    algorithm: Annotated[str | None, typer.Argument(show_default=False)] = None,
    data: Annotated[
        str | None, _flag(TASK, "Data set: digits unless said; see: fedrift list data.")
    ] = None,
    data_dir: Annotated[
        str | None,
        _flag(TASK, "Where data files are looked for first; else in FEDRIFT_DATA.", "FOLDER"),
    ] = None,
    partition: Annotated[
        str | None,
        _flag(
            TASK, "How data are divided: dirichlet:0.5 unless said; see: fedrift list partitions."
        ),
    ] = None,
    alpha: Annotated[
        str | None, _flag(TASK, "Takes the place of the alpha in a Dirichlet partition.", NUMBER)
    ] = None,
    shift: Annotated[
        str | None, _flag(TASK, "Inputs differ by client: rotation:45, noise:0.5, contrast:0.5.")
    ] = None,
    model: Annotated[
        str | None,
        _flag(TASK, "cnn if the images are large enough, else mlp; see: fedrift list models."),
    ] = None,
    head: Annotated[str | None, _flag(TASK, "The last layer of your own model.")] = None,
    loss: Annotated[
        str | None, _flag(TASK, "cross_entropy, mse, l1, bce or module:function (cross_entropy).")
    ] = None,
    augment: Annotated[
        list[str] | None, _flag(TASK, "Such as crop:4 or flip; can be given several times.")
    ] = None,
    clients: Annotated[str | None, _flag(WHO, "Number of clients (10).", N)] = None,
    per_round: Annotated[str | None, _flag(WHO, "Clients in each round (all).", N)] = None,
    fraction: Annotated[
        str | None, _flag(WHO, "The same as a share of all clients.", NUMBER)
    ] = None,
    sampling: Annotated[
        str | None, _flag(WHO, "How they are drawn (fixed).", "fixed|bernoulli|cyclic")
    ] = None,
    participants: Annotated[
        str | None, _flag(WHO, "Exactly who, round by round: 0,3|1,2|0,4.", "LISTS")
    ] = None,
    weights: Annotated[
        str | None,
        _flag(WHO, "How replies are averaged (as the algorithm says).", "samples|uniform"),
    ] = None,
    epochs: Annotated[
        str | None,
        _flag(
            LOCAL,
            "Passes over a client's data (1): a number, one per client 1,3,2, or uniform:2,5.",
            N,
        ),
    ] = None,
    steps: Annotated[
        str | None, _flag(LOCAL, "Minibatch steps instead of epochs, said in the same ways.", N)
    ] = None,
    batch_size: Annotated[
        str | None,
        _flag(LOCAL, "Samples in a minibatch (64), or full: all that the client has.", N),
    ] = None,
    lr: Annotated[str | None, _flag(LOCAL, "Learning rate (0.1).", NUMBER)] = None,
    momentum: Annotated[
        str | None, _flag(LOCAL, "Momentum of the local steps (0).", NUMBER)
    ] = None,
    weight_decay: Annotated[str | None, _flag(LOCAL, "L2 weight decay (0).", NUMBER)] = None,
    clip: Annotated[str | None, _flag(LOCAL, "Largest norm of a step (none).", NUMBER)] = None,
    schedule: Annotated[
        str | None, _flag(LOCAL, "Rate over rounds: exp:0.9, step:10,factor=0.5, cosine.")
    ] = None,
    faults: Annotated[
        list[str] | None,
        _flag(FAULTS, "dropout:0.1, stragglers:0.3,late=partial or corrupt:0.2; can be repeated."),
    ] = None,
    aggregate: Annotated[
        str | None,
        _flag(FAULTS, "In place of the mean: median, trimmed:0.1, krum:2 or multikrum:2."),
    ] = None,
    privacy: Annotated[
        str | None,
        _flag(FAULTS, "Clip and noise what clients send: gaussian:NOISE,clip=LENGTH,delta=1e-5."),
    ] = None,
    rounds: Annotated[str | None, _flag(HOW, "Number of rounds (20).", N)] = None,
    seed: Annotated[str | None, _flag(HOW, "Fixes every random choice (0).", N)] = None,
    eval_every: Annotated[
        str | None, _flag(HOW, "Evaluate every N-th round, and the last (1).", N)
    ] = None,
    workers: Annotated[
        str | None,
        _flag(HOW, "Worker processes (auto: one per core); 0: none, in this process.", "auto|N"),
    ] = None,
    backend: Annotated[
        str | None,
        _flag(
            HOW,
            "Where clients run (auto); ray:ADDRESS is a cluster.",
            "|".join(public_names()),
        ),
    ] = None,
    dtype: Annotated[str | None, _flag(HOW, "Precision (float32).", "float32|float64")] = None,
    device: Annotated[str | None, _flag(HOW, "cpu, cuda, cuda:1 or mps (cpu).")] = None,
    stack: Annotated[
        str | None, _flag(HOW, "Train small models many clients at once (auto).", "auto|off|on")
    ] = None,
    spec: Annotated[
        Path | None,
        _flag(
            OUTPUT, "The same options in a TOML file (per_round = 10); flags come first.", "FILE"
        ),
    ] = None,
    out: Annotated[
        str | None,
        _flag(
            OUTPUT, "New folder for curve, ledger and weights; else nothing is written.", "FOLDER"
        ),
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    analyse: Annotated[
        str | None,
        _flag(
            OUTPUT,
            "Measure on the way: every=10,what=drift,classes (these two cost next to nothing).",
            "PLAN",
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Say where the time of every round goes.", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object on standard output.", rich_help_panel=OUTPUT),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the result.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Train with one federated algorithm and show what came out of it.

    ALGORITHM is a name with its options, such as scaffold:server_lr=0.5; fedavg unless said.
    See: fedrift list algorithms.

    \b
    [bold]Examples[/bold]
    [cyan]fedrift run fedavg[/cyan]
    [cyan]fedrift run scaffold --data mnist5k --partition dirichlet:0.1 --lr 0.05[/cyan]
    [cyan]fedrift run fedavg:weights=uniform --clients 100 --per-round 10 --json[/cyan]
    [cyan]fedrift run --spec experiment.toml --seed 1 --out runs/seed1[/cyan]
    """
    flags = {key: value for key, value in locals().items() if value not in (None, [], False)}

    from fedrift.cli.launch import chosen, start

    start(
        chosen(flags, spec),
        as_json=as_json,
        quiet=quiet,
        track=track or [],
        analyse=analyse,
        profile=profile,
    )
