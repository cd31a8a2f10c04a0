"""Watching a run: what is told of it, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedrift.errors import InputError

if TYPE_CHECKING:  # progress on the command line is a callback, and does not wait for torch
    from torch import Tensor

    from fedrift.core.exchange import Exchange
    from fedrift.core.flat import Vec
    from fedrift.engine.ledger import Cost
    from fedrift.engine.result import Result
    from fedrift.storage.client_state import Store


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round (counted from 1). `metrics` is empty if it was not evaluated."""

    round: int  # counted from 1
    weights: Vec  # after the round, flat
    state: Any  # what the algorithm's `round` returned
    metrics: Mapping[str, Any]  # as a line of `result.metrics`
    cost: Cost  # bytes and gradient evaluations of this round
    cohort: tuple[int, ...]  # who was asked
    nonfinite: tuple[int, ...]  # whose replies were left out: not finite
    seconds: float  # wall time since the run began
    buffers: tuple[Tensor, ...] = ()
    """Running statistics that belong to the weights."""
    training: Mapping[str, float] = field(default_factory=dict[str, float])
    """What training reported, also where nothing was evaluated: `train_loss` and the like, means
    over the cohort; empty if nobody trained."""
    time: float | None = None
    """Seconds of the simulated clock since the run began; None without one."""


OnRoundFunction = Callable[[RoundReport], bool | None]


@dataclass(frozen=True)
class Plan:
    """What is about to run, said before the first round."""

    parameters: int  # that are trained
    clients: int  # in all
    samples: int  # of all clients together
    cohort: float  # clients a round, on average
    workers: int  # processes; 0: this one
    memory_bytes: int  # estimated, all processes together
    disk_bytes: int  # of clients' states
    resumed_from: int = 0  # rounds that were done before
    notes: tuple[str, ...] = ()  # a sentence for each choice that was made
    local: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The work of a client as settings say it (epochs, batch size, rate, …); empty without any."""
    is_origin: bool = False
    """These are the first rounds of a fork, which are those of another run."""
    states: Store | None = None
    """What clients keep between rounds, to read; None if it is not here."""


class Callback:
    """Watches a run: subclass it and write the methods you need.

    What is told has happened and is recorded. A method that raises ends the run, which keeps the
    rounds it has finished.
    """

    def on_start(self, plan: Plan) -> None:
        """Before the first round. A fork starts twice: as its origin, then as itself."""

    def on_reply(self, exchange: Exchange, client: int, weight: float, up: Any) -> None:
        """A client's message as it is averaged, not to be kept or changed; if `looks_at` says so.

        `exchange.phase` names the client method, `exchange.round` counts from 0.
        """

    def on_round(self, report: RoundReport) -> bool | None:
        """After every round; True stops the run."""

    def on_end(self, result: Result) -> None:
        """The run has a result. One that was finished before is only read: it had no start."""

    def on_error(self, error: BaseException) -> None:
        """The run has ended with an exception: a KeyboardInterrupt if it was interrupted."""

    def looks_at(self, round: int) -> bool:
        """Whether it must see this round, its replies included, before the next one begins.

        With False the run is faster: the model is evaluated while the next round is under way,
        and `on_round` is called when that is done.
        """
        return True


class Passive(Callback):
    """A callback for which no round waits; `on_round` must not change the weights it is shown."""

    def looks_at(self, round: int) -> bool:
        return False


class OnRound(Callback):
    """A function of a `RoundReport` as a callback."""

    def __init__(self, function: OnRoundFunction) -> None:
        self._function = function

    def on_round(self, report: RoundReport) -> bool | None:
        return self._function(report)


def callbacks_of(
    given: Sequence[Callback], on_round: OnRoundFunction | None = None
) -> list[Callback]:
    """What the user gave, checked; the function comes last."""
    if not isinstance(given, Sequence):
        raise InputError(f"callbacks={given!r} must be a list of fedrift.Callback objects")
    for one in given:
        if not isinstance(one, Callback):
            raise InputError(
                f"callbacks: {one!r} must be an object of a class that inherits fedrift.Callback"
            )
    if on_round is not None and not callable(on_round):
        raise InputError(f"on_round={on_round!r} must be a function of a RoundReport")
    return [*given, *([] if on_round is None else [OnRound(on_round)])]


def writing(callbacks: Sequence[Callback], method: str) -> list[Callback]:
    """Those that have written a method: nobody else costs anything."""
    return [one for one in callbacks if getattr(type(one), method) is not getattr(Callback, method)]


@contextmanager
def telling_errors(callbacks: Sequence[Callback]) -> Generator[None]:
    """Tells everybody of an exception, which stays the one that is raised."""
    try:
        yield
    except BaseException as error:
        for callback in callbacks:
            try:
                callback.on_error(error)
            except Exception as other:
                error.add_note(f"{type(callback).__name__}.on_error failed too: {other!r}")
        raise


@contextmanager
def telling_end(callbacks: Sequence[Callback]) -> Generator[Callable[[Result], Result]]:
    """Tells everybody how a run ended; the result is given to what this yields."""
    results: list[Result] = []

    def keep(result: Result) -> Result:
        results.append(result)
        return result

    with telling_errors(callbacks):
        yield keep
    for result in results:
        for callback in callbacks:
            callback.on_end(result)
