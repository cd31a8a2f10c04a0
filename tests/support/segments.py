"""Shared memory that nobody holds any more: what a run would have left behind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")


def present() -> set[str]:
    return set(os.listdir(SHARED))


def orphaned(before: set[str]) -> set[str]:
    """What is there now, was not there before, and is mapped or open in no living process.

    Other programs have segments and semaphores of their own, which come and go meanwhile.
    """
    new = present() - before
    for entry in os.listdir("/proc") if new else ():
        if entry.isdigit():
            held = _held(Path("/proc") / entry)
            new = {name for name in new if f"{SHARED}/{name}" not in held}
    return new & present()


def _held(process: Path) -> str:
    """Paths that a process has mapped or open, in one text."""
    found: list[str] = []
    with suppress(OSError):
        found.append((process / "maps").read_text(errors="replace"))
    with suppress(OSError):
        for name in os.listdir(process / "fd"):
            with suppress(OSError):
                found.append(os.readlink(process / "fd" / name))
    return "\n".join(found)
