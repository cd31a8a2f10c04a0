"""`fedrift verify`: a run folder against its own hashes, and its rounds by doing them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrift.cli.console import one_line
from fedrift.cli.resume import TRUST
from fedrift.cli.second_run import (
    AT_THE_END,
    OF_TEXT,
    UNTIMED,
    hints_of,
    json_of,
    run_again,
    untold_texts,
)
from fedrift.config.own_code import IN_PYTHON
from fedrift.errors import InputError, RunError
from fedrift.storage import run_folder, run_record
from fedrift.storage.fork import read_origin
from fedrift.storage.run_folder import (
    CLIENT_ROUNDS,
    CLIENTS,
    ENVIRONMENT,
    LEDGER,
    MODEL,
    ORIGIN,
    ROUNDS,
    SPEC,
    STATES,
    SUMMARY,
    TRAINING,
    is_temporary,
)
from fedrift.storage.run_record import RunRecord

if TYPE_CHECKING:
    from fedrift.engine.plan import Task

UNSEEN = ("seconds", "folder")
"""Of a summary: how long it took and where it lay then, which nothing can tell again."""


def check_consistent(folder: Path) -> tuple[RunRecord, Checked]:
    """The run as its folder tells it; RunError if it is damaged or its parts contradict each
    other."""
    run_folder.read_spec(folder)  # what is no run folder cannot be verified at all
    try:
        record = run_record.load(folder)
        if record.spec.data == IN_PYTHON:
            raise NotVerified(f"'{folder}' was made in Python; make the same call again to verify")
        if record.torn:
            raise RunError(f"'{folder}': the last line of {record.torn[0]} is cut short; resume it")
        return record, Checked.of(record)
    except NotVerified:
        raise
    except InputError as error:
        raise RunError(f"not verified: {error}") from None


class NotVerified(InputError):
    """There is nothing wrong with the folder, but it cannot be verified."""


@dataclass(frozen=True)
class Checked:
    """The task of a folder, made again from its spec, and the files that have been looked at."""

    task: Task
    files: tuple[str, ...]
    untold: tuple[str, ...] = ()
    """Of the summary: what this version cannot tell again."""

    @staticmethod
    def of(record: RunRecord) -> Checked:
        from fedrift.engine.prepare import prepare
        from fedrift.engine.task import task_from_spec

        folder, summary = record.folder, record.summary
        origin, ready = read_origin(folder), prepare(record.spec)
        task = task_from_spec(record.spec, ready, origin=origin)
        first = None if origin is None else (task_from_spec(origin.spec, ready), origin.at)
        _check_environment(record, task, first)
        _check_clients(record, task)
        if summary:
            _check_summary(record, task)
            if summary.get("fingerprint") != fingerprint_of(record, task):
                raise RunError(
                    f"'{folder}': weights and rounds do not give its fingerprint "
                    f"{summary.get('fingerprint')}"
                )
        elif (folder / MODEL).exists():
            fingerprint_of(record, task)
        points = _check_checkpoints(record, task)
        _check_training(record)
        named = (SPEC, ORIGIN, ENVIRONMENT, CLIENTS, ROUNDS, LEDGER, CLIENT_ROUNDS, TRAINING)
        here = [name for name in (*named, SUMMARY, MODEL) if (folder / name).exists()]
        untold = tuple(name for name in untold_texts(summary) if name in summary)
        return Checked(task, (*here, *points), untold)

    def sentence(self, folder: Path, is_whole: bool) -> str:
        """What has been looked at, what of it was not, and what else is there."""
        more = self.untold if is_whole else ("status", "diverged_at", *OF_TEXT)
        unseen = (*UNSEEN, *more)
        left = {ENVIRONMENT: ("notes",), ROUNDS: (UNTIMED,), SUMMARY: unseen}
        inside = sorted(entry.name for entry in folder.iterdir())
        others = [name for name in inside if name not in self.files and not is_temporary(name)]
        names = [f"{n} (but {', '.join(left[n])})" if n in left else n for n in self.files]
        looked = f"looked at {', '.join(names)}"
        return f"{looked}; not at {', '.join(others)}" if others else looked


def _check_environment(record: RunRecord, task: Task, origin: tuple[Task, int] | None) -> None:
    """What the run was made from, where it can be told; elsewhere weights begin otherwise."""
    from fedrift.engine.identity import differences
    from fedrift.engine.recorder import environment

    known = record.environment
    if not (record.folder / ENVIRONMENT).exists():
        return
    if missing := [name for name in environment("") if name not in known]:
        raise RunError(f"'{record.folder}': {ENVIRONMENT} has no {missing[0]}")
    if known["identity"] == "" or hints_of(record):  # saved from a result; made elsewhere
        return
    if others := differences(known, task, origin):
        raise RunError(f"'{record.folder}': {ENVIRONMENT} is of another run ({', '.join(others)})")


def _check_summary(record: RunRecord, task: Task) -> None:
    """All of a summary that follows from the other files."""
    from fedrift.engine.identity import known_parts
    from fedrift.engine.ledger import Ledger
    from fedrift.engine.recorder import instructions_of
    from fedrift.engine.result import figures

    summary = record.summary
    wanted = json_of(task.about)
    sources = dict.fromkeys(wanted, "the spec gives")
    found = json_of(figures(record.rounds, Ledger.of(record.ledger), record.clients))
    sources |= dict.fromkeys(found, f"{ROUNDS} and {LEDGER} give")
    wanted |= found
    # Earlier versions named the instruction set in the environment only.
    if known_parts(record.environment) or "instructions" in summary:
        wanted["instructions"] = instructions_of(record.environment)
        sources["instructions"] = f"{ENVIRONMENT} gives"
    for name, value in wanted.items():
        if name not in summary:
            raise RunError(f"'{record.folder}': {SUMMARY} has no {name}")
        if repr(summary[name]) != repr(value):
            raise RunError(
                f"'{record.folder}': {SUMMARY} says {name} {summary[name]!s:.40}, {sources[name]} "
                f"{value!s:.40}"
            )
    needed = [name for name in (*UNSEEN, *AT_THE_END) if name not in OF_TEXT]
    if missing := [name for name in needed if name not in summary]:
        raise RunError(f"'{record.folder}': {SUMMARY} has no {missing[0]}")
    if added := sorted(summary.keys() - wanted.keys() - {*UNSEEN, *AT_THE_END}):
        raise RunError(f"'{record.folder}': {SUMMARY} has {added[0]!s:.40}, which no run writes")


def _check_training(record: RunRecord) -> None:
    """Who reported of its training had replied in that round."""
    replied: dict[int, set[int]] = {}
    for entry in record.ledger:
        replied.setdefault(entry["round"], set()).update(entry["replied"])
    for row in record.training:
        if strange := set(row["client"]) - replied.get(row["round"], set()):
            raise RunError(
                f"'{record.folder}': {TRAINING} has client {min(strange)} in round "
                f"{row['round']}, which did not reply in it"
            )


def _check_clients(record: RunRecord, task: Task) -> None:
    from fedrift.engine.recorder import clients

    if not (record.folder / CLIENTS).exists():
        return
    wanted = json_of(clients(task.split, task.problem.classes))
    for name in sorted(record.clients.keys() | wanted.keys()):
        if repr(record.clients.get(name)) != repr(wanted.get(name)):
            raise RunError(
                f"'{record.folder}': {name!s:.40} of {CLIENTS} are not those of the data"
            )


def _check_checkpoints(record: RunRecord, task: Task) -> tuple[str, ...]:
    """Reads every checkpoint as a run would that goes on from it; their names."""
    from fedrift.engine.resume import check_checkpoint
    from fedrift.storage import checkpoint

    names = [n for n in (checkpoint.FILE, checkpoint.PREVIOUS) if (record.folder / n).exists()]
    for name in names:
        try:
            check_checkpoint(task, record.folder, name)
        except ValueError as error:
            raise RunError(f"'{record.folder}': {name} cannot be used ({error})") from None
    return (*names, STATES) if names and (record.folder / STATES).exists() else tuple(names)


def fingerprint_of(record: RunRecord, task: Task) -> str:
    """Of the weights and rounds as they stand in the folder."""
    import torch

    from fedrift.engine.result import fingerprint

    weights, layout = record.weights(), task.problem.layout
    wanted = layout.named(task.problem.w0)
    if any(n not in weights or weights[n].shape != tuple(wanted[n].shape) for n in layout.names):
        raise RunError(f"'{record.folder}': weights of the model are missing or of another form")
    flat = torch.cat([torch.from_numpy(weights[name]).reshape(-1) for name in layout.names])
    return fingerprint(flat, record.rounds)


def verify(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(metavar="K", help="Only the first K rounds, a spot check.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="auto|N", help="Other workers than before.")
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST)] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
) -> None:
    """Check a run folder: its files against each other, and its rounds by doing them again.

    Exit code 0 if all agrees to the last bit, 1 if something is damaged or differs, 2 if it is no
    run folder. A run of a processor that rounds otherwise, or of other versions of torch or
    numpy, cannot be compared bit for bit: 0 if losses and weights are within 1e-6, and nothing
    else differs by more than that explains.
    """
    from fedrift.cli.launch import check_trust

    if rounds is not None and rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, not {rounds}")
    check_trust(folder, trust_code)
    record, checked = check_consistent(folder)
    verdict = run_again(record, rounds, workers, quiet)
    looked = checked.sentence(folder, verdict.is_whole)
    try:
        typer.echo(one_line(f"{verdict.sentence()}; {looked}"))
    except RunError as error:
        raise RunError(f"{error}; {looked}") from None
