"""A run folder: the names of its files, checks before it is used, and its writer."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shlex
import shutil
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedrift.config.grid import COMPARISON, RUNS, TUNING
from fedrift.config.spec import Spec
from fedrift.core.plain_files import (
    make_folders,
    missing_folders,
    remove_empty,
    replace_bytes,
)
from fedrift.errors import InputError, why
from fedrift.storage import records
from fedrift.storage.jsonl import WORDS, Record, dump, read_lines

if TYPE_CHECKING:
    import numpy as np


SPEC, ROUNDS, LEDGER = "spec.toml", "rounds.jsonl", "ledger.jsonl"
ENVIRONMENT, SUMMARY, MODEL = "env.json", "summary.json", "model.safetensors"
CLIENT_ROUNDS = "client_rounds.jsonl"
"""What clients found on test data of their own: a line per round in which they were asked."""
TRAINING = "training.jsonl"
"""What training reported at each client: a line per round."""
OPENINGS = ("train_", "client_", "clients_", "global_", "domain_")
"""Columns of `rounds.jsonl` that begin like this are ours, as are those of `records.ROUND`."""
LINES = (ROUNDS, LEDGER, CLIENT_ROUNDS, TRAINING)
"""Files to which lines are added as rounds end."""
CLIENTS, ORIGIN, ANALYSIS = "clients.json", "origin.toml", "analysis"
STATES = "clients"
"""Folder of the client states."""
FIRST_FILES = (ENVIRONMENT, CLIENTS, ORIGIN)
"""Written before the spec."""
TEMPORARY = ".tmp"


def is_own_column(name: str) -> bool:
    """Whether a column of a round is the reader's own: a metric of theirs, or what an algorithm
    logs."""
    return name not in records.ROUND and not name.startswith(OPENINGS)


def check_free(path: Path) -> None:
    """Refuses a folder that holds another run or foreign files. Writes nothing."""
    _check_name(path)
    try:
        if not path.exists():
            _check_parent(path)
        elif not path.is_dir():
            raise InputError(f"out '{path}' is a file; name a new folder")
        else:
            _check_empty(path)
    except OSError as error:
        raise InputError(f"out '{path}' cannot be used: {error.strerror}") from None


def check_comparable(path: Path) -> None:
    """Refuses a folder for a comparison that holds foreign files and none yet. Writes nothing."""
    if not os.path.isdir(path):  # pathlib raises for names that no folder can have
        check_free(path)
        return
    _check_name(path)
    try:
        names = sorted(e.name for e in path.iterdir() if not is_temporary(e.name))
    except OSError as error:
        raise InputError(f"out '{path}' cannot be used: {error.strerror}") from None
    if names and not {COMPARISON, RUNS, TUNING} & set(names):
        raise InputError(
            f"out '{path}' holds {names[0]} and no comparison; name a new folder, or that of a "
            "comparison to go on with"
        )
    places = (path / RUNS, path / TUNING, path / TUNING / RUNS)
    for inside in (*places, *(run for place in places for run in place.glob("*"))):
        if inside.is_symlink():
            raise InputError(
                f"'{inside}' is a link, and runs would be written elsewhere; remove it"
            )


def _check_name(path: Path) -> None:
    """Its records name the folder, and a name may be bytes that are no text."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"out '{path}' is not in UTF-8; name a folder that is") from None
    if str(path).startswith("-"):
        raise InputError(
            f"out '{path}' would be taken for an option by other commands; choose another name"
        )
    if str(path) in WORDS:
        raise InputError(f"out '{path}' is how records spell a number; choose another name")


def _check_parent(path: Path) -> None:
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise InputError(f"out '{path}' is inside '{parent}', which is a file; name a new folder")
    if not os.access(parent, os.W_OK):
        raise InputError(f"out '{path}' cannot be made: '{parent}' is not writable")


def _check_empty(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise InputError(f"out '{path}' is not writable; name another folder")
    names = sorted(entry.name for entry in path.iterdir())
    if SPEC in names:
        raise InputError(
            f"out '{path}' holds another run; name a new folder, or continue that run with: "
            f"fedrift resume {shlex.quote(str(path))}"
        )
    # A run that was killed at its very beginning has left nothing worth keeping.
    foreign = [n for n in names if n not in FIRST_FILES and not is_temporary(n)]
    if foreign:
        raise InputError(f"out '{path}' is not empty (it holds {foreign[0]}); name a new folder")


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY)


def remove_first_files(path: Path, made: Sequence[Path]) -> None:
    """What a run that could not begin has written; folders made for it, itself first, go away."""
    if made:
        shutil.rmtree(path, ignore_errors=True)
        remove_empty(made[1:])
        return
    with contextlib.suppress(OSError):
        for rows in (path / STATES).glob("*.rows"):
            rows.unlink()
        if (path / STATES).exists():
            (path / STATES).rmdir()
        for entry in path.iterdir():
            if entry.name in (*FIRST_FILES, SPEC) or is_temporary(entry.name):
                entry.unlink()


