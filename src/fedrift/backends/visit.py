"""One visit, one fold, one evaluated chunk: what every backend does, wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrift.algorithm import Algorithm, local_of, owner_of, resolve
from fedrift.backends.corruption import corrupted
from fedrift.errors import is_overflow
from fedrift.exchange import Exchange, Outcome, Shown
from fedrift.faults import Trouble
from fedrift.flat import count, is_finite, take
from fedrift.messages import Size, all_finite, nbytes, pack, placed
from fedrift.problem import Problem
from fedrift.profiling import TimedSite
from fedrift.requests import Meet
from fedrift.site import Augment, ClientData, Site, Work
from fedrift.streams import torch_seed
from fedrift.together import Together, together

EVALUATION_CHUNK = 250  # fixed, so that results do not depend on who evaluates


class Clients(Protocol):
    """The data of all clients, as a backend holds it."""

    @property
    def sizes(self) -> np.ndarray: ...
    def view(self, client: int) -> ClientData: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Call:
    """Which method, in which round, with which seed."""

    phase: str
    round: int
    seed: int
    temperature: float = 1.0
    trouble: Trouble | None = None

    @staticmethod
    def of(exchange: Exchange) -> Call:
        return Call(
            exchange.phase,
            exchange.round,
            exchange.seed,
            exchange.temperature,
            exchange.trouble,
        )


class Caller(NamedTuple):
    """A client to visit: what is for it alone, and what it keeps."""

    client: int
    private: Any
    mine: Any


@dataclass(frozen=True)
class Reply:
    """What a visit returns. `up` is None when the client has nothing to say."""

    up: Any
    mine: Any
    buffers: tuple[Tensor, ...]
    work: Work
    is_finite: bool


class Visitor:
    """Runs visits in this process."""

    def __init__(
        self,
        root: Algorithm[Any, Any],
        problem: Problem,
        clients: Clients,
        augment: Augment | None = None,
        site: Callable[..., Any] = Site,
    ) -> None:
        """`site` makes what a client method is given: a `Site`, or one that is watched."""
        self.root, self.problem, self.clients, self.augment = root, problem, clients, augment
        self.site = site
        self._resolved: dict[str, tuple[Algorithm[Any, Any], Problem]] = {}
        self._stacks: dict[str, Together | None] = {}

    def owner(self, path: str) -> tuple[Algorithm[Any, Any], Problem]:
        """The algorithm at a path and its view of the task; bound once per process."""
        if path not in self._resolved:
            self._resolved[path] = resolve(self.root, self.problem, path)
        return self._resolved[path]

    def _together(self, path: str) -> Together | None:
        if path not in self._stacks:
            plain = self.site in (Site, TimedSite) and self.augment is None
            self._stacks[path] = together(self.owner(path)[1]) if plain else None
        return self._stacks[path]

    def groups(self, phase: str, clients: Sequence[int]) -> list[Sequence[int]]:
        """The clients whose visits are one task, in order: alone where nothing is stacked."""
        stacks, local, cohort = (
            self._together(owner_of(phase)),
            local_of(self.root),
            sorted(clients),
        )
        if stacks is None or local is None or not cohort:
            return [[client] for client in cohort]
        number = stacks.groups(local.batch_size, self.clients.sizes[cohort])
        ends = [len(cohort) * i // number for i in range(number + 1)]
        return [cohort[a:b] for a, b in pairwise(ends)]

    def visit(
        self,
        call: Call,
        client: int,
        down: Any,
        private: Any,
        mine: Any,
        buffers: Sequence[Tensor],
        frozen: Mapping[str, Tensor],
    ) -> Reply:
        """Run one client method at one site. It writes nothing."""
        return self.visits(call, [Caller(client, private, mine)], down, buffers, frozen)[0]

    def visits(
        self,
        call: Call,
        callers: Sequence[Caller],
        down: Any,
        buffers: Sequence[Tensor],
        frozen: Mapping[str, Tensor],
    ) -> list[Reply]:
        """Run it at several; what becomes of one does not depend on the others."""
        path = owner_of(call.phase)
        node, problem = self.owner(path)
        method: Callable[..., tuple[Any, Any]] = getattr(node, call.phase.rpartition(".")[2])
        stacks, model = self._together(path), problem.model

        def begin() -> None:
            model.load_buffers(buffers or [problem.rest[name] for name in problem.moving])
            model.freeze(frozen)
            model.temperature = call.temperature

        def visit(caller: Caller, meet: Meet | None) -> Reply:
            return self._visit(call, method, problem, caller, down, meet)

        if stacks is not None:  # its model has nothing that a visit could leave behind
            begin()
            seed = torch_seed(call.seed, "dropout", call.round, callers[0].client) >> 1
            torch.default_generator.manual_seed(seed)
            return stacks.run([partial(visit, caller) for caller in callers])
        replies: list[Reply] = []
        for caller in callers:
            begin()
            replies.append(visit(caller, None))
        return replies

    def _visit(
        self,
        call: Call,
        method: Callable[..., tuple[Any, Any]],
        problem: Problem,
        caller: Caller,
        down: Any,
        meet: Meet | None,
    ) -> Reply:
        trouble, client = call.trouble, caller.client
        more: dict[str, Any] = {} if meet is None else {"meet": meet}
        site = self.site(
            problem,
            self.clients.view(client),
            client=client,
            round=call.round,
            seed=call.seed,
            augment=self.augment,
            part=1.0 if trouble is None else trouble.part.get(client, 1.0),
            **more,
        )
        private, mine, is_away = caller.private, caller.mine, problem.device != "cpu"
        if is_away:  # server, messages and states are the host's; only training is elsewhere
            down, private, mine = (placed(v, problem.device) for v in (down, private, mine))
        try:
            up, new = method(site, down, mine, *(() if private is None else (private,)))
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            return Reply(None, caller.mine, (), site.work, is_finite=False)
        if is_away:
            up, new = placed(up, "cpu"), placed(new, "cpu")
        if trouble is not None and trouble.how is not None and client in trouble.corrupted:
            up = corrupted(up, trouble.how, call.seed, call.round, client)
        moved = tuple(b.cpu() for b in problem.model.buffers()) if site.has_trained else ()
        finite = all_finite(pack(up)) and (new is None or all_finite(pack(new)))
        finite = finite and all(map(is_finite, moved))
        return Reply(up, new, moved, site.work, finite)


@dataclass
class Fold:
    """Replies of one exchange, folded in client-id order."""

    exchange: Exchange
    replied: list[int] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    bytes: dict[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reducer = self.exchange.reducer()
        self._buffers: list[Tensor] = []
        self._buffer_weight = 0.0

    def add(
        self, client: int, n: int, reply: Reply, size: Mapping[str, Size] | None = None
    ) -> bool:
        """Take in one reply, whose size may be known; True if its new client state counts."""
        self.work.add(reply.work)
        if reply.up is not None:
            for name, own in (nbytes(pack(reply.up)) if size is None else size).items():
                self.bytes[name] = self.bytes.get(name, Size()) + own
        if not reply.is_finite:
            self.nonfinite.append(client)
            return False
        aggregation = self.exchange.aggregation
        if reply.up is not None:
            weight = float(n) if self.exchange.weights == "samples" else 1.0
            self._reducer.fold(reply.up, weight)
            self._fold_buffers(reply.buffers, weight)
            self.replied.append(client)
            if self.exchange.watch is not None:
                self.exchange.watch(client, weight, reply.up)
        return aggregation is None or not aggregation.is_ghost

    def _fold_buffers(self, buffers: Sequence[Tensor], weight: float) -> None:
        # running statistics: weighted mean; counters: the largest
        if not buffers:
            return
        size = sum(b.nbytes for b in buffers)
        self.bytes["buffers"] = self.bytes.get("buffers", Size()) + Size(tensors=size)
        self._buffer_weight += weight
        if not self._buffers:
            self._buffers = [
                b.double() * weight if b.is_floating_point() else b.clone() for b in buffers
            ]
            return
        for total, b in zip(self._buffers, buffers, strict=True):
            if b.is_floating_point():
                total.add_(b, alpha=weight)
            else:
                torch.maximum(total, b, out=total)

    def outcome(self) -> Outcome:
        before = buffers = self.exchange.buffers
        if self._buffers:
            buffers = tuple(
                (t / self._buffer_weight).to(b.dtype) if b.is_floating_point() else t
                for t, b in zip(self._buffers, before, strict=True)
            )
        return Outcome(
            up=self._reducer.result() if self.replied else None,
            replied=tuple(self.replied),
            nonfinite=tuple(self.nonfinite),
            weight=self._reducer.weight,
            buffers=buffers,
            work=self.work,
            up_bytes=self.bytes,
        )


Chunk = Mapping[str, Any]
ChunkMetric = Callable[[Any, Any, Any, "int | None", "Tensor | None"], Mapping[str, Any]]


@dataclass(frozen=True)
class Evaluator:
    """The server's test data and what is measured on it, chunk by chunk."""

    problem: Problem
    x: Any
    y: Any
    measure: ChunkMetric
    keeps_outputs: bool = False

    def __len__(self) -> int:
        """Number of chunks."""
        return -(-count(self.x) // EVALUATION_CHUNK)

    @torch.no_grad()
    def chunks(self, shown: Shown, which: range | None = None) -> list[dict[str, Any]]:
        """What each chunk adds; all of them if it is not said which."""
        problem, model = self.problem, self.problem.model
        if shown.allowed is not None:
            shown = replace(shown, allowed=shown.allowed.to(problem.device))
        model.load_buffers(shown.buffers or [problem.rest[name] for name in problem.moving])
        model.freeze(shown.frozen)
        model.temperature = shown.temperature
        model.load(shown.w)
        return [self._chunk(i, shown) for i in which or range(len(self))]

    def _chunk(self, i: int, shown: Shown) -> dict[str, Any]:
        some = slice(i * EVALUATION_CHUNK, (i + 1) * EVALUATION_CHUNK)
        problem, target = self.problem, take(self.y, some)
        output = problem.model.output(take(self.x, some))
        sums = dict(self.measure(output, target, problem.loss, problem.classes, shown.allowed))
        if self.keeps_outputs:
            sums["output"] = output
        return sums


class Pending(Protocol):
    """An evaluation under way."""

    def chunks(self) -> list[Chunk]:
        """Wait for it; the chunks in order."""
        ...


@dataclass(frozen=True)
class Done:
    """An evaluation that was finished at once."""

    parts: Sequence[Chunk]

    def chunks(self) -> list[Chunk]:
        return list(self.parts)


class Backend(Protocol):
    """Runs exchanges and evaluations; folds by the same rule wherever the visits run."""

    workers: int

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome: ...
    def evaluate(self, shown: Shown) -> Pending: ...
    def close(self) -> None: ...
