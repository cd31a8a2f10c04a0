"""What an algorithm is (server state, client state, one straight-line round), and how it talks to
clients: a cohort is asked, and one `ask` is an exchange, whatever carries it there and back."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
)

import torch
from torch import Tensor, nn

from fedrift.core.alignment import settled
from fedrift.core.codecs import Payload, Unsent, packed_message, rules_of
from fedrift.core.compression import Compression
from fedrift.core.faults import RoundFaults
from fedrift.core.flat import Vec
from fedrift.core.local import Local
from fedrift.core.messages import Folding, Reducer, check_reduced
from fedrift.core.optim import PerStep
from fedrift.core.phases import is_evaluation
from fedrift.core.problem import Problem
from fedrift.core.site import Site, Work
from fedrift.core.training import Training
from fedrift.errors import InputError

S = TypeVar("S")
C = TypeVar("C")
U = TypeVar("U")

Weights = Literal["samples", "uniform"]
"""What a client counts in a mean: its samples, or as much as any other."""

InnerVisit = Callable[[Any], tuple[Any, Any]]
"""The visit of an algorithm inside, for its state: the reply and the new state."""

Sampling = Literal["uniform", "once"]
"""Who may be drawn: anybody, or only clients that have not been counted yet."""


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

    w: Vec
    buffers: tuple[Tensor, ...] = ()
    allowed: Tensor | None = None
    temperature: float = 1.0
    frozen: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Cohort:
    """The clients of one round, and the only way to talk to them."""

    def __init__(
        self,
        root: Algorithm[Any, Any],
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
        self._root, self._seed, self._deliver = root, seed, deliver
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
        phase, how, payload = address(self._root, fn), self.problem.compression, {}
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


def parts(algorithm: Algorithm[Any, Any]) -> Iterator[tuple[str, Algorithm[Any, Any]]]:
    """The algorithm and everything it wraps, with their paths."""
    yield "", algorithm
    for f in fields(algorithm):  # type: ignore[arg-type]
        child = getattr(algorithm, f.name)
        if isinstance(child, Algorithm):
            for path, node in parts(child):  # type: ignore[reportUnknownArgumentType]
                yield (f"{f.name}.{path}" if path else f.name), node


def arrivals_of(root: Algorithm[Any, Any]) -> int | None:
    """How many replies make a round of an asynchronous algorithm, or of one that wraps it."""
    return next((n for n in (node.arrivals() for _, node in parts(root)) if n is not None), None)


def personal_path(root: Algorithm[Any, Any], p: Problem) -> str | None:
    """Where the algorithm stands whose clients have models of their own: the outermost that
    writes `personal`; None if nobody does."""
    for path, node in parts(root):
        if type(node).personal is Algorithm.personal:
            continue
        if resolve(root, p, path)[1].layout.names != p.layout.names:
            raise InputError(
                f"{type(node).__name__} has models of the clients' own and is given a part of the "
                "model only; train all of it"
            )
        return path
    return None


def is_host(node: Algorithm[Any, Any]) -> bool:
    """Whether it does something around the visits of what it wraps."""
    return type(node).around is not Algorithm.around


def has_hosts(root: Algorithm[Any, Any]) -> bool:
    """Whether any wrapper does something around the visits of what it wraps."""
    return any(is_host(node) for _, node in parts(root))


def host_path(root: Algorithm[Any, Any], path: str) -> str | None:
    """Where the wrapper stands that is around the visits of what stands at a path."""
    node, way = root, path.split(".") if path else []
    for i, name in enumerate(way):
        if is_host(node):
            return ".".join(way[:i])
        node = getattr(node, name)
    return None


def state_path(root: Algorithm[Any, Any], path: str) -> str:
    """Where the state is kept that visits of what stands at a path read and write."""
    host = host_path(root, path)
    return path if host is None else host


def fed_back(root: Algorithm[Any, Any], p: Problem, path: str) -> tuple[tuple[str, str], ...]:
    """Phase and field of all that is packed with feedback in visits that use the state there."""
    if (how := p.compression) is None:
        return ()
    found: list[tuple[str, str]] = []
    for at, node in parts(root):
        if state_path(root, at) != path:
            continue
        for method in _methods(node):
            phase = f"{at}.{method.function.__name__}" if at else method.function.__name__
            rules = rules_of(how, "up", method.signature.up)
            found += [(phase, name) for name, packing in rules.items() if packing.has_feedback]
    return tuple(found)


def client_start(root: Algorithm[Any, Any], p: Problem, path: str) -> Any:
    """The state that every client begins with; None if nothing is kept there."""
    node, view = resolve(root, p, path)
    start, sent = node.client(view), fed_back(root, p, path)
    if not sent:
        return start
    views = (resolve(root, p, owner_of(phase))[1] for phase, _ in sent)
    return Unsent(inner=start, error=tuple(torch.zeros_like(view.w0) for view in views))


def inner_client(inner: Algorithm[Any, Any], p: Problem) -> Any:
    """The initial state that a wrapper around visits keeps for the algorithm inside."""
    if len({id(method.owner) for method in client_methods(inner)}) > 1:
        raise InputError("it wraps two algorithms that take turns; only one can be inside")
    if has_hosts(inner):
        raise InputError("what it wraps has models of the clients' own already; keep one of them")
    states = (node.client(view) for node, view in (resolve(inner, p, at) for at, _ in parts(inner)))
    return next((state for state in states if state is not None), None)


class ClientMethod(NamedTuple):
    """A method that runs at clients, and what it declares."""

    owner: Algorithm[Any, Any]
    function: Any
    signature: Signature


def client_methods(root: Algorithm[Any, Any]) -> list[ClientMethod]:
    """The client methods of an algorithm and of everything it wraps."""
    return [method for _, node in parts(root) for method in _methods(node)]


def _methods(node: Algorithm[Any, Any]) -> Iterator[ClientMethod]:
    for name in _client_names(type(node)):
        yield ClientMethod(node, getattr(type(node), name), signature(getattr(node, name)))


@lru_cache(maxsize=256)
def _client_names(kind: type) -> tuple[str, ...]:
    """Asked in every exchange; reading all signatures of a class costs more than a small visit."""
    return tuple(
        name
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and list(inspect.signature(function).parameters)[1:4] == ["site", "down", "mine"]
    )


def makes_steps(root: Algorithm[Any, Any]) -> bool:
    """Whether clients make local steps: FedSGD's, for one, only take a gradient."""
    methods = (inspect.unwrap(method.function) for method in client_methods(root))
    return any("train" in method.__code__.co_names for method in methods)


