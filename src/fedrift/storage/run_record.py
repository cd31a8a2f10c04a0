"""A run folder as it is read: its records, the tables made of them, and what its files say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift.config.spec import Spec
from fedrift.core.plain_files import check_plain
from fedrift.errors import InputError
from fedrift.storage import records
from fedrift.storage.jsonl import Record
from fedrift.storage.run_folder import (
    CLIENT_ROUNDS,
    CLIENTS,
    ENVIRONMENT,
    LEDGER,
    LINES,
    MODEL,
    ROUNDS,
    SUMMARY,
    TRAINING,
    read_spec,
)

if TYPE_CHECKING:
    import numpy as np


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
    client_rounds: list[Record] = field(default_factory=list[Record])
    """What clients found on test data of their own: a dict of columns per round."""
    training: list[Record] = field(default_factory=list[Record])
    """What training reported at each client: a dict of columns per round."""

    @property
    def status(self) -> str:
        """done, stopped, diverged, or unfinished when no summary was written."""
        return str(self.summary.get("status", "unfinished"))

    def weights(self) -> dict[str, np.ndarray]:
        """The saved parameters by name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.folder / MODEL
        try:
            check_plain(path)
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"'{path}' cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"'{path}' holds numbers of a kind that no run writes ({error})"
            ) from None

    def frame(self) -> Any:
        """One row per evaluated round: a pandas frame if installed, else a list of dicts."""
        return as_frame(self.rounds)

    def client_frame(self) -> Any:
        """One row per client and round in which it evaluated."""
        return as_frame(client_rows(self.client_rounds))

    def domain_frame(self) -> Any:
        """One row per domain of the shift and evaluated round."""
        return as_frame(domain_rows(self.clients, self.rounds, self.client_rounds))

    def training_frame(self) -> Any:
        """One row per client and round in which it trained."""
        return as_frame(client_rows(self.training))


def client_rows(lines: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The table of clients, a dict per client and round."""
    rows: list[Record] = []
    for line in lines:
        columns = {key: column for key, column in line.items() if key != "round"}
        for values in zip(*columns.values(), strict=True):
            rows.append({"round": line["round"], **dict(zip(columns, values, strict=True))})
    return rows


def domain_rows(
    about: Mapping[str, Any],
    rounds: Iterable[Mapping[str, Any]],
    lines: Iterable[Mapping[str, Any]],
) -> list[Record]:
    """What was found in each domain of a shift, a dict per domain and evaluated round.

    `about` is what the folder says of the clients, `lines` the table of what they found.
    """
    known = about.get("domains")
    if not known:
        return []
    own = {line["round"]: domain_means(known["of"], line) for line in lines}
    rows: list[Record] = []
    for row in rounds:
        means = own.get(row["round"], {})
        for domain, name in enumerate(known["names"]):
            found: Record = {"round": row["round"], "domain": domain, "name": name}
            found["seen"] = domain not in known["unseen"]
            for column in ("accuracy", "loss"):
                if f"domain_{column}" in row:
                    found[column] = row[f"domain_{column}"][domain]
            if means:
                found["client_accuracy"] = means.get(domain, math.nan)
            rows.append(found)
    return rows


def domain_means(of: Sequence[int], line: Mapping[str, Any]) -> dict[int, float]:
    """Domain → mean accuracy of its clients, of a line of the table of clients."""
    values: dict[int, list[float]] = {}
    for client, accuracy in zip(line["client"], line.get("accuracy", ()), strict=False):
        if accuracy is not None and math.isfinite(accuracy) and client < len(of):
            values.setdefault(of[client], []).append(accuracy)
    return {domain: sum(some) / len(some) for domain, some in values.items()}


def as_frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a pandas frame if it is installed, else as a list of dicts."""
    listed = list(rows)
    try:
        import pandas
    except ImportError:
        return listed
    return pandas.DataFrame(listed)


def load(folder: str | Path) -> RunRecord:
    """Reads a run folder, finished or not."""
    path = Path(folder)
    spec = read_spec(path)
    rounds, rounds_torn = records.read_rounds(path / ROUNDS)
    ledger, ledger_torn = records.read_exchanges(path / LEDGER)
    own, own_torn = records.read_client_rounds(path / CLIENT_ROUNDS)
    training, training_torn = records.read_training(path / TRAINING)
    ends = (rounds_torn, ledger_torn, own_torn, training_torn)
    torn = tuple(name for name, is_torn in zip(LINES, ends, strict=True) if is_torn)
    environment, summary, clients = read_environment(path), read_summary(path), read_clients(path)
    records.check_domains(path / ROUNDS, rounds, clients)
    records.check_trips(path / LEDGER, ledger, clients)
    return RunRecord(path, spec, rounds, ledger, environment, summary, torn, clients, own, training)


def read_environment(path: Path) -> Record:
    """What the bits of a run depend on besides its spec; empty if it was not kept."""
    return records.read_record(path / ENVIRONMENT, records.ENVIRONMENT)


def read_summary(path: Path) -> Record:
    """How a run ended; empty while it is unfinished."""
    return records.read_record(path / SUMMARY, records.ENDED, needed=("status",))


def read_clients(path: Path) -> Record:
    """Who holds what; empty if it was not kept."""
    return records.read_record(path / CLIENTS, records.CLIENTS)
