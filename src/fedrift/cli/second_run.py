"""A run once more, and what of it is not as it was: to the last bit, or as far as rounding goes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift.config.spec import FIELDS
from fedrift.errors import RunError
from fedrift.storage.fork import read_origin
from fedrift.storage.jsonl import Record, dump, load
from fedrift.storage.records import is_number
from fedrift.storage.run_folder import CLIENT_ROUNDS, MODEL, SUMMARY, TRAINING
from fedrift.storage.run_record import RunRecord

if TYPE_CHECKING:
    from fedrift.engine.result import Result

UNTIMED = "seconds"
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
    hints = hints_of(record)
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


def untold_texts(summary: Record) -> tuple[str, ...]:
    """Texts that earlier versions wrote: they began with what windows were filled up with, too."""
    return () if OF_TEXT[1] in summary else OF_TEXT


def _summed_up(record: RunRecord, result: Result, names: Sequence[str]) -> tuple[str, ...]:
    """What of these in the summary is not the same."""
    new = json_of(result.summary())
    for name in names:
        old, now = record.summary.get(name), new.get(name)
        if name not in untold_texts(record.summary) and repr(old) != repr(now):
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


def hints_of(record: RunRecord) -> tuple[str, ...]:
    """What of this machine is not as it was where the run was made."""
    from fedrift.engine.recorder import environment, moved

    return moved(record.environment, environment(""))


def json_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """As they come back from a file."""
    return load(dump(values))
