"""What a user did wrong, said in one sentence; and what went wrong at run time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes
CLOSE = 0.65  # how alike a name must be to be what was meant


class InputError(ValueError):
    """The user's input: the message names the field, the value and the fix (exit code 2)."""


class RunError(RuntimeError):
    """A run that could not go on through no fault of the input (exit code 1)."""


def unknown(kind: str, value: str, known: Iterable[str]) -> InputError:
    """`unknown algorithm 'fedagv': did you mean 'fedavg'? (known: …)`."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(value.lower(), names, n=1, cutoff=CLOSE)
    hint = f": did you mean '{close[0]}'?" if close else ""
    return InputError(f"unknown {kind} '{value}'{hint} (known: {', '.join(names)})")


def sentence(error: BaseException) -> str:
    """What to say of a run that failed; an error of ours is a sentence already."""
    if isinstance(error, (InputError, RunError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror and not _line_of_own_code(error):
        where = f"'{error.filename}'" if error.filename else "the disk"
        return f"{where} cannot be used: {error.strerror}"
    return describe(error)


def why(error: Exception) -> str:
    """What the system says about a path, as a part of a sentence."""
    return str(getattr(error, "strerror", None) or error)


def describe(error: BaseException) -> str:
    """`ValueError: too small (mine.py, line 12, in train)`: what went wrong, and the last line of
    the reader's own code on the way there."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {said}' if said else ''}{_line_of_own_code(error)}"


def _line_of_own_code(error: BaseException) -> str:
    import sysconfig
    import traceback

    others = [os.path.dirname(os.path.abspath(__file__)), "<"]
    others += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(tuple(others)):
            return f" ({os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name})"
    return ""


def bytes_text(count: float) -> str:
    """`12.3 MB`, as sentences say it."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} PB"


def is_of_disk(error: BaseException) -> bool:
    """A disk that is full, read-only or broken: no fault of what was asked for."""
    return isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own error, or what torch's allocators say."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in text or "not enough memory" in text)
    )


def is_overflow(error: Exception) -> bool:
    """A number went beyond what the run's precision holds: what Python or torch says of it."""
    return isinstance(error, OverflowError) or "without overflow" in str(error)
