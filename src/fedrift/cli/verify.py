"""`fedrift verify`: a run folder against its own hashes, and its rounds by doing them again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrift.cli.console import one_line
from fedrift.cli.resume import TRUST
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.spec import FIELDS
from fedrift.errors import InputError, RunError
from fedrift.storage import run_folder
from fedrift.storage.fork import read_origin
from fedrift.storage.jsonl import dump, load
from fedrift.storage.run_folder import (
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
    RunRecord,
    is_temporary,
)

if TYPE_CHECKING:
    from fedrift.engine.plan import Task
    from fedrift.engine.result import Result

UNTIMED = "seconds"
ELSEWHERE = ("machine", "instructions", "torch", "numpy")
"""What of an environment decides in which order kernels add."""
NEAR = 1e-6  # of the largest: what is within may be the same run


@dataclass(frozen=True)
class Verdict:
    """What a second run said."""

    agreement: str
    differences: tuple[str, ...]
    hints: tuple[str, ...] = ()
    distance: float | None = None
    """From the run, where it was computed by other kernels, so that the bits say nothing."""

    def sentence(self) -> str:
        """RunError if something is not as it was."""
        if self.distance is None:
            if self.differences:
                raise RunError("; ".join([self.differences[0], *self.hints]))
            return f"verified: {self.agreement}"
        said = f"cannot be compared bit for bit ({', '.join(self.hints)})"
        if not self.distance <= NEAR:
            raise RunError(f"{said}: {self.distance:.1e} away from it, {self.differences[0]}")
        return f"{said}: within {NEAR:.0e} of it".replace("e-06", "e-6")


def check_consistent(folder: Path) -> tuple[RunRecord, Checked]:
    """The run as its folder tells it; RunError if it is damaged or its parts contradict each
    other."""
    run_folder.read_spec(folder)  # what is no run folder cannot be verified at all
    try:
        record = run_folder.load(folder)
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

    @staticmethod
    def of(record: RunRecord) -> Checked:
        from fedrift.engine.ledger import Ledger
        from fedrift.engine.prepare import prepare
        from fedrift.engine.result import figures
        from fedrift.engine.task import task_from_spec

        folder, summary = record.folder, record.summary
        origin = read_origin(folder)
        task = task_from_spec(record.spec, prepare(record.spec), origin=origin)
        if summary:
            wanted = figures(record.rounds, Ledger.of(record.ledger))
            _check_same(folder, summary, wanted, f"{ROUNDS} and {LEDGER}")
            _check_same(folder, summary, json_of(task.about), "the spec")
            if summary.get("fingerprint") != fingerprint_of(record, task):
                raise RunError(
                    f"'{folder}': weights and rounds do not give its fingerprint "
                    f"{summary.get('fingerprint')}"
                )
        elif (folder / MODEL).exists():
            fingerprint_of(record, task)
        _check_clients(record, task)
        points = _check_checkpoints(record, task)
        _check_training(record)
        named = (SPEC, ORIGIN, ENVIRONMENT, CLIENTS, ROUNDS, LEDGER, TRAINING, SUMMARY, MODEL)
        here = [name for name in named if (folder / name).exists()]
        return Checked(task, (*here, *points))

    def sentence(self, folder: Path) -> str:
        """What has been looked at, and what else is there."""
        covered = {*self.files, STATES} if STATES in self.files else {*self.files}
        inside = sorted(entry.name for entry in folder.iterdir())
        others = [name for name in inside if name not in covered and not is_temporary(name)]
        looked = f"looked at {', '.join(self.files)}"
        return f"{looked}; not at {', '.join(others)}" if others else looked


def _check_same(
    folder: Path, summary: Mapping[str, Any], wanted: Mapping[str, Any], source: str
) -> None:
    for name, value in wanted.items():
        if name in summary and str(summary[name]) != str(value):
            raise RunError(
                f"'{folder}': {SUMMARY} says {name} {summary[name]!s:.40}, {source} give "
                f"{value!s:.40}"
            )


def json_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from a file."""
    return load(dump(values))


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

    wanted = json_of(clients(task.split, task.problem.classes))
    for name, value in record.clients.items():
        if name in wanted and value != wanted[name]:
            raise RunError(f"'{record.folder}': {name} of {CLIENTS} are not those of the data")


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


