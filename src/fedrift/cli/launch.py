"""Starts a checked run, shows it, and says how it ended."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from fedrift.backends import cores, importing
from fedrift.cli.console import console, loss_text, visible
from fedrift.cli.progress import Watcher, watcher
from fedrift.config.analyses import LivePlan, parse_live_plan
from fedrift.config.backends import starts_workers
from fedrift.config.own_code import IN_PYTHON, foreign_code
from fedrift.config.spec import FIELDS, Spec, read_toml, replaced_by
from fedrift.engine import interrupts
from fedrift.engine.callbacks import Passive
from fedrift.engine.trackers import tracks
from fedrift.errors import INTERRUPTED, InputError
from fedrift.report.numbers import bytes_text, percent_text, seconds_text
from fedrift.storage.fork import Origin, read_origin
from fedrift.storage.jsonl import dump
from fedrift.storage.run_folder import (
    check_free,
    check_idle,
    check_plain_files,
    holds_run,
    read_spec,
)

if TYPE_CHECKING:
    from fedrift.engine.callbacks import Plan

# The table of `--profile`: milliseconds of every round by kind of work.

FIRST, LAST = 3, 7  # rounds that are shown of a long run; the means are of all
HELP = {
    "gradient": "forward and backward passes",
    "optimizer": "the rest of the local steps: corrections, clipping, update",
    "batch": "choosing and augmenting minibatches",
    "client": "the client method outside training: state, messages",
    "transport": "workers reading what is sent to them and writing their replies",
    "evaluate": "the test set",
    "send": "main process: writing what goes out",
    "wait": "main process: waiting for workers",
    "fold": "main process: adding up replies",
    "server": "main process: choosing clients, the algorithm's own steps, the states of clients",
    "record": "main process: rows, files and callbacks",
    "checkpoint": "main process: saving",
    "idle": "workers had nothing to do",
}


class Stages(Passive):
    """Where all the time of the command went, one stage after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = interrupts.BEGAN

    def end(self, name: str) -> None:
        now = perf_counter()
        self.seconds[name] = now - self._since
        self._since = now

    def on_start(self, plan: Plan) -> None:
        self.end("task")

    def rounds(self, rows: Sequence[Mapping[str, float]]) -> None:
        """The run is over: its rounds, and what was around them."""
        self.end("workers and end")
        self.seconds["rounds"] = sum(row["wall"] for row in rows)
        self.seconds["workers and end"] -= self.seconds["rounds"]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items())
        return f"{sum(self.seconds.values()):.2f} s in all: {parts}"


