"""Run folders: one run's spec, rounds, ledger, environment, summary and weights as files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.records import Record, dump, read_file, read_lines

if TYPE_CHECKING:
    import numpy as np

SPEC, ROUNDS, LEDGER = "spec.toml", "rounds.jsonl", "ledger.jsonl"
ENVIRONMENT, SUMMARY, MODEL = "env.json", "summary.json", "model.safetensors"
CLIENTS = "clients.json"
ANALYSIS = "analysis"
TEMPORARY = ".tmp"


def check_free(path: Path) -> None:
    """Refuses a folder that holds another run or foreign files. Writes nothing."""
    try:
        if not path.exists():
            _check_parent(path)
        elif not path.is_dir():
            raise InputError(f"out '{path}' is a file; name a new folder")
        else:
            _check_empty(path)
    except OSError as error:
        raise InputError(f"out '{path}' cannot be used: {error.strerror}") from None


def _check_parent(path: Path) -> None:
    parent = next(parent for parent in path.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise InputError(f"out '{path}' is inside '{parent}', which is a file; name a new folder")
    if not os.access(parent, os.W_OK):
        raise InputError(f"out '{path}' cannot be made: '{parent}' is not writable")


def _check_empty(path: Path) -> None:
    found = sorted(e.name for e in path.iterdir() if not _is_left_over(e.name))
    if SPEC in found:
        raise InputError(
            f"out '{path}' holds another run; name a new folder, or continue that run with: "
            f"fedrift resume {path}"
        )
    if found:
        raise InputError(f"out '{path}' is not empty (it holds {found[0]}); name a new folder")


def _is_left_over(name: str) -> bool:
    """Of a process that was killed while it wrote a file."""
    return name.startswith(".") and name.endswith(TEMPORARY)


class RunFolder:
    """One run's folder while it is written. Lines are appended, whole files replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines: dict[str, IO[str]] = {}
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | Path, spec: Spec) -> RunFolder:
        """A new folder with its spec; call it only when everything else has been checked."""
        folder = cls(path)
        check_free(folder.path)
        made = not folder.path.exists()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._take()
            check_free(folder.path)  # again: another process may have been faster
            folder.write_text(SPEC, replace(spec, out=None).to_toml())
        except BaseException as error:
            folder.close()
            if made:
                with contextlib.suppress(OSError):
                    folder.path.rmdir()
            if isinstance(error, OSError):
                raise InputError(f"out '{path}' cannot be made: {error.strerror}") from None
            raise
        return folder

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """The folder of an earlier run, to go on writing; torn last lines are cut off."""
        folder = cls(path)
        read_spec(folder.path)
        folder._take()
        for name in (ROUNDS, LEDGER):
            records, torn = read_lines(folder.path / name)
            if torn:
                folder._rewrite(name, records)
        for left_over in folder.path.glob(f".*{TEMPORARY}"):
            left_over.unlink()
        return folder

    def append_round(self, record: Mapping[str, Any]) -> None:
        """One line of `rounds.jsonl`."""
        self._append(ROUNDS, record)

    def append_ledger(self, record: Mapping[str, Any]) -> None:
        """One line of `ledger.jsonl`."""
        self._append(LEDGER, record)

    def truncate_after(self, round: int) -> None:
        """Forgets what came after a round: a resumed run will write it again."""
        for name in (ROUNDS, LEDGER):
            records, torn = read_lines(self.path / name)
            kept = [record for record in records if record["round"] <= round]
            if torn or len(kept) < len(records):
                self._rewrite(name, kept)

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
        temporary = self.path / f".{name}.{os.getpid()}{TEMPORARY}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Lets the folder go; it can be closed twice."""
        for file in self._lines.values():
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
        if name not in self._lines:
            self._lines[name] = (self.path / name).open("a", encoding="utf-8", newline="\n")
        self._lines[name].write(dump(record) + "\n")
        self._lines[name].flush()

    def _rewrite(self, name: str, records: list[Record]) -> None:
        if name in self._lines:  # the open file is about to be replaced
            self._lines.pop(name).close()
        self.write_text(name, "".join(dump(record) + "\n" for record in records))

    def _take(self) -> None:
        """Two processes would mix their lines; the lock ends with the process."""
        try:
            import fcntl
        except ImportError:  # no such lock on this system
            return
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise InputError(
                f"out '{self.path}' is being written by another process; wait for it or stop it"
            ) from None


@dataclass(frozen=True)
class RunRecord:
    """A run folder as it was read. `torn` names the files whose last line was cut short."""

    folder: Path
    spec: Spec
    rounds: list[Record]
    ledger: list[Record]
    environment: Record
    summary: Record
    torn: tuple[str, ...]
    clients: Record = field(default_factory=Record)
    """`sizes`, `counts` (clients × classes, or None) and `scheme`; empty if it was not kept."""

    @property
    def status(self) -> str:
        """done, stopped, diverged, or unfinished when no summary was written."""
        return str(self.summary.get("status", "unfinished"))

    def weights(self) -> dict[str, np.ndarray]:
        """The saved parameters by name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return load_file(self.folder / MODEL)
        except (OSError, SafetensorError) as error:
            raise InputError(f"'{self.folder / MODEL}' cannot be read: {error}") from None

    def frame(self) -> Any:
        """One row per evaluated round: a pandas frame if installed, else a list of dicts."""
        try:
            import pandas
        except ImportError:
            return self.rounds
        return pandas.DataFrame(self.rounds)


def load(folder: str | Path) -> RunRecord:
    """Reads a run folder, finished or not."""
    path = Path(folder)
    spec = read_spec(path)
    rounds, rounds_torn = read_lines(path / ROUNDS)
    ledger, ledger_torn = read_lines(path / LEDGER)
    torn = tuple(
        name for name, is_torn in ((ROUNDS, rounds_torn), (LEDGER, ledger_torn)) if is_torn
    )
    environment = read_file(path / ENVIRONMENT) or {}
    summary, clients = read_file(path / SUMMARY) or {}, read_file(path / CLIENTS) or {}
    return RunRecord(path, spec, rounds, ledger, environment, summary, torn, clients)


def read_spec(path: Path) -> Spec:
    """The spec of a run folder; refuses what is none."""
    if not (path / SPEC).is_file():
        raise InputError(f"'{path}' is no run folder: it holds no {SPEC}")
    return Spec.from_toml(path / SPEC)
