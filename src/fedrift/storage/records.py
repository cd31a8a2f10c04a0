"""What may stand in the files of a run folder: clean records, or one sentence about the first flaw.

A folder may come from anybody. Whoever reads one gets records whose known fields have their types
and sizes; fields that are not known here are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from fedrift.errors import InputError
from fedrift.storage.jsonl import Record, read_file, read_lines

MOST = 1 << 62  # of any whole number: what is counted in a run stays far below
LONGEST = 1e30  # seconds
STATUS = ("done", "stopped", "diverged")
Check = Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < MOST)


def is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_time(value: Any) -> bool:
    """Seconds, on a clock or on the simulated one."""
    return is_amount(value) and value < LONGEST


def is_share(value: Any) -> bool:
    return is_number(value) and (0 <= value <= 1 or math.isnan(value))


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, cast("list[Any]", value)))


def maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def is_sizes(value: Any) -> bool:
    """Bytes of tensors and of numbers, by the name of a field."""
    if not isinstance(value, dict):
        return False
    pairs = cast("dict[str, Any]", value).values()
    return all(list_of(is_whole)(pair) and len(pair) == 2 for pair in pairs)


whole_numbers = list_of(is_whole)


def is_trips(value: Any) -> bool:
    """Ways of clients on the simulated clock: a client and five times each."""
    lists = list_of(list_of(is_time))(value)
    return lists and all(len(trip) == 6 and is_whole(trip[0]) for trip in value)


ROUND: Mapping[str, Check] = {
    "round": is_whole,
    "n": is_amount,
    "loss": is_number,
    "accuracy": is_share,
    "perplexity": is_number,
    "classes": list_of(is_share),
    "class_correct": whole_numbers,
    "class_total": whole_numbers,
    "cohort": whole_numbers,
    "bytes_down": is_whole,
    "bytes_up": is_whole,
    "gradients": is_whole,
    "seconds": is_time,
    "time": is_time,
    "domain_accuracy": list_of(is_share),
    "domain_loss": list_of(is_number),
}
EXCHANGE: Mapping[str, Check] = {
    "round": is_whole,
    "phase": is_text,
    "asked": whole_numbers,
    "replied": whole_numbers,
    "nonfinite": whole_numbers,
    "down": is_sizes,
    "up": is_sizes,
    "gradients": is_whole,
    "forwards": is_whole,
    "steps": is_whole,
    "dropped": whole_numbers,
    "trips": is_trips,
    "reported": is_whole,
}
numbers = list_of(is_number)
TRAINING: Mapping[str, Check] = {
    "round": is_whole,
    "client": whole_numbers,
    "loss": numbers,
    "loss_before": numbers,
    "loss_after": numbers,
    "accuracy": list_of(is_share),
    "accuracy_before": list_of(is_share),
    "accuracy_after": list_of(is_share),
}
ENDED: Mapping[str, Check] = {
    "status": lambda value: value in STATUS,
    "diverged_at": maybe(is_whole),
    "rounds": is_whole,
    "final_accuracy": maybe(is_share),
    "best_accuracy": maybe(is_share),
    "final_loss": maybe(is_number),
    "evaluated_rounds": whole_numbers,
    "accuracy": list_of(is_share),
    "loss": lambda value: is_number(value) or list_of(is_number)(value),
    "bytes_up": is_whole,
    "bytes_down": is_whole,
    "gradient_evaluations": is_whole,
    "seconds": is_time,
    "fingerprint": is_text,
    "instructions": is_text,
    "folder": maybe(is_text),
}
CLIENT_ROUND: Mapping[str, Check] = {
    "round": is_whole,
    "client": whole_numbers,
    "n": whole_numbers,
    "loss": list_of(is_number),
    "visited": whole_numbers,
    "accuracy": list_of(is_share),
}


def is_domains(value: Any) -> bool:
    """Names of domains, which of them no client has (never all), and the domain of each client."""
    if not isinstance(value, dict):
        return False
    about = cast("dict[str, Any]", value)
    if not list_of(is_text)(about.get("names")):
        return False
    number = len(about["names"])
    known = all(
        whole_numbers(about.get(name)) and all(d < number for d in about[name])
        for name in ("unseen", "of")
    )
    return known and len({*about["unseen"]}) < number  # clients are somewhere


ENVIRONMENT: Mapping[str, Check] = {"notes": list_of(is_text)}
CLIENTS: Mapping[str, Check] = {
    "sizes": whole_numbers,
    "counts": maybe(list_of(whole_numbers)),
    "scheme": is_text,
    "domains": is_domains,
}


def flaw(record: Mapping[str, Any], known: Mapping[str, Check]) -> str | None:
    """The first field that is not what it should be; earlier versions did not write all of them."""
    for name, check in known.items():
        if name in record and not check(record[name]):
            return f"'{name}' is {str(record[name])[:40]!r}"
    return None


def read_record(path: Path, known: Mapping[str, Check], needed: Sequence[str] = ()) -> Record:
    """A file that holds one record; empty if there is no such file."""
    record = read_file(path)
    if record is None:
        return {}
    missing = [f"it has no '{name}'" for name in needed if name not in record]
    wrong = missing[0] if missing else flaw(record, known)
    if wrong is not None:
        raise InputError(f"'{path}' is damaged ({wrong}); restore it from a copy")
    return record


def read_rounds(path: Path, most: int | None = None) -> tuple[list[Record], bool]:
    """The evaluated rounds in their order, and whether the last line was torn; of the first `most`
    bytes of a file."""
    rows, is_torn = read_lines(path, most)
    _check_lines(path, rows, ROUND)
    pairs = enumerate(pairwise(row["round"] for row in rows), start=2)
    late = next((number for number, (a, b) in pairs if a >= b), None)
    if late is not None:
        raise InputError(f"line {late} of '{path}' is damaged: its rounds are not in order")
    return rows, is_torn


def check_domains(path: Path, rows: Sequence[Record], clients: Record) -> None:
    """Refuses rounds that tell of another number of domains than the run has."""
    number = len(clients.get("domains", {}).get("names", ()))
    for line, row in enumerate(rows, start=1):
        told = [len(row[name]) for name in ("domain_accuracy", "domain_loss") if name in row]
        if any(length != number for length in told):
            raise InputError(
                f"line {line} of '{path}' is damaged: it tells of {told[0]} domains, and the run "
                f"has {number}"
            )


def check_trips(path: Path, exchanges: Sequence[Record], clients: Record) -> None:
    """Refuses ways of clients that the run does not have."""
    number = len(clients.get("sizes", ())) or MOST
    for line, row in enumerate(exchanges, start=1):
        last = max((trip[0] for trip in row.get("trips", ())), default=0)
        if last >= number:
            raise InputError(
                f"line {line} of '{path}' is damaged: it names client {last}, and the run has "
                f"{number} clients"
            )


def read_exchanges(path: Path, most: int | None = None) -> tuple[list[Record], bool]:
    """The exchanges of a run, and whether the last line was torn."""
    rows, is_torn = read_lines(path, most)
    _check_lines(path, rows, EXCHANGE)
    return rows, is_torn


def read_client_rounds(path: Path, most: int | None = None) -> tuple[list[Record], bool]:
    """What clients found, a line per round, and whether the last line was torn."""
    return _read_table(path, most, CLIENT_ROUND, ("client", "n", "loss", "visited"))


def read_training(path: Path) -> tuple[list[Record], bool]:
    """What training reported, a line per round, and whether the last line was torn."""
    return _read_table(path, None, TRAINING, ("client", "loss", "loss_before", "loss_after"))


def _read_table(
    path: Path, most: int | None, known: Mapping[str, Check], needed: Sequence[str]
) -> tuple[list[Record], bool]:
    """Lines whose columns have an entry for each client."""
    rows, is_torn = read_lines(path, most)
    _check_lines(path, rows, known)
    for number, row in enumerate(rows, start=1):
        more = [name for name in known if name in row and name not in ("round", *needed)]
        columns = [row.get(name) for name in (*needed, *more)]
        lengths = {len(column) if isinstance(column, list) else -1 for column in columns}  # type: ignore[reportUnknownArgumentType]
        if len(lengths) > 1 or -1 in lengths:
            raise InputError(
                f"line {number} of '{path}' is damaged (a column is missing or has another "
                "length); restore it from a copy"
            )
    return rows, is_torn


def _check_lines(path: Path, rows: Sequence[Record], known: Mapping[str, Check]) -> None:
    for number, row in enumerate(rows, start=1):
        wrong = flaw(row, known)
        if wrong is not None:
            raise InputError(
                f"line {number} of '{path}' is damaged ({wrong}); restore it from a copy"
            )
