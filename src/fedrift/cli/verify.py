"""`fedrift verify`: a run folder against its own hashes, and its rounds by doing them again."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrift.cli.resume import TRUST
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.spec import FIELDS
from fedrift.errors import InputError, RunError
from fedrift.storage import run_folder
from fedrift.storage.fork import read_origin
from fedrift.storage.run_folder import RunRecord

UNTIMED = "seconds"


@dataclass(frozen=True)
class Verdict:
    """What a second run said."""

    sentence: str
    differences: tuple[str, ...]
    hints: tuple[str, ...] = ()


def check_consistent(folder: Path) -> RunRecord:
    """The run as its folder tells it; refuses one whose parts contradict each other."""
    record = run_folder.load(folder)
    if record.spec.data == IN_PYTHON:
        raise InputError(f"'{folder}' was made in Python; make the same call once more to verify")
    if record.torn:
        raise RunError(f"'{folder}': the last line of {record.torn[0]} is cut short; resume it")
    fingerprint = record.summary.get("fingerprint")
    if fingerprint is not None and fingerprint_of(record) != fingerprint:
        raise RunError(f"'{folder}': weights and rounds do not give its fingerprint {fingerprint}")
    return record


def fingerprint_of(record: RunRecord) -> str:
    """Of the weights and rounds as they stand in the folder."""
    import torch

    from fedrift.engine.prepare import prepare
    from fedrift.engine.result import fingerprint
    from fedrift.engine.task import task_from_spec

    weights = record.weights()
    layout = task_from_spec(record.spec, prepare(record.spec)).problem.layout
    if any(name not in weights for name in layout.names):
        raise RunError(f"'{record.folder}': weights of the model are missing")
    flat = torch.cat([torch.from_numpy(weights[name]).reshape(-1) for name in layout.names])
    return fingerprint(flat, record.rounds)


def run_again(record: RunRecord, rounds: int | None, workers: str | None, quiet: bool) -> Verdict:
    """Run it once more, or its first rounds, and compare."""
    from fedrift.api import run_spec
    from fedrift.cli.progress import watcher

    spec = replace(record.spec, out=None)
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
    mine = [row for row in record.rounds if until is None or row["round"] <= until]
    differences = compared(mine, result.metrics)
    if is_whole and result.fingerprint != record.summary["fingerprint"]:
        differences += (f"the fingerprint is {result.fingerprint} now",)
    which = "all" if is_whole else "the first"
    count = f"{which} {len(mine)} evaluated rounds agree"
    agreement = "the one evaluated round agrees" if len(mine) == 1 else count
    return Verdict(
        f"verified: {agreement} to the last bit", differences, _hints(record) if differences else ()
    )


def compared(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """One sentence for the first number that is not the same."""
    for old, new in zip(before, now, strict=False):
        for name in old.keys() | new.keys():
            same = old.get(name) == new.get(name) or str(old.get(name)) == str(new.get(name))
            if name != UNTIMED and not same:
                return (
                    f"round {old['round']}: {name} was {old.get(name)!s:.40}, "
                    f"is {new.get(name)!s:.40} now",
                )
    if len(before) != len(now):
        return (f"{len(before)} rounds were evaluated, {len(now)} are now",)
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
    """Check a run folder: its weights against its fingerprint, and its rounds by doing them again.

    Exit code 0 if all agrees to the last bit, 1 if not, 2 if the folder cannot be read.
    """
    from fedrift.cli.launch import check_trust

    if rounds is not None and rounds < 1:
        raise InputError(f"rounds must be a whole number of at least 1, not {rounds}")
    check_trust(folder, trust_code)
    verdict = run_again(check_consistent(folder), rounds, workers, quiet)
    if verdict.differences:
        raise RunError("; ".join([verdict.differences[0], *verdict.hints]))
    typer.echo(verdict.sentence)
