"""Who is writing a run folder, and how to end its run as Ctrl-C would."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fedrift.errors import InputError

LOCKS = Path("/proc/locks")


def writers() -> dict[tuple[int, int], int]:
    """Device and inode of every folder that is locked on this machine → process; a run locks its
    folder while it writes it. Empty where the system does not tell."""
    try:
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    locked: dict[tuple[int, int], int] = {}
    for line in lines:
        # 12: FLOCK  ADVISORY  WRITE 4711 fe:00:123456 0 EOF
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE":
            major, minor, inode = words[5].split(":")
            locked[os.makedev(int(major, 16), int(minor, 16)), int(inode)] = int(words[4])
    return locked


def writer_of(path: Path, locked: dict[tuple[int, int], int]) -> int | None:
    """The process that writes a folder, if one does."""
    try:
        there = path.stat()
    except OSError:
        return None
    return locked.get((there.st_dev, there.st_ino))


def stop(path: Path) -> int:
    """Tells the process that writes a folder to end as after Ctrl-C; says which it was."""
    process = writer_of(path, writers())
    if process is None:
        raise InputError(f"nobody is writing '{path}': its run is not running here")
    chosen = _heeded(process)
    if chosen is None:
        raise InputError(
            f"process {process} heeds neither SIGINT nor SIGTERM; stop it where it was started"
        )
    try:
        os.kill(process, chosen)
    except OSError as error:
        raise InputError(f"process {process} cannot be stopped: {error.strerror}") from None
    return process


def _heeded(process: int) -> signal.Signals | None:
    """The signal by which a run ends with its rounds kept: a shell lets programs in the background
    ignore SIGINT, and `fedrift` takes SIGTERM for the same."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    mask = int(caught.split()[1], 16)
    chosen = (s for s in (signal.SIGINT, signal.SIGTERM) if mask >> (s - 1) & 1)
    return next(chosen, None)
