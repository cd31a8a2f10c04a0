"""One `ask` as data: what goes down, what came back, and the classes a client method declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args, get_type_hints

from torch import Tensor

from fedrift.errors import InputError
from fedrift.faults import Trouble
from fedrift.flat import Vec
from fedrift.reducing import Folding, Reducer
from fedrift.site import Work

Weights = Literal["samples", "uniform"]


Watch = Callable[[int, float, Any], None]
"""Sees a client's id, its weight and its message, which it must not keep."""


@dataclass(frozen=True)
class Signature:
    """Message and state classes of a client method, read from its annotations."""

    down: type
    up: type
    state: type | None
    private: type | None


class Reducing(Protocol):
    """Makes what reduces the replies of an exchange."""

    @property
    def is_private(self) -> bool: ...
    @property
    def is_ghost(self) -> bool: ...
    def reducer(self, cls: type, exchange: Any) -> Folding: ...


@dataclass(frozen=True)
class Exchange:
    """One `ask`: what goes down, and which client method it is for."""

    phase: str
    signature: Signature
    round: int
    seed: int
    down: Any
    private: Mapping[int, Any]
    buffers: tuple[Tensor, ...]
    weights: Weights
    temperature: float = 1.0
    frozen: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Parameters that are not trained but were decided during the run."""
    watch: Watch | None = None
    """Is shown every reply that counts, with its weight, where replies are folded."""
    aggregation: Reducing | None = None
    """How replies are reduced, if not as their fields say."""
    trouble: Trouble | None = None

    def reducer(self) -> Folding:
        cls = self.signature.up
        return Reducer(cls) if self.aggregation is None else self.aggregation.reducer(cls, self)


@dataclass(frozen=True)
class Outcome:
    """What came back: the reduced message and who answered."""

    up: Any
    replied: tuple[int, ...]
    nonfinite: tuple[int, ...]
    weight: float
    """Sum of the weights of those who replied."""
    buffers: tuple[Tensor, ...]
    work: Work
    up_bytes: Mapping[str, Any]
    down_bytes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What went down besides the message: the keys of secure aggregation."""


@dataclass(frozen=True)
class Shown:
    """A model as it is evaluated."""

    w: Vec
    buffers: tuple[Tensor, ...] = ()
    allowed: Tensor | None = None
    temperature: float = 1.0
    frozen: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Deliver(Protocol):
    """Runs an exchange at the given clients."""

    def __call__(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...


class NoReply(Exception):
    """Nobody gave a usable answer: the round is void, or the run has diverged."""

    def __init__(self, nonfinite: tuple[int, ...]) -> None:
        super().__init__("no usable reply")
        self.nonfinite = nonfinite


@lru_cache(maxsize=256)
def _signature(function: Any) -> Signature:
    hints = get_type_hints(function)
    try:
        up, state = get_args(hints["return"])
        down, private = hints["down"], hints.get("private")
    except (KeyError, ValueError):
        raise InputError(
            f"{function.__qualname__}: a client method is annotated as (site: Site, down: Down, "
            "mine: State) -> tuple[Up, State]; the hints are the wire format"
        ) from None
    return Signature(down, _bare(up), _bare(state), private and _bare(private))  # type: ignore[arg-type]


def signature(fn: Callable[..., Any]) -> Signature:
    """The classes a client method sends, returns and keeps."""
    return _signature(fn.__func__)  # type: ignore[attr-defined]


def _bare(hint: Any) -> Any:
    """`X | None` → X; None → None."""
    if hint is type(None) or hint is None:
        return None
    return next((a for a in get_args(hint) if a is not type(None)), hint)
