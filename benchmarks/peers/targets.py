"""What fedrift has set out to reach against its peers, and whether the figures do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peers.curves import TOLERANCE
from peers.environments import PEERS
from peers.figures import OURS, Figures


@dataclass(frozen=True)
class Target:
    """The time of a visit of fedrift as a part of the bare loop's: at most `bound`.

    Of peers none is named: how far one is behind fedrift cannot be more than how far it is behind
    that loop.
    """

    row: str
    bound: float

    @property
    def says(self) -> str:
        return f"({self.row}) fedrift ÷ {PEERS['bare'].title}, per visit: ≤ {self.bound}"

    def measured(self, figures: Figures) -> float | None:
        ratio = figures.ratio(self.row, "bare", "visit")
        return None if ratio is None else 1 / ratio

    def is_met(self, measured: float) -> bool:
        return measured <= self.bound


NAMED = (
    Target("a", 0.6),
    Target("b", 1.05),
    Target("c", 1.05),
    Target("d", 0.15),
    Target("e", 1.05),
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
