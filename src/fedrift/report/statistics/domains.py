"""What was found in each domain of a shift: by the server, and by the clients that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrift.storage.run_record import domain_means

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """The domains by their numbers; `unseen` are those that no client has."""

    names: tuple[str, ...]
    unseen: tuple[int, ...]

    @property
    def seen(self) -> list[int]:
        return [d for d in range(len(self.names)) if d not in self.unseen]


@dataclass(frozen=True, eq=False)
class InDomains:
    """Accuracy in every domain: evaluated rounds × domains; None where nobody looked."""

    layout: Layout
    server: Floats | None
    """Of the server's model on the server's test set in each domain."""
    clients: Floats | None
    """Mean over the clients of each domain, on test data of their own; unseen ones have none."""

    def final(self, whose: str, last: int) -> Floats | None:
        """Mean over the last of the rounds."""
        table = self.server if whose == "server" else self.clients
        return None if table is None or not len(table) else table[-last:].mean(axis=0)


def in_domains(
    about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]
) -> InDomains | None:
    """From what a folder says of the clients, its rounds and its table of clients."""
    known = about.get("domains")
    if not known:
        return None
    layout = Layout(tuple(map(str, known["names"])), tuple(known["unseen"]))
    server = [row["domain_accuracy"] for row in rows if "domain_accuracy" in row]
    means = [domain_means(known["of"], line) for line in lines if "accuracy" in line]
    clients = [[mean.get(d, np.nan) for d in range(len(layout.names))] for mean in means]
    return InDomains(
        layout,
        np.array(server, np.float64) if server else None,
        np.array(clients, np.float64) if clients else None,
    )
