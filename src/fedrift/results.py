"""Run folders as they are read: one run's spec, rounds, ledger, environment, summary, weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.records import Record, read_file, read_lines
from fedrift.run_files import (
    ANALYSIS,
    CLIENTS,
    ENVIRONMENT,
    LEDGER,
    MODEL,
    ROUNDS,
    SPEC,
    SUMMARY,
    check_free,
    read_spec,
)
from fedrift.run_folder import RunFolder

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ANALYSIS", "CLIENTS", "ENVIRONMENT", "LEDGER", "MODEL", "ROUNDS", "SPEC", "SUMMARY"]
__all__ += ["RunFolder", "RunRecord", "check_free", "load", "read_spec"]


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
