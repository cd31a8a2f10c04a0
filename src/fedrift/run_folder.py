"""A run folder while it is written: lines appended, whole files replaced, one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.records import dump, read_lines, replace_bytes
from fedrift.run_files import (
    CLIENTS,
    ENVIRONMENT,
    LEDGER,
    MODEL,
    ORIGIN,
    ROUNDS,
    SPEC,
    SUMMARY,
    TEMPORARY,
    check_free,
    check_own,
    crc_of,
    locked,
    read_spec,
    remove_beginnings,
)

if TYPE_CHECKING:
    import numpy as np


class RunFolder:
    """One run's folder while it is written. Lines are appended, whole files replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines: dict[str, io.FileIO] = {}
        self._marks: dict[str, tuple[int, int]] = {}
        self._lock: int | None = None
        self._is_ours = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        spec: Spec,
        environment: Mapping[str, Any] | None = None,
        clients: Mapping[str, Any] | None = None,
        origin: str | None = None,
    ) -> RunFolder:
        """A new folder; call it only when everything else has been checked.

        The spec is written last: a folder with a spec is complete and can be gone on with.
        """
        folder, has_begun = cls(path), False
        check_free(folder.path)
        folder._is_ours = not folder.path.exists()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._take()
            check_free(folder.path)  # again: another process may have been faster
            has_begun = True
            if environment is not None:
                folder.write_environment(environment)
            if clients is not None:
                folder.write_clients(clients)
            if origin is not None:
                folder.write_text(ORIGIN, origin)
            folder.write_text(SPEC, replace(spec, out=None).to_toml())
        except BaseException as error:
            if has_begun:  # else it is another's
                folder.withdraw()
            folder.close()
            if isinstance(error, OSError):
                raise InputError(f"out '{path}' cannot be made: {error.strerror}") from None
            raise
        return folder

    def withdraw(self) -> None:
        """Undo `create`: the run was refused before its first round."""
        remove_beginnings(self.path, is_ours=self._is_ours)
        self.close()

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """The folder of an earlier run, to go on writing."""
        folder = cls(path)
        read_spec(folder.path)
        check_own(folder.path)
        if not os.access(folder.path, os.W_OK):
            raise InputError(f"out '{path}' is not writable; copy it to where you may write")
        folder._take()
        for left_over in folder.path.glob(f".*{TEMPORARY}"):
            left_over.unlink()
        for name in (ROUNDS, LEDGER):
            folder._cut_torn(name)
        return folder

    def append_round(self, record: Mapping[str, Any]) -> None:
        """One line of `rounds.jsonl`."""
        self._append(ROUNDS, record)

    def append_ledger(self, record: Mapping[str, Any]) -> None:
        """One line of `ledger.jsonl`."""
        self._append(LEDGER, record)

    def marks(self) -> dict[str, tuple[int, int]]:
        """Bring the lines to the disk and say how far each file reaches."""
        for file in self._lines.values():
            os.fsync(file.fileno())
        return {name: self._mark(name) for name in (ROUNDS, LEDGER)}

    def check_marks(self, marks: Mapping[str, tuple[int, int]]) -> None:
        """ValueError if the files of lines do not begin with what a checkpoint saw in them."""
        for name, (size, crc) in marks.items():
            if name not in (ROUNDS, LEDGER) or crc_of(self.path / name, size) != (size, crc):
                raise ValueError(f"the lines of {name} before it are damaged")

    def cut(self, marks: Mapping[str, tuple[int, int]]) -> None:
        """Forget what came after a checkpoint (no marks: everything); a run writes it again."""
        for name in (ROUNDS, LEDGER):
            if name in self._lines:
                self._lines.pop(name).close()
            size, crc = marks.get(name, (0, 0))
            if (self.path / name).exists():
                os.truncate(self.path / name, size)
            self._marks[name] = size, crc

    def _cut_torn(self, name: str) -> None:
        """Take away a last line that was cut short; of other damage a checkpoint's marks tell."""
        with contextlib.suppress(InputError):
            records, is_torn = read_lines(self.path / name)
            if is_torn:
                lines = (self.path / name).read_bytes().split(b"\n")[: len(records)]
                os.truncate(self.path / name, sum(len(line) + 1 for line in lines))

    def _mark(self, name: str) -> tuple[int, int]:
        if name not in self._marks:
            self._marks[name] = crc_of(self.path / name)
        return self._marks[name]

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        self.write_text(ENVIRONMENT, dump(environment, indent=2) + "\n")

    def write_clients(self, clients: Mapping[str, Any]) -> None:
        """Who holds how many samples of which class."""
        self.write_text(CLIENTS, dump(clients) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self.write_text(SUMMARY, dump(summary, indent=2) + "\n")

    def write_model(self, tensors: Mapping[str, np.ndarray]) -> None:
        """The parameters by name, in their own shapes; a tied parameter stands there once."""
        import numpy as np
        from safetensors.numpy import save

        whole = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
        self.write_bytes(MODEL, save(whole))

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode("utf-8"))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Replaces a file as a whole: after a crash the old or the new one is there."""
        replace_bytes(self.path / name, content)

    def close(self) -> None:
        """Lets the folder go; it can be closed twice."""
        for file in self._lines.values():
            with contextlib.suppress(OSError):  # a full disk was told where it was met
                file.close()
        self._lines.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if "round" not in record:
            raise ValueError(f"a line of {name} needs its round")
        size, crc = self._mark(name)
        if name not in self._lines:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            handle = os.open(self.path / name, flags, 0o666)
            self._lines[name] = io.FileIO(handle, "a")
        line = (dump(record) + "\n").encode("utf-8")
        if self._lines[name].write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._marks[name] = size + len(line), zlib.crc32(line, crc)

    def _take(self) -> None:
        """Two processes would mix their lines; the lock ends with the process."""
        self._lock = locked(self.path)
