"""What a user did wrong, said in one sentence; and what went wrong at run time."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes
MOST_DECIMALS = 15
CLOSE = 0.65  # how alike a name must be to be what was meant
ELSEWHERE = {
    word: ours
    for ours, words in {
        "lr": "learning_rate local_lr client_lr local_learning_rate",
        "clients": "num_clients n_clients total_clients data",
        "rounds": "num_rounds n_rounds global_rounds communication_rounds",
        "epochs": "local_epochs num_epochs n_epochs",
        "steps": "local_steps num_steps",
        "fraction": "join_ratio fraction_fit client_fraction participation",
        "per_round": "clients_per_round num_join_clients cohort",
        "test": "testset test_data test_set test_dataset",
        "seed": "random_state random_seed",
        "scheme": "partition partitioner partitioning",
        "out": "folder path output save_dir",
    }.items()
    for word in words.split()
}
"""What other libraries call our arguments."""


class InputError(ValueError):
    """The user's input: the message names the field, the value and the fix (exit code 2)."""


class RunError(RuntimeError):
    """A run that could not go on through no fault of the input (exit code 1)."""


def unknown(kind: str, value: str, known: Iterable[str]) -> InputError:
    """`unknown algorithm 'fedagv': did you mean 'fedavg'? (known: …)`."""
    names = sorted(known)
    close = _closest(value, names)
    hint = f": did you mean '{close}'?" if close else ""
    return InputError(f"unknown {kind} '{value}'{hint} (known: {', '.join(names)})")


def no_option(where: str, key: str, known: Iterable[str], grammar: str) -> InputError:
    """`adapter 'lora:rnk=2' has no option 'rnk' (did you mean 'rank'?); write lora[:rank=8,…]`."""
    return InputError(f"{where} has no option '{key}'{meant(key, known)}; write {grammar}")


def meant(value: str, known: Iterable[str]) -> str:
    """` (did you mean 'rank'?)` where a word is nearly one of these, as part of a sentence."""
    close = _closest(value, sorted(known))
    return f" (did you mean '{close}'?)" if close else ""


def _closest(value: str, names: Sequence[str]) -> str | None:
    import difflib

    elsewhere = ELSEWHERE.get(value.lower())
    if elsewhere in names:
        return elsewhere
    return next(iter(difflib.get_close_matches(value.lower(), names, n=1, cutoff=CLOSE)), None)


Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def named_arguments(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """A function that answers an argument it does not have with the one that was meant."""
    import inspect

    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        for key in kwargs:
            if key not in known:
                raise unknown(f"argument of {function.__name__}", key, known)
        return function(*args, **kwargs)

    return checked


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


def decimals(values: Iterable[float], usual: int) -> int:
    """Digits behind the point of numbers that stand beside each other: the usual ones, more where
    all are so small that fewer than two significant ones would be left of the largest."""
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    if not largest:
        return usual
    return min(max(usual, 1 - math.floor(math.log10(largest))), MOST_DECIMALS)


def is_of_disk(error: BaseException) -> bool:
    """A disk that is full, read-only or broken: no fault of what was asked for."""
    return isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.EFBIG,
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