def run_again(record: RunRecord, rounds: int | None, workers: str | None, quiet: bool) -> Verdict:
    """Run it once more, or its first rounds, and compare."""
    from fedrift.api import run_spec
    from fedrift.cli.launch import modest
    from fedrift.cli.progress import watcher

    spec = modest(replace(record.spec, out=None))
    if workers is not None:
        field = FIELDS["workers"]
        spec = replace(spec, workers=field.read(field.parse(workers, "workers"), "workers"))
    done = record.rounds[-1]["round"] if record.rounds else 0
    is_whole = "fingerprint" in record.summary and (rounds is None or rounds >= spec.rounds)
    until = None if is_whole else min(done, rounds or done)
    watch, origin = watcher(spec, silent=quiet), read_origin(record.folder)
    with tempfile.TemporaryDirectory(prefix="fedrift-verify-") as scratch, closing(watch):
        out = None if origin is None else Path(scratch) / "run"
        result = run_spec(spec, callbacks=[watch], out=out, until=until, origin=origin)

    def early(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [row for row in rows if until is None or row["round"] <= until]

    mine = early(record.rounds)
    differences = compared(mine, result.metrics)
    differences += compared(early(record.ledger), json_rows(result.ledger.rows()), "exchanges")
    if is_whole:
        differences += _ends(record, result)
    which = "all" if is_whole else "the first"
    count = f"{which} {len(mine)} evaluated rounds agree"
    agreement = "the one evaluated round agrees" if len(mine) == 1 else count
    hints = _hints(record) if differences else ()
    distance = None
    if any(hint.startswith(ELSEWHERE) for hint in hints):
        distance = _distance(record, mine, result, is_whole)
    return Verdict(f"{agreement} to the last bit", differences, hints, distance)


def _distance(
    record: RunRecord, mine: Sequence[Mapping[str, Any]], result: Result, is_whole: bool
) -> float:
    """The largest difference of a loss or weight, as a share of the largest of them; infinite if
    the runs are not of one form."""
    import numpy as np

    pairs = [
        (
            np.array([row.get("loss", 0.0) for row in mine]),
            np.array([row.get("loss", 0.0) for row in result.metrics]),
        )
    ]
    if is_whole:
        saved, tensors = record.weights(), result.tensors()
        if saved.keys() != tensors.keys():
            return np.inf
        pairs += [(saved[name], t.detach().cpu().numpy()) for name, t in tensors.items()]
    if any(old.shape != new.shape for old, new in pairs):
        return np.inf

    def furthest(some: Sequence[tuple[Any, Any]]) -> float:
        most = max((float(np.abs(old).max(initial=0.0)) for old, _ in some), default=0.0)
        away = [float(np.abs(old - new).max(initial=0.0)) for old, new in some]
        return max(away, default=0.0) / (most or 1.0)

    return max(furthest(pairs[:1]), furthest(pairs[1:]))


def json_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [json_of(row) for row in rows]


def _ends(record: RunRecord, result: Result) -> tuple[str, ...]:
    """What of the end is not the same: the fingerprint, the summary, any saved tensor."""
    import numpy as np

    if result.fingerprint != record.summary["fingerprint"]:
        return (f"the fingerprint is {result.fingerprint} now",)
    new = json_of(result.summary())
    if added := sorted(record.summary.keys() - new.keys()):
        return (f"{SUMMARY}: {added[0]!s:.40} was there, and is not now",)
    for name in sorted(record.summary.keys() & new.keys() - {UNTIMED, "folder", "instructions"}):
        if str(record.summary[name]) != str(new[name]):
            return (
                f"{SUMMARY}: {name} was {record.summary[name]!s:.40}, is {new[name]!s:.40} now",
            )
    saved, tensors = record.weights(), result.tensors()
    for name in sorted(saved.keys() | tensors.keys()):
        now = tensors[name].detach().cpu().numpy() if name in tensors else None
        if name not in saved or now is None or not np.array_equal(saved[name], now, equal_nan=True):
            return (f"{MODEL}: '{name}' is another one now",)
    return ()


def compared(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], what: str = "rounds"
) -> tuple[str, ...]:
    """One sentence for the first number that is not the same; what earlier versions did not know
    of, training's reports, is not missing."""
    from fedrift.engine.result import UNSIGNED

    for old, new in zip(before, now, strict=False):
        for name in old.keys() | new.keys() - set(UNSIGNED):
            same = old.get(name) == new.get(name) or str(old.get(name)) == str(new.get(name))
            if name != UNTIMED and not same:
                return (
                    f"round {old['round']}: {name} was {old.get(name)!s:.40}, "
                    f"is {new.get(name)!s:.40} now",
                )
    if len(before) != len(now):
        return (f"there were {len(before)} {what}, there are {len(now)} now",)
    return ()


def _hints(record: RunRecord) -> tuple[str, ...]:
    from fedrift.engine.recorder import environment, moved

    return moved(record.environment, environment(""))


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
    run folder. A run of another instruction set, or of other versions of torch or numpy, cannot be
    compared bit for bit: 0 if losses and weights are within 1e-6.
    """
    from fedrift.cli.launch import check_trust

    if rounds is not None and rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, not {rounds}")
    check_trust(folder, trust_code)
    record, checked = check_consistent(folder)
    verdict = run_again(record, rounds, workers, quiet)
    looked = checked.sentence(folder)
    try:
        typer.echo(one_line(f"{verdict.sentence()}; {looked}"))
    except RunError as error:
        raise RunError(f"{error}; {looked}") from None
