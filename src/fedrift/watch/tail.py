"""A file of lines that grows: each line is read once."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fedrift.core.plain_files import LARGEST
from fedrift.storage import jsonl
from fedrift.storage.jsonl import Record


@dataclass
class Tail:
    """The lines of a file, each read once; from the beginning again when the file was cut."""

    path: Path
    place: int = 0
    inode: int = 0

    def fresh(self) -> tuple[list[Record], bool]:
        """Whole lines since the last time, and whether the earlier ones are void."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return [], False
        there = os.fstat(handle)
        if not stat.S_ISREG(there.st_mode):
            os.close(handle)
            return [], False
        with open(handle, "rb") as file:
            is_other = there.st_ino != self.inode or there.st_size < self.place
            if is_other:
                self.place, self.inode = 0, there.st_ino
            if there.st_size == self.place:
                return [], is_other
            file.seek(self.place)
            whole = file.read(min(LARGEST, there.st_size - self.place)).rpartition(b"\n")[0]
        self.place += len(whole) + 1 if whole else 0
        lines = (jsonl.line(text) for text in whole.split(b"\n")) if whole else ()
        return [line for line in lines if line is not None], is_other