def show(rounds: Sequence[Mapping[str, float]]) -> None:
    """Prints the rounds, their mean, and each kind's share of the time of all processes."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    if not rounds:
        screen.print("no profile: the run was finished before")
        return
    kinds = [k for k in HELP if any(row[k] for row in rounds)]
    table = Table("round", "wall", *kinds, title="Milliseconds per round, all processes together")
    for column in table.columns:
        column.justify = "right"
    is_long = len(rounds) > FIRST + LAST
    for row in [*rounds[:FIRST], *rounds[-LAST:]] if is_long else rounds:
        table.add_row(f"{row['round']:.0f}", *_cells(row, kinds))
    mean = {k: sum(row[k] for row in rounds) / len(rounds) for k in ("wall", *kinds)}
    table.add_section()
    table.add_row("mean", *_cells(mean, kinds))
    total = sum(mean[k] for k in kinds) or 1.0
    table.add_row("share", "", *(percent_text(mean[k] / total, 1) for k in kinds))
    screen.print(table)
    for kind in kinds:
        screen.print(Text.assemble((f"{kind:<10} ", "dim"), HELP[kind]))


def _cells(row: Mapping[str, float], kinds: Sequence[str]) -> list[str]:
    return [_milliseconds(row[kind]) for kind in ("wall", *kinds)]


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def chosen(flags: Mapping[str, object], file: Path | None) -> Spec:
    """The values of the file, if there is one, with the flags in their place."""
    values: dict[str, object] = {} if file is None else read_toml(file)
    given = {
        key: FIELDS[key].parse(text, key) if isinstance(text, str) else text
        for key, text in flags.items()
        if key in FIELDS
    }
    gone = replaced_by(given)  # a flag takes the place of what says the same in another way
    return Spec.of({**{k: v for k, v in values.items() if k not in gone}, **given})


def start(
    spec: Spec,
    *,
    as_json: bool,
    quiet: bool,
    track: Sequence[str] = (),
    analyse: str | None = None,
    profile: bool = False,
    watch: bool = False,
) -> None:
    """A new run, or the same one to go on with. Refuses before torch is imported what it can."""
    spec.validate()
    tracks(track)
    if spec.participants is not None and len(spec.participants) > spec.rounds:
        raise InputError(
            f"participants lists {len(spec.participants)} rounds, but rounds is {spec.rounds}; "
            "give as many"
        )
    if spec.out is not None and not _is_same(spec, Path(spec.out)):
        check_free(Path(spec.out))
    plan = None if analyse is None else parse_live_plan(analyse)
    if plan is not None and spec.out is None:
        raise InputError(f"analyse '{analyse}' needs a folder for what it finds; give --out FOLDER")
    from fedrift.cli.watch import page_beside

    around = None if spec.out is None else Path(spec.out).absolute().parent
    with page_beside(around, wanted=watch):
        execute(
            spec, spec.out, as_json=as_json, quiet=quiet, track=track, analyse=plan, profile=profile
        )


def _is_same(spec: Spec, folder: Path) -> bool:
    """The folder holds the beginning of this very run: the same command goes on with it."""
    if not holds_run(folder):
        return False
    check_plain_files(folder)
    if read_origin(folder) is not None:
        return False
    there = read_spec(folder)
    if there.rounds < spec.rounds and there.participants is None:  # the same run, made longer
        there = replace(there, rounds=spec.rounds)
    usual = {name: None for name in ("out", "model")} | {"workers": "auto", "backend": "auto"}
    same = replace(there, **usual) == replace(spec, **usual) and spec.model in (None, there.model)
    if same:
        check_idle(folder)
    return same


def check_trust(folder: Path, trust: bool) -> tuple[Spec, Origin | None]:
    """What a folder says it is. It may come from anybody: links in it are not followed, and code
    or clusters that its specs name are used only when that is wanted."""
    spec = modest(read_spec(folder))
    check_plain_files(folder)
    origin = read_origin(folder)
    if spec.data == IN_PYTHON:  # the caller says what is possible with it
        return spec, origin
    named = foreign_code(spec) + ([] if origin is None else foreign_code(origin.spec))
    if named and not trust:
        raise InputError(f"'{folder}' would use '{named[0]}'; if you trust it, add --trust-code")
    return spec, origin


def modest(spec: Spec) -> Spec:
    """A folder's spec, which may be another's, with no more workers than this machine has cores:
    the bits do not depend on them."""
    is_much = isinstance(spec.workers, int) and spec.workers > max(1, cores())
    return replace(spec, workers="auto") if is_much else spec


def execute(
    spec: Spec,
    folder: str | None,
    *,
    as_json: bool,
    quiet: bool,
    track: Sequence[str] = (),
    analyse: LivePlan | None = None,
    origin: Origin | None = None,
    profile: bool = False,
) -> None:
    """Runs what has been checked; `folder` may hold the beginning of the same run."""
    if starts_workers(spec.backend, spec.workers):
        from fedrift.backends import prestart

        prestart()
    from fedrift.engine.prepare import prepare

    # The workers import torch while the data are read here, and bad data are refused without it.
    stages = Stages()
    stages.end("command")
    prepared = prepare(spec)
    stages.end("data")
    spec = replace(spec, model=prepared.model)
    watch = watcher(spec, silent=as_json or quiet)
    try:
        with importing():
            from fedrift import api

        stages.end("imports")
        result = api.run_spec(
            spec,
            callbacks=[watch, stages] if profile else [watch],
            out=folder,
            prepared=prepared,
            track=track,
            analyse=analyse,
            origin=origin,
            profile=profile,
            measuring=watch.measuring,
        )
    except KeyboardInterrupt:
        watch.close()
        print(visible(_interrupted(watch, spec, folder)), file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        watch.close()
    summary = result.summary()
    if profile:
        stages.rounds(result.profile)
        summary |= {"profile": result.profile, "stages": stages.seconds}
    report(summary, folder, as_json=as_json)
    if profile and not as_json:
        show(result.profile)
        console().print(str(stages))


def _interrupted(watch: Watcher, spec: Spec, folder: str | None) -> str:
    if not watch.has_started:
        return "interrupted before the first round"
    done = f"interrupted after round {watch.finished} of {spec.rounds}"
    if folder is None:
        return f"{done}; nothing was kept, since no --out was given"
    return f"{done}; continue with: fedrift resume {shlex.quote(folder)}"


def report(summary: dict[str, Any], folder: str | None, *, as_json: bool) -> None:
    """The result on standard output: one JSON object or a small table."""
    if as_json:
        typer.echo(dump({**summary, "folder": folder}))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in _rows(summary, folder):
        table.add_row(Text(name, "dim"), value)
    console().print(table)


def _rows(summary: dict[str, Any], folder: str | None) -> list[tuple[str, str]]:
    rows = [("status", _status(summary))]
    if summary.get("final_accuracy") is not None:
        own = (summary.get("at_clients") or {}).get("client_accuracy")
        of = ", mean over clients" if own == summary["final_accuracy"] else ""
        rows.append(("final accuracy", f"{percent_text(summary['final_accuracy'])}{of}"))
        rows.append(("best accuracy", percent_text(summary["best_accuracy"])))
    if summary.get("loss"):
        rows.append(("final loss", loss_text(summary["loss"][-1])))
    rows += _at_clients(summary.get("at_clients") or {})
    rows += _in_domains(summary.get("domains") or [])
    sent = f"{bytes_text(summary['bytes_up'])} up, {bytes_text(summary['bytes_down'])} down"
    rows += [
        ("communication", sent),
        ("gradients", f"{summary['gradient_evaluations']:,} evaluations"),
        *([("on the clock", seconds_text(summary["time"]))] if "time" in summary else []),
        ("time", seconds_text(summary["seconds"])),
        ("fingerprint", _fingerprint(summary)),
        ("folder", folder or "none: give --out FOLDER to keep curve and weights"),
    ]
    return rows


def _fingerprint(summary: dict[str, Any]) -> str:
    """With the arithmetic that it belongs to."""
    used = summary.get("instructions")
    return str(summary["fingerprint"]) + (f" ({used})" if used else "")


def _at_clients(last: dict[str, Any]) -> list[tuple[str, str]]:
    """How the clients fared on test data of their own."""
    if "client_accuracy" not in last:
        return []
    names = ("client_accuracy", "client_accuracy_worst", "client_accuracy_best")
    usual, worst, best = (percent_text(last[name]) for name in names)
    text = f"{usual}, worst tenth {worst}, best {best}, Jain {last['client_accuracy_jain']:.3f}"
    rows = [("at clients", text)]
    if "global_accuracy" in last:
        of_all = percent_text(last["global_accuracy"])
        rows.append(("server's model", f"{of_all} on the server's test set"))
    if last["clients_not_visited"]:
        number, never = last["clients_evaluated"], last["clients_not_visited"]
        rows.append(("", f"{never:,} of {number:,} clients not visited yet"))
    return rows


def _in_domains(domains: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Accuracy of the server's model in the domains of a shift, seen and unseen."""
    heads = {True: "in domains", False: "in unseen ones"}
    found: list[tuple[str, str]] = []
    for is_seen, head in heads.items():
        some = [
            f"{d['name']} {percent_text(d['accuracy'])}" for d in domains if d["seen"] == is_seen
        ]
        more = f", {len(some) - MOST_DOMAINS} more" if len(some) > MOST_DOMAINS else ""
        found += [(head, ", ".join(some[:MOST_DOMAINS]) + more)] if some else []
    return found


MOST_DOMAINS = 8  # that are printed


def _status(summary: dict[str, Any]) -> str:
    if summary["status"] != "diverged":
        number = summary["rounds"]
        return f"{summary['status']}, {number:,} round{'' if number == 1 else 's'}"
    at = f" in round {summary['diverged_at']}" if summary.get("diverged_at") else ""
    return f"diverged{at}: weights or loss became infinite; try a smaller lr"
