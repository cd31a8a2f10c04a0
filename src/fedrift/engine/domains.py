"""The server's test set in every domain of a shift: the same samples, and what is found in each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrift.core.evaluation import EVALUATION_CHUNK, Chunk
from fedrift.core.flat import count, take
from fedrift.data.shift import Domains


@dataclass(frozen=True, eq=False)
class TestDomains:
    """Test data in all domains, one after the other: those that clients have come first."""

    __test__ = False

    layout: Domains
    x: Any
    y: Any

    @property
    def samples(self) -> int:
        """Of each domain."""
        return count(self.y) // self.layout.number

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.samples,) * self.layout.number

    @property
    def seen(self) -> tuple[Any, Any]:
        """The domains that clients have: what a run is judged by."""
        these = slice(self.samples * len(self.layout.seen))
        return take(self.x, these), take(self.y, these)

    def seen_chunks(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        return chunks[: self._chunks * len(self.layout.seen)]

    @property
    def _chunks(self) -> int:
        """Of each domain: none reaches into the next."""
        return -(-self.samples // EVALUATION_CHUNK)

    def by_number(self, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
        """The chunks of each domain, by its number."""
        starts = {d: at * self._chunks for at, d in enumerate(self.layout.tested)}
        return [chunks[starts[d] : starts[d] + self._chunks] for d in range(self.layout.number)]


def domain_columns(layout: Domains, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a round that the figures of each domain, by its number, come to."""
    columns: dict[str, Any] = {}
    for name, worst in (("accuracy", min), ("loss", max)):
        if not all(name in one for one in found):
            continue
        values = [float(one[name]) for one in found]
        columns[f"domain_{name}"] = values
        seen = [values[d] for d in layout.seen]
        is_known = all(map(math.isfinite, seen))
        columns[f"domain_{name}_worst"] = worst(seen) if is_known else math.nan
        if layout.unseen:
            columns[f"domain_{name}_unseen"] = float(np.mean([values[d] for d in layout.unseen]))
    return columns


def about(layout: Domains) -> dict[str, Any]:
    """What a run folder keeps of the domains: their names, and who has which."""
    return {
        "names": list(layout.names),
        "unseen": list(layout.unseen),
        "of": [layout.of(client) for client in range(layout.clients)],
    }
