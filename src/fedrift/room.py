"""What a machine has left, and whether a run fits: said before it starts."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from fedrift.errors import InputError
from fedrift.rounds import Plan

CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes of memory that processes may still take, by the system and by a container's limit."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        if limit != "max":  # what files occupy in memory can be had back
            found.append(int(limit) - used + int(stat.get("file", "0")))
    return min(found) if found else None


def free_disk(place: Path) -> int:
    """Bytes free where a folder is or will be."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def held(folder: Path) -> int:
    """Bytes that a folder holds already."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(root) / name).lstat().st_blocks * 512
    return total


def check_room(plan: Plan, place: Path, out: bool) -> None:
    """Refuses a run that cannot fit; `place` is where client states go."""
    memory = free_memory()
    if memory is not None and plan.memory_bytes > memory:
        fix = "use fewer workers or a smaller model" if plan.workers else "use a smaller model"
        raise InputError(
            f"workers={plan.workers}: the run needs about {_text(plan.memory_bytes)} of memory, "
            f"but {_text(memory)} are free; {fix}"
        )
    disk = free_disk(place) + held(place) * out
    if plan.disk_bytes > disk:
        fix = "name an out folder on a larger disk" if out else "set TMPDIR to a larger disk"
        raise InputError(
            f"out: the run needs about {_text(plan.disk_bytes)} of disk for client states, but "
            f"'{place}' has {_text(disk)} free; {fix}"
        )


def _text(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
