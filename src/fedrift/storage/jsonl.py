"""Records as JSON: floats come back exactly, nan and inf as words, one record per line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedrift.core.plain_files import read_plain
from fedrift.errors import InputError

Record = dict[str, Any]
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def dump(value: object, indent: int | None = None) -> str:
    """JSON that every reader understands: no NaN, no Infinity."""
    text = json.dumps(encode(value), indent=indent, allow_nan=False, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    # A terminal would obey some characters; in JSON all can be spelled.
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def load(text: str) -> Any:
    """What `dump` wrote; the words nan, inf and -inf are numbers again."""
    value = json.loads(text)
    if _LONG.search(text) or "\\ud" in text.lower():
        _check_leaves(value)
    # Most records have no such word, and looking at every number would take most of the time.
    return decode(value) if any(f'"{word}"' in text for word in WORDS) else value


_LONG = re.compile(r"(?<![.\d])\d{19,}")
MOST_WHOLE = 1 << 63


def _check_leaves(value: Any) -> None:
    """ValueError for what this program never writes: endless numbers, halves of characters."""
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ValueError("a number is too large")
    elif isinstance(value, dict):
        for key, item in cast(Record, value).items():
            _check_leaves(key)
            _check_leaves(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _check_leaves(item)


def encode(value: object) -> object:
    """Plain JSON values; numpy scalars and arrays become numbers and lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {str(key): encode(item) for key, item in mapping.items()}
    if isinstance(value, Sequence):
        return [encode(item) for item in cast("Sequence[object]", value)]
    return encode(_from_numpy(value))


def _from_numpy(value: object) -> object:
    import numpy as np

    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be recorded")


def decode(value: Any) -> Any:
    """The numbers that JSON has no sign for, from the words that stand for them."""
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in cast(Record, value).items()}
    if isinstance(value, list):
        return [decode(item) for item in cast("list[Any]", value)]
    return value


def read_file(path: Path) -> Record | None:
    """One record; None if there is no such file."""
    try:
        record = load(read_plain(path).decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"'{path}' is damaged: it is no JSON; restore it from a copy") from None
    if not isinstance(record, dict):
        raise InputError(f"'{path}' is damaged: it should hold one JSON object")
    return cast(Record, record)


def read_lines(path: Path, most: int | None = None) -> tuple[list[Record], bool]:
    """The records of a file, or of its first `most` bytes, and whether the last line was torn (and
    is left out)."""
    try:
        whole, _, tail = read_plain(path)[:most].rpartition(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
    lines = whole.split(b"\n") if whole else []
    records: list[Record] = []
    for number, content in enumerate(lines, start=1):
        record = line(content)
        if record is None:
            # A crash may leave blocks of zeros at the very end, newline included.
            if number == len(lines) and not tail:
                return records, True
            raise InputError(f"line {number} of '{path}' is damaged; restore the file from a copy")
        records.append(record)
    return records, bool(tail)


def line(text: bytes) -> Record | None:
    """The record of a line; None if it is none."""
    try:
        record = load(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(record, dict) and type(cast(Record, record).get("round")) is int
    return cast(Record, record) if is_line else None
