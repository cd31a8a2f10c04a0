"""What the parent tells a worker process: a run, an exchange, visits and evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedrift.algorithm import Algorithm
from fedrift.backends.evaluation import ChunkMetric
from fedrift.backends.visit import Call
from fedrift.data.resident import Make
from fedrift.exchange import Signature
from fedrift.messages import Packed
from fedrift.problem import Problem
from fedrift.rows import RowLayout
from fedrift.site import Augment, Site


@dataclass(frozen=True)
class Setup:
    """What a worker is told of a run once, pickled by the parent (classes of a notebook too)."""

    root: Algorithm[Any, Any]
    problem: Problem
    augment: Augment | None
    measure: ChunkMetric
    keeps_outputs: bool
    has_test: bool
    skeletons: dict[str, Any]
    """Shapes of the trees x, y, x_test, y_test."""
    where: dict[str, tuple[str, Packed]]
    """For each tree the block that holds it, and where its tensors stand in it."""
    layouts: dict[str, RowLayout]
    make: Make | None = None
    site: Callable[..., Any] = Site


@dataclass(frozen=True)
class Ask:
    """An exchange as a worker sees it."""

    call: Call
    signature: Signature
    down: Packed
    buffers: Packed
    frozen: Packed


@dataclass(frozen=True)
class Visit:
    """One client of the current exchange: where its row is read and written, where to answer."""

    client: int
    read: int
    write: int
    private: Packed | None
    slot: str = ""


@dataclass(frozen=True)
class Visits:
    """Clients of the current exchange whose visits are one task."""

    tasks: tuple[Visit, ...]
    slot: str = ""

    @property
    def client(self) -> int:
        """The first of them, to speak of."""
        return self.tasks[0].client


@dataclass(frozen=True)
class Evaluation:
    """A few chunks of the test data."""

    chunks: range
    block: str
    where: Packed
    temperature: float