def check_plain_files(path: Path, *, writes: bool = False) -> None:
    """Refuses a folder with links or devices in it: through them a run would write elsewhere. If
    it `writes`, the folder's files must not stand under a second name either."""

    def fail(error: OSError) -> None:
        raise error

    try:
        for place, folders, files in os.walk(path, onerror=fail):
            for entry in (Path(place) / name for name in (*folders, *files)):
                there = entry.lstat()
                mode = there.st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise InputError(f"'{entry}' is not a plain file of a run; remove it first")
                if writes and stat.S_ISREG(mode) and there.st_nlink > 1:
                    raise InputError(
                        f"'{entry}' stands elsewhere under another name (a hard link), where it "
                        "would be changed, too; copy the folder and use the copy"
                    )
    except OSError as error:
        raise InputError(f"'{error.filename}' cannot be read: {error.strerror}") from None


def lock_folder(path: Path) -> int | None:
    """A descriptor that keeps other processes from writing a folder; None where there are no
    such locks. Refused if another process has it."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(
            f"out '{path}' is being written by another process; wait for it or stop it"
        ) from None
    return descriptor


def check_idle(path: Path) -> None:
    """Refuses a folder that may not be written or that somebody is writing: known at once, before
    data are read."""
    if not os.access(path, os.W_OK):
        raise InputError(f"out '{path}' is not writable; copy it to where you may write")
    descriptor = lock_folder(path)
    if descriptor is not None:
        os.close(descriptor)


def crc_of(path: Path, most: int | None = None) -> tuple[int, int]:
    """Size and CRC of a file, or of its first `most` bytes."""
    size = crc = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while block := file.read(1 << 20 if most is None else min(1 << 20, most - size)):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def holds_run(path: Path) -> bool:
    """Whether a run has begun in a folder; refuses names that no folder can have."""
    try:
        return stat.S_ISREG(os.stat(path / SPEC).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        raise InputError(f"out '{path}' cannot be used: {why(error)}; use another") from None


def read_spec(path: Path) -> Spec:
    """The spec of a run folder; refuses what is none."""
    if not holds_run(path):
        inside = next(iter(sorted(path.glob(f"runs/*/{SPEC}"))), None)
        if inside is not None:
            raise InputError(
                f"'{path}' is no run folder but a comparison; name one of its runs, such as "
                f"'{inside.parent}'"
            )
        what = f"it holds no {SPEC}" if path.exists() else "it does not exist"
        raise InputError(f"'{path}' is no run folder: {what}; name what --out or out= was given")
    return Spec.from_toml(path / SPEC)


# Writing: one writer at a time.


class RunFolder:
    """A run folder while it is written. Lines are appended, whole files replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines: dict[str, io.FileIO] = {}
        self._marks: dict[str, tuple[int, int]] = {}
        self._lock: int | None = None
        self._missing: list[Path] = []

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
        folder._missing = missing_folders(folder.path)
        try:
            make_folders(folder.path)
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
        remove_first_files(self.path, self._missing)
        self.close()

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """The folder of an earlier run, to go on writing."""
        folder = cls(path)
        read_spec(folder.path)
        check_plain_files(folder.path, writes=True)
        if not os.access(folder.path, os.W_OK):
            raise InputError(f"out '{path}' is not writable; copy it to where you may write")
        folder._take()
        for left_over in folder.path.glob(f".*{TEMPORARY}"):
            left_over.unlink()
        for name in LINES:
            folder._cut_torn(name)
        return folder

    def append_round(self, record: Mapping[str, Any]) -> None:
        """One line of `rounds.jsonl`."""
        self._append(ROUNDS, record)

    def append_ledger(self, record: Mapping[str, Any]) -> None:
        """One line of `ledger.jsonl`."""
        self._append(LEDGER, record)

    def append_clients(self, record: Mapping[str, Any]) -> None:
        """One line of `client_rounds.jsonl`."""
        self._append(CLIENT_ROUNDS, record)

    def append_training(self, record: Mapping[str, Any]) -> None:
        """One line of `training.jsonl`."""
        self._append(TRAINING, record)

    def marks(self) -> dict[str, tuple[int, int]]:
        """Bring the lines to the disk and say how far each file reaches."""
        for file in self._lines.values():
            os.fsync(file.fileno())
        written = [n for n in LINES if n in (ROUNDS, LEDGER) or self._mark(n)[0]]
        return {name: self._mark(name) for name in written}

    def check_marks(self, marks: Mapping[str, tuple[int, int]]) -> None:
        """ValueError if the files of lines do not begin with what a checkpoint saw in them."""
        for name, (size, crc) in marks.items():
            if name not in LINES or crc_of(self.path / name, size) != (size, crc):
                raise ValueError(f"the lines of {name} before it are damaged")

    def lines(self, name: str, marks: Mapping[str, tuple[int, int]]) -> list[Record]:
        """The lines of a file that a checkpoint has seen; ValueError if they are none."""
        read = records.read_rounds if name == ROUNDS else records.read_exchanges
        return read(self.path / name, marks.get(name, (0, 0))[0])[0]

    def cut(self, marks: Mapping[str, tuple[int, int]]) -> None:
        """Forget what came after a checkpoint (no marks: everything); a run writes it again."""
        for name in LINES:
            if name in self._lines:
                self._lines.pop(name).close()
            size, crc = marks.get(name, (0, 0))
            if (self.path / name).exists():
                os.truncate(self.path / name, size)
            self._marks[name] = size, crc

    def _cut_torn(self, name: str) -> None:
        """Take away a last line that was cut short; of other damage a checkpoint's marks tell."""
        with contextlib.suppress(InputError):
            rows, is_torn = read_lines(self.path / name)
            if is_torn:
                lines = (self.path / name).read_bytes().split(b"\n")[: len(rows)]
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
        self._lock = lock_folder(self.path)