def address(root: Algorithm[Any, Any], fn: Callable[..., Any]) -> str:
    """Where a client method is found: `train`, `inner.train`."""
    owner = getattr(fn, "__self__", None)
    for path, node in parts(root):
        if node is owner:
            return f"{path}.{fn.__name__}" if path else fn.__name__
    raise InputError(
        f"cohort.ask: '{getattr(fn, '__name__', fn)}' is not a method of the algorithm that runs"
    )


def owner_of(phase: str) -> str:
    """The path under which the state of the method's owner is kept."""
    return phase.rpartition(".")[0]


def resolve(
    root: Algorithm[Any, Any], p: Problem, path: str
) -> tuple[Algorithm[Any, Any], Problem]:
    """The algorithm at a path and its view of the task."""
    node = root
    for name in path.split(".") if path else ():
        node, p = getattr(node, name), node.view(name, p)
    return node, p


def local_of(algorithm: Algorithm[Any, Any]) -> Local | None:
    """The local settings of an algorithm or of what it wraps."""
    for _, node in parts(algorithm):
        local = getattr(node, "local", None)
        if isinstance(local, Local):
            return local
    return None


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


def map_local(
    algorithm: Algorithm[Any, Any], change: Callable[[Local], Local]
) -> Algorithm[Any, Any]:
    """The algorithm with its local settings, or those of what it wraps, changed."""
    changes: dict[str, Any] = {}
    for f in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, f.name)
        if isinstance(value, Local):
            changes[f.name] = change(value)
        elif isinstance(value, Algorithm):
            changes[f.name] = map_local(value, change)
    return replace(algorithm, **changes)  # type: ignore[type-var]
