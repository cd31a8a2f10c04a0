"""What fedrift has set out to reach against its peers, and whether the figures do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from peers.curves import TOLERANCE
from peers.environments import PEERS
from peers.figures import OURS, Figures


@dataclass(frozen=True)
class Target:
    """A ratio to fedrift: at least `bound`, or for `is_limit` fedrift's to it at most `bound`."""

    row: str
    peer: str
    what: Literal["visit", "total"]
    bound: float
    is_limit: bool = False

    @property
    def says(self) -> str:
        which = "per visit" if self.what == "visit" else "whole command"
        if self.is_limit:
            return f"({self.row}) fedrift ÷ {PEERS[self.peer].title}, {which}: ≤ {self.bound}"
        return f"({self.row}) {PEERS[self.peer].title} ÷ fedrift, {which}: ≥ {self.bound}"

    def measured(self, figures: Figures) -> float | None:
        ratio = figures.ratio(self.row, self.peer, self.what)
        return 1 / ratio if ratio is not None and self.is_limit else ratio

    def is_met(self, measured: float) -> bool:
        return measured <= self.bound if self.is_limit else measured >= self.bound


NAMED = (
    Target("a", "flower", "visit", 5.0),
    Target("a", "flower", "total", 5.0),
    Target("b", "flower", "visit", 1.8),
    Target("a", "pfl", "visit", 1.6),
    Target("b", "pfl", "visit", 2.8),
    Target("c", "pfl", "visit", 2.8),
    Target("a", "bare", "visit", 1.15, is_limit=True),
    Target("b", "bare", "visit", 1.05, is_limit=True),
    Target("c", "bare", "visit", 1.05, is_limit=True),
    Target("d", "bare", "visit", 6.0),
)


def faster_than_all(figures: Figures) -> Iterator[tuple[str, float, str]]:
    """Row by row, the peer that comes closest: what is compared, its ratio, its title."""
    for row in figures.rows:
        for what, says in (("visit", "per visit"), ("total", "whole command")):
            ratios = {
                peer: ratio
                for peer in PEERS
                if peer not in (OURS, "bare")
                and _did_the_same(figures, row, peer)
                and (ratio := figures.ratio(row, peer, what)) is not None
            }
            if ratios:
                closest = min(ratios, key=ratios.__getitem__)
                yield f"({row}) {says}", ratios[closest], PEERS[closest].title


def _did_the_same(figures: Figures, row: str, peer: str) -> bool:
    distance = figures.distance(row, peer)
    return distance is None or distance < TOLERANCE
