"""What an algorithm is: server state, client state, one straight-line round."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from torch import Tensor, nn

from fedrift.core.exchange import Cohort, Weights
from fedrift.core.flat import Vec
from fedrift.core.local import Local
from fedrift.core.optim import PerStep
from fedrift.core.problem import Problem
from fedrift.core.site import Site
from fedrift.errors import InputError

S = TypeVar("S")


C = TypeVar("C")


Sampling = Literal["uniform", "once"]
"""Who may be drawn: anybody, or only clients that have not been counted yet."""


InnerVisit = Callable[[Any], tuple[Any, Any]]
"""The visit of an algorithm inside, for its state: the reply and the new state."""


class Redefine(Protocol):
    """Describes the task anew for another module and head."""

    def __call__(self, make: Callable[[], nn.Module], head: str) -> Problem: ...


class Algorithm(ABC, Generic[S, C]):
    """Subclasses are frozen dataclasses that hold hyper-parameters and nothing else."""

    weights: Weights = "samples"
    takes_gradient_rule: ClassVar[bool] = True
    """Local steps use the gradient rule of `local`, so that another may be put in."""

    def weighting(self) -> Weights:
        """The weight of a client in every `Mean`."""
        return self.weights

    def check(self, p: Problem) -> None:
        """Refuse, before the first round, what would be meaningless."""
        return None

    def arrivals(self) -> int | None:
        """Replies that make a round while other clients stay out; None: all who are asked.

        With a number the algorithm is asynchronous: as many clients as a cohort has are always
        out, on the simulated clock. An `ask` sends its message to those who leave while the round
        lasts, and returns the replies that have arrived, whose models may be of earlier rounds.
        """
        return None

    def discount(self, staleness: int) -> float:
        """What a reply counts in a `Mean` whose model is so many rounds old."""
        return 1.0

    def sampling(self, s: S) -> Sampling:
        """How the next cohort is drawn."""
        return "uniform"

    def allowed(self, s: S) -> Tensor | None:
        """Mask of the classes that may be predicted; None allows all."""
        return None

    @abstractmethod
    def server(self, p: Problem) -> S:
        """Initial server state."""

    def client(self, p: Problem) -> C:
        """Initial state of every client; None if it keeps nothing."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def round(self, s: S, cohort: Cohort) -> S:
        """One round: ask the cohort, return the new server state."""

    def model(self, s: S) -> Vec:
        """The vector that is evaluated."""
        return s.w  # type: ignore[attr-defined]

    def view(self, child: str, p: Problem) -> Problem:
        """The task as the algorithm in field `child` sees it."""
        return p

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        """The task with another model, where the algorithm needs one; called once."""
        return p

    def prepare(self, p: Problem) -> Algorithm[S, C]:
        """The algorithm with everything settled that depends on the task; called once."""
        return self

    def exhausted(self, s: S, p: Problem) -> S:
        """The next state when sampling is "once" and everybody has been counted."""
        return s

    def local_now(self, s: S) -> Local | None:
        """The local settings of the coming round; None if clients make no steps in it."""
        return getattr(self, "local", None)

    def frozen(self, s: S, p: Problem) -> Mapping[str, Tensor]:
        """Parameters and buffers outside w that were decided during the run, for evaluation."""
        return {}

    def frozen_moves(self) -> bool:
        """Whether `frozen` changes from round to round, so that clients are sent it every time."""
        return False

    def also(self, s: S) -> Mapping[str, Vec]:
        """Further models worth evaluating, by name."""
        return {}

    def counts_on_rounds(self) -> bool:
        """Whether its first rounds depend on how many there are in all, so that no run of it can be
        continued with more. Unless written, it does where a method of it names `rounds`."""
        return any(
            "rounds" in names_in(method)
            for cls in type(self).__mro__
            if issubclass(cls, Algorithm) and cls is not Algorithm
            for _, method in inspect.getmembers(cls, inspect.isfunction)
            if method.__qualname__.partition(".")[0] != "Algorithm"
        )

    def log(self, s: S) -> Mapping[str, float]:
        """Numbers of the state worth a place in the log."""
        return {}

    def temperature(self, s: S) -> float:
        """What logits are divided by when the model is evaluated."""
        return 1.0

    def personal(self, site: Site, shown: EvaluatedModel, mine: C) -> EvaluatedModel | None:
        """The model this client is evaluated with, if it has one of its own; None: the server's.

        It runs at the client and may train there; what it returns is evaluated and dropped, and
        `mine` stays what it is. `shown` is what the server has evaluated; `mine` of a client that
        was never visited is the initial state. Random numbers are of streams that no visit uses.
        """
        return None

    def kept(self) -> Collection[str]:
        """Names of the parameters and buffers that clients hold themselves of the model that they
        are evaluated with: it is sent to them without these, which `personal` puts in."""
        return ()

    def has_global_model(self) -> bool:
        """Whether the server's model means something without what stays at the clients."""
        return True

    def around(self, visit: InnerVisit, site: Site, received: Any, mine: C) -> tuple[Any, C]:
        """What a client does when an algorithm inside this one visits it.

        A wrapper that writes this keeps the state of the algorithm inside in a field `inner` of its
        own: `visit(mine.inner)` is the visit, and gives the reply and the new inner state.
        `received` is the message that came down; the reply goes up. Otherwise the visit is all.
        """
        return visit(mine)

    def shown(
        self, s: S, p: Problem, buffers: tuple[Tensor, ...] = ()
    ) -> dict[str, EvaluatedModel]:
        """What is evaluated: the model under the name "", and what is worth seeing beside it."""
        main = EvaluatedModel(
            self.model(s), buffers, self.allowed(s), self.temperature(s), self.frozen(s, p)
        )
        return {"": main} | {name: replace(main, w=w) for name, w in self.also(s).items()}


@dataclass(frozen=True)
class EvaluatedModel:
    """A model as it is evaluated."""

    w: Vec  # weights of what is trained
    buffers: tuple[Tensor, ...] = ()  # running statistics, in the order of `Problem.moving`
    allowed: Tensor | None = None  # mask of the classes that may be predicted; None: all
    temperature: float = 1.0  # outputs are divided by it
    frozen: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Other parameters and buffers, by name."""


def names_in(function: Any) -> set[str]:
    """Attributes and globals that the code of a function names, inner functions included."""
    code, names = getattr(function, "__code__", None), set[str]()
    waiting: list[Any] = [code]
    while waiting:
        one = waiting.pop()
        if hasattr(one, "co_names"):
            names.update(one.co_names)
            waiting += one.co_consts
    return names


def uniform_only(algorithm: Algorithm[Any, Any]) -> None:
    """Refuse weights=samples where the rule is derived for the plain mean over clients."""
    if algorithm.weights != "uniform":
        raise InputError("weights=samples is not its rule, which is uniform; leave it out")


def refuse_memory(local: Local, why: str) -> None:
    """Refuse local momentum and adaptive optimizers where they would change the algorithm."""
    if local.has_memory:
        raise InputError(
            f"local momentum and adaptive optimizers are refused, because {why}; "
            "set momentum=0 and optimizer=sgd"
        )


def refuse_rates(local: Local, why: str) -> None:
    """Refuse a rate that changes from step to step where it would change the algorithm."""
    if isinstance(local.lr, PerStep):
        raise InputError(f"a schedule over local steps is refused, because {why}; drop per=step")
