"""Processor time, which other work on the machine does not lengthen as it does that of a clock."""

from __future__ import annotations

import os
from pathlib import Path

PROCESSES = Path("/proc")
PARENT, FIRST, LAST = 1, 11, 15  # fields after the name: parent; own and reaped children's ticks


def spent() -> float | None:
    """Seconds of one core that this process and all it has started have used; None: not known."""
    if not (PROCESSES / "self" / "stat").is_file():
        return None
    known = _processes()
    ours = {os.getpid()}
    while found := {pid for pid, (parent, _) in known.items() if parent in ours} - ours:
        ours |= found
    ticks = sum(known[pid][1] for pid in ours if pid in known)
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and ticks of every process; workers belong to the server that forks them."""
    found: dict[int, tuple[int, int]] = {}
    for folder in PROCESSES.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:  # it has ended meanwhile
                continue
            fields = text.rpartition(")")[2].split()
            found[int(folder.name)] = int(fields[PARENT]), sum(map(int, fields[FIRST:LAST]))
    return found
