"""Where the simulated clock stands: the time, and who is out and will arrive when, with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedrift.core.devices import Trip
from fedrift.core.messages import Packed, Size
from fedrift.core.site import Work
from fedrift.core.training_report import Training


@dataclass(frozen=True)
class Out:
    """A client that has been sent a model and has not arrived yet, and what it will bring."""

    trip: Trip
    round: int
    """The round, from 0, whose model it was sent."""
    n: int
    up: Packed | None
    buffers: tuple[Tensor, ...]
    work: Work
    size: Mapping[str, Size]
    is_finite: bool
    training: Training | None = None
    """What its training reported."""


@dataclass(frozen=True)
class ClockState:
    """What a checkpoint keeps of the clock."""

    time: float = 0.0
    departures: int = 0
    """How often clients have been sent out; each time is a draw of its own."""
    out: tuple[Out, ...] = ()
