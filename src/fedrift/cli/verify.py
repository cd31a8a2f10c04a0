"""`fedrift verify`: a run folder against its own hashes, and its rounds by doing them again."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
from fedrift.storage import run_folder, run_record
from fedrift.storage.fork import read_origin
from fedrift.storage.jsonl import Record, dump, load
from fedrift.storage.records import is_number
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
    from fedrift.engine.result import Result

UNTIMED = "seconds"
UNSEEN = ("seconds", "folder")
"""Of a summary: how long it took and where it lay then, which nothing can tell again."""
OF_TEXT = ("continuations", "beginnings")
AT_THE_END = ("status", "diverged_at", "fingerprint", *OF_TEXT)
"""Of a summary: what doing all rounds again tells, beside what other files do."""
ELSEWHERE = ("machine", "instructions", "torch", "numpy")
"""What of an environment decides in which order kernels add."""
NEAR = 1e-6  # of the largest: what is within may be the same run
LATER = 1e-5, 1e-3
"""How far rounding may move a loss of training, and a figure that an algorithm logs."""
COUNTED = {"accuracy": "n", "classes": "class_total", "class_correct": "class_total"}
"""Where it stands how many samples a share or a count is of; elsewhere there were a few."""
FEW = 100
Row = Mapping[str, Any]
Same = Callable[[Row, Row, str], bool]
"""Whether two rows agree in a column."""


@dataclass(frozen=True)
class Verdict:
    """What a second run said."""

    agreement: str
    differences: tuple[str, ...]
    hints: tuple[str, ...] = ()
    distance: float | None = None
    """From the run, where it was computed by other kernels, so that the bits say nothing."""
    beyond: tuple[str, ...] = ()
    """Differences there that other last bits do not make."""
    is_whole: bool = True
    """All of its rounds were done again."""

    def sentence(self) -> str:
        """RunError if something is not as it was."""
        if self.distance is None:
            if self.differences:
                raise RunError("; ".join([self.differences[0], *self.hints]))
            moved = f" ({', '.join(self.hints)})" if self.hints else ""
            return f"verified: {self.agreement}{moved}"
        said = f"cannot be compared bit for bit ({', '.join(self.hints)})"
        if not self.distance <= NEAR:
            raise RunError(f"{said}: {self.distance:.1e} away from it, {self.differences[0]}")
        if self.beyond:
            raise RunError(f"{said}; but {self.beyond[0]}, which is no matter of bits")
        return f"{said}: within {NEAR:.0e} of it".replace("e-06", "e-6")


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
        untold = tuple(name for name in _untold(summary) if name in summary)
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
    if known["identity"] == "" or _hints(record):  # saved from a result; made elsewhere
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
    tables = [
        (mine, result.metrics, "rounds"),
        (early(record.ledger), result.ledger.rows(), "exchanges"),
        (early(record.client_rounds), result.client_rounds, f"lines of {CLIENT_ROUNDS}"),
    ]
    if record.training:  # earlier versions did not keep it
        tables.append((early(record.training), result.training, f"lines of {TRAINING}"))
    differences = tuple(one for table in tables for one in compared(*table))
    if is_whole:
        differences += _ends(record, result)
    which = "all" if is_whole else "the first"
    count = f"{which} {len(mine)} evaluated rounds agree"
    agreement = "the one evaluated round agrees" if len(mine) == 1 else count
    hints = _hints(record)
    distance, beyond = None, tuple[str, ...]()
    if differences and any(hint.startswith(ELSEWHERE) for hint in hints):
        distance = _distance(record, mine, result, is_whole)
        beyond = tuple(one for table in tables for one in compared(*table, near))
        beyond += _summed_up(record, result, AT_THE_END[:2]) if is_whole else ()
    return Verdict(f"{agreement} to the last bit", differences, hints, distance, beyond, is_whole)


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


def _ends(record: RunRecord, result: Result) -> tuple[str, ...]:
    """What of the end is not the same: the fingerprint, the summary, any saved tensor."""
    import numpy as np

    if result.fingerprint != record.summary["fingerprint"]:
        return (f"the fingerprint is {result.fingerprint} now",)
    if other := _summed_up(record, result, AT_THE_END):
        return other
    saved, tensors = record.weights(), result.tensors()
    for name in sorted(saved.keys() | tensors.keys()):
        now = tensors[name].detach().cpu().numpy() if name in tensors else None
        if name not in saved or now is None or not np.array_equal(saved[name], now, equal_nan=True):
            return (f"{MODEL}: '{name}' is another one now",)
    return ()


def _untold(summary: Record) -> tuple[str, ...]:
    """Texts that earlier versions wrote: they began with what windows were filled up with, too."""
    return () if OF_TEXT[1] in summary else OF_TEXT


def _summed_up(record: RunRecord, result: Result, names: Sequence[str]) -> tuple[str, ...]:
    """What of these in the summary is not the same."""
    new = json_of(result.summary())
    for name in names:
        old, now = record.summary.get(name), new.get(name)
        if name not in _untold(record.summary) and repr(old) != repr(now):
            return (f"{SUMMARY}: {name} was {old!s:.40}, is {now!s:.40} now",)
    return ()


def equal(old: Row, new: Row, name: str) -> bool:
    """To the last bit."""
    return repr(old.get(name)) == repr(new.get(name))


def near(old: Row, new: Row, name: str) -> bool:
    """As near as the same run comes that was rounded otherwise: a loss by its share, and of a
    thousand samples, or of fewer, one may be taken for another class. The rest is as it was."""
    values, others = old.get(name), new.get(name)
    if not isinstance(values, list) or not isinstance(others, list):
        values, others = [values], [others]
    if len(values) != len(others):
        return False
    return all(
        _near(old, name, i, *pair) for i, pair in enumerate(zip(values, others, strict=True))
    )


def _near(row: Row, name: str, at: int, old: Any, new: Any) -> bool:
    if repr(old) == repr(new):  # also of what is no number
        return True
    if not all(is_number(v) and math.isfinite(v) for v in (old, new)):
        return False
    if "accuracy" in name or name in COUNTED:
        return abs(old - new) <= 1.001 * _one_sample(row, name, at)
    is_measured = isinstance(old, float) and isinstance(new, float)
    away = LATER["loss" not in name] * max(1.0, abs(old), abs(new))
    return is_measured and abs(old - new) <= away


def _one_sample(row: Row, name: str, at: int) -> float:
    """By how much one of a thousand samples, or of fewer, moves a count or a share of them."""
    counted = row.get(COUNTED.get(name, ""), FEW)
    samples = counted[at] if isinstance(counted, list) else counted
    if name == "class_correct":
        return max(1.0, samples / 1000)
    return max(1 / max(1, samples), 0.001)


def compared(
    before: Sequence[Row], now: Sequence[Row], what: str, same: Same = equal
) -> tuple[str, ...]:
    """One sentence for the first number that is not the same; what earlier versions did not know
    of, training's reports, is not missing."""
    from fedrift.engine.result import UNSIGNED

    for old, new in zip(before, map(json_of, now), strict=False):
        for name in sorted(old.keys() | new.keys() - set(UNSIGNED)):
            if name != UNTIMED and not same(old, new, name):
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
