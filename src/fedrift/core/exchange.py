"""How an algorithm talks to clients: a cohort is asked, and one `ask` is an exchange, whatever
carries it there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, get_type_hints

from torch import Tensor

from fedrift.core.alignment import settled
from fedrift.core.codecs import Payload, packed_message
from fedrift.core.compression import Compression
from fedrift.core.faults import RoundFaults
from fedrift.core.messages import Folding, Reducer, check_reduced
from fedrift.core.phases import is_evaluation
from fedrift.core.problem import Problem
from fedrift.core.site import Work
from fedrift.core.training_report import Training
from fedrift.errors import InputError

U = TypeVar("U")

Weights = Literal["samples", "uniform"]
"""What a client counts in a mean: its samples, or as much as any other."""


class Cohort:
    """The clients of one round, and the only way to talk to them."""

    def __init__(
        self,
        address: Callable[[Callable[..., Any]], str],
        problem: Problem,
        clients: Sequence[int],
        *,
        round: int,
        seed: int,
        buffers: tuple[Tensor, ...],
        deliver: Deliver,
        aggregation: Reducing | None = None,
    ) -> None:
        self.problem, self.round = problem, round
        self.clients = tuple(sorted(clients))
        self.buffers = buffers
        self.weight = 0.0
        """Sum of the weights of those who answered the last ask."""
        self.temperature = 1.0
        self.frozen: Mapping[str, Tensor] = {}
        self.watch: Callable[[Exchange], Watch | None] | None = None
        """Who looks at the replies of an exchange where they are folded."""
        self._address, self._seed, self._deliver = address, seed, deliver
        self._aggregation = aggregation
        self._asked = False

    @property
    def size(self) -> int:
        return len(self.clients)

    @property
    def population(self) -> int:
        """All clients, those without data included."""
        return self.problem.population

    @property
    def replies(self) -> float:
        """How many answered the last ask; where that is private, how many were to be expected."""
        is_private = self._aggregation is not None and self._aggregation.is_private
        return self.weight if is_private else len(self.clients)

    def ask(
        self,
        fn: Callable[..., tuple[U | None, Any]],
        down: Any,
        private: Mapping[int, Any] | None = None,
    ) -> U:
        """Send `down`, run the client method everywhere, return the reduced replies."""
        if self._asked and self._aggregation is not None and self._aggregation.is_private:
            raise InputError("privacy: clients are asked twice a round; only once is accounted for")
        self._asked = True
        phase, how, payload = self._address(fn), self.problem.compression, {}
        if how is not None:
            stream = self._seed, phase, self.round, 0
            down, payload, _ = packed_message(how, "down", down, stream)
        exchange = Exchange(
            phase=phase,
            signature=signature(fn),
            round=self.round,
            seed=self._seed,
            down=down,
            private=private or {},
            buffers=self.buffers,
            weights=fn.__self__.weighting(),  # type: ignore[attr-defined]
            temperature=self.temperature,
            frozen=self.frozen,
            aggregation=self._aggregation,
            compression=how,
            payload=payload,
            discount=fn.__self__.discount,  # type: ignore[attr-defined]
        )
        if self.watch is not None:
            exchange = replace(exchange, watch=self.watch(exchange))
        outcome = self._deliver(exchange, self.clients)
        if not outcome.replied:
            raise NoReply(outcome.nonfinite)
        self.clients = outcome.replied  # who missed this exchange is not asked in the next
        self.buffers = outcome.buffers
        self.weight = outcome.weight
        return settled(outcome.up)


Watch = Callable[[int, float, Any], None]
"""Sees a client's id, its weight and its message, which it must not keep."""


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
    trouble: RoundFaults | None = None
    """Simulated faults of these clients."""
    compression: Compression | None = None
    payload: Payload = field(default_factory=dict[str, Tensor])
    """The bytes that travel in place of the fields of `down` that are packed."""
    discount: Callable[[int], float] = lambda staleness: 1.0
    """What a reply counts whose model is so many rounds old."""
    holds: bool = False
    """Replies are handed on one by one: the simulated clock decides which of them count."""
    streams: str = ""
    """Sets the random numbers of these visits apart from those of others in the round."""

    @property
    def is_evaluation(self) -> bool:
        """Clients evaluate a model on test data of their own; their states stay what they are."""
        return is_evaluation(self.phase)

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
    training: tuple[tuple[int, float, Training], ...] = ()
    """What training reported at each client: its number, the weight of its reply, the report."""
    reported_bytes: int = 0
    """Of these reports, where they travelled beside the messages."""
    visits: Sequence[VisitCost] = ()
    """What each client did and sent, as far as it is known."""
    held: Sequence[Any] = ()
    """The replies themselves, if the exchange holds them: nothing is reduced then."""


class VisitCost(NamedTuple):
    """What a visit cost."""

    client: int
    work: Work
    up: int
    """Bytes of the reply."""


class Reducing(Protocol):
    """Makes what reduces the replies of an exchange."""

    @property
    def is_private(self) -> bool: ...
    @property
    def is_ghost(self) -> bool: ...
    def reducer(self, cls: type, exchange: Exchange) -> Folding: ...


class Deliver(Protocol):
    """Runs an exchange at the given clients."""

    def __call__(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...


class NoReply(Exception):
    """Nobody gave a usable answer: the round is void, or the run has diverged."""

    def __init__(self, nonfinite: tuple[int, ...]) -> None:
        super().__init__("no usable reply")
        self.nonfinite = nonfinite


@dataclass(frozen=True)
class Signature:
    """Message and state classes of a client method, read from its annotations."""

    down: type
    up: type
    state: type | None
    private: type | None


def signature(fn: Callable[..., Any]) -> Signature:
    """The classes a client method sends, returns and keeps."""
    return _signature(fn.__func__)  # type: ignore[attr-defined]


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
    found = Signature(down, _bare(up), _bare(state), private and _bare(private))  # type: ignore[arg-type]
    check_reduced(found.up)
    return found


def _bare(hint: Any) -> Any:
    """`X | None` → X; None → None."""
    if hint is type(None) or hint is None:
        return None
    return next((a for a in get_args(hint) if a is not type(None)), hint)
