"""Mistakes that the suite must find, one for each thing it proves."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrift.errors import InputError, RunError
from fedrift.storage import checkpoint, run_record


def traceback() -> None:
    """A folder that cannot be read is nobody's to explain."""
    usual = run_record.load

    def load(folder: str | Path) -> Any:
        try:
            return usual(folder)
        except InputError:
            raise ValueError("unreadable") from None

    run_record.load = load


def elsewhere() -> None:
    """A reader leaves a file in the folder above."""
    usual = run_record.load

    def load(folder: str | Path) -> Any:
        (Path.cwd().parents[2] / "left").write_text("x")
        return usual(folder)

    run_record.load = load


def hang() -> None:
    """A reader waits for something that never comes."""

    def asleep(*_: Any) -> Any:
        time.sleep(3600)

    run_record.load = asleep


def trusting() -> None:
    """A folder is called right without being looked at."""
    verify: Any = importlib.import_module("fedrift.cli.verify")  # its package holds the command
    usual = verify.check_consistent

    def check_consistent(folder: Path) -> Any:
        try:
            return usual(folder)
        except (RunError, InputError):
            raise SystemExit(0) from None

    verify.check_consistent = check_consistent


def forgetful() -> None:
    """A run that goes on begins with other weights than it had."""
    read = checkpoint.read

    def other(path: Path, like: Any) -> Any:
        point = read(path, like)
        point.server.w.mul_(1.5)
        return point

    checkpoint.read = other


MUTANTS: dict[str, tuple[Callable[[], None], str, str]] = {
    "traceback": (traceback, "damaged", "traceback"),
    "elsewhere": (elsewhere, "damaged", "written"),
    "hang": (hang, "damaged", "hang"),
    "trusting": (trusting, "damaged", "wrong result"),
    "forgetful": (forgetful, "kills", "wrong result"),
}
"""How it is planted, the kind of case that finds it, and what is found."""


def plant(name: str) -> None:
    MUTANTS[name][0]()
