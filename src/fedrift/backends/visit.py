"""Visits: a client method run at its site, one client at a time or several together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrift.backends.profiling import TimedSite
from fedrift.backends.stacking.scheduler import StackScheduler, scheduler_for
from fedrift.core import alignment
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.alignment import settled
from fedrift.core.codecs import Payload, Unsent, packed_message
from fedrift.core.composition import (
    client_start,
    fed_back,
    host_path,
    local_of,
    resolve,
    state_path,
)
from fedrift.core.evaluation import (
    ClientSums,
    Evaluator,
    client_sums,
    evaluate_chunk,
    received,
    sent_for_evaluation,
)
from fedrift.core.exchange import Exchange
from fedrift.core.faults import Corrupt, RoundFaults
from fedrift.core.flat import count, is_finite, norm
from fedrift.core.isolation import seed_all
from fedrift.core.messages import all_finite, leaves, pack, placed, unpack
from fedrift.core.phases import is_evaluation, owner_of
from fedrift.core.problem import Problem
from fedrift.core.site import Augment, ClientData, Site, TrainTogether, Work
from fedrift.core.training_report import Report, no_report
from fedrift.errors import InputError, is_overflow
from fedrift.rng import torch_seed


class Clients(Protocol):
    """The data of all clients, as a backend holds it."""

    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def test(self) -> Any: ...
    def view(self, client: int) -> ClientData: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Call:
    """Which method, in which round, with which seed."""

    phase: str
    round: int
    seed: int
    temperature: float = 1.0
    trouble: RoundFaults | None = None
    streams: str = ""

    @staticmethod
    def of(exchange: Exchange) -> Call:
        return Call(
            exchange.phase,
            exchange.round,
            exchange.seed,
            exchange.temperature,
            exchange.trouble,
            exchange.streams,
        )


class VisitInput(NamedTuple):
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
    payload: Payload = field(default_factory=dict[str, Tensor])
    """The bytes that travel in place of the fields of `up` that are packed."""
    training: Report = no_report
    """Says what training reports of itself."""


class Lent(NamedTuple):
    """What a visit is given, with torch's counts of writes: others may be given the same memory."""

    tensors: list[tuple[str, Tensor]]
    counts: list[int]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Lent:
        found = [
            (path, leaf)
            for name, value in given.items()
            if value is not None
            for path, leaf in leaves(value, name)
            if isinstance(leaf, Tensor)
        ]
        return cls(found, [tensor._version for _, tensor in found])

    def check(self, method: str) -> None:
        """Refuses a method that has written into any of it."""
        for (name, tensor), before in zip(self.tensors, self.counts, strict=True):
            if tensor._version != before:
                raise InputError(
                    f"{method} writes into '{name}', which is not its own: other clients are given "
                    f"the same numbers; work on a copy, such as {name}.clone()"
                )


ClientVisit = Callable[[Site, Any, Any, tuple[Any, ...]], tuple[Any, Any]]
"""Site, message, state and what is for the client alone → reply and new state."""


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
        self._evaluated: dict[str, Problem] = {}
        self._initial: dict[str, Any] = {}
        self._fed_back: dict[str, tuple[tuple[str, str], ...]] = {}
        self._stacks: dict[str, StackScheduler | None] = {}

    def owner(self, path: str) -> tuple[Algorithm[Any, Any], Problem]:
        """The algorithm at a path and its view of the task; bound once per process."""
        if path not in self._resolved:
            self._resolved[path] = resolve(self.root, self.problem, path)
        return self._resolved[path]

    def sent(self, phase: str) -> tuple[Algorithm[Any, Any], Problem]:
        """Whose method a phase is, and the task of what is sent for it."""
        path = owner_of(phase)
        node, problem = self.owner(path)
        if not is_evaluation(phase):
            return node, problem
        if path not in self._evaluated:
            self._evaluated[path] = sent_for_evaluation(self.root, self.problem, path)
        return node, self._evaluated[path]

    def state_path(self, phase: str) -> str:
        """Where the state is kept that the visits of a phase read and write."""
        return state_path(self.root, owner_of(phase))

    def initial(self, path: str) -> Any:
        """The state there that every client begins with."""
        if path not in self._initial:
            self._initial[path] = client_start(self.root, self.problem, path)
        return self._initial[path]

    def _method(self, phase: str, path: str) -> ClientVisit:
        """What runs at the client: the method, and around it what a wrapper does there."""
        method: Callable[..., tuple[Any, Any]] = getattr(
            self.owner(path)[0], phase.rpartition(".")[2]
        )
        around = host_path(self.root, path)
        if around is None:
            return lambda site, down, mine, private: method(site, down, mine, *private)
        host = self.owner(around)[0]

        def hosted(site: Site, down: Any, mine: Any, private: tuple[Any, ...]) -> tuple[Any, Any]:
            return host.around(lambda own: method(site, down, own, *private), site, down, mine)

        return hosted

    def _together(self, path: str) -> StackScheduler | None:
        if path not in self._stacks:
            plain = self.site in (Site, TimedSite) and self.augment is None
            self._stacks[path] = scheduler_for(self.owner(path)[1]) if plain else None
        return self._stacks[path]

    def groups(self, phase: str, clients: Sequence[int]) -> list[Sequence[int]]:
        """The clients whose visits are one task, in order: alone where nothing is stacked."""
        stacks, local = self._together(owner_of(phase)), local_of(self.root)
        cohort = sorted(clients)
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
        return self.visits(call, [VisitInput(client, private, mine)], down, buffers, frozen)[0]

    def visits(
        self,
        call: Call,
        callers: Sequence[VisitInput],
        down: Any,
        buffers: Sequence[Tensor],
        frozen: Mapping[str, Tensor],
    ) -> list[Reply]:
        """Run it at several; what becomes of one does not depend on the others."""
        path = owner_of(call.phase)
        problem = self.owner(path)[1]
        stacks, model = self._together(path), problem.model
        down = settled(down)
        visit: Callable[[VisitInput, TrainTogether | None], Reply]
        if is_evaluation(call.phase):
            w, buffers = received(self.sent(call.phase)[1], problem, down, buffers)
            shown = EvaluatedModel(w, buffers, down.allowed, call.temperature, frozen)
            visit = partial(self._evaluate, call, shown)
        else:
            method = self._method(call.phase, path)
            visit = partial(self._visit, call, method, problem, down)

        if stacks is not None:  # its model has nothing that a visit could leave behind
            model.begin(buffers, frozen, call.temperature)
            seed_all(call.seed, f"{call.streams}dropout", call.round, callers[0].client)
            return stacks.run([partial(visit, caller) for caller in callers])
        replies: list[Reply] = []
        for caller in callers:
            model.begin(buffers, frozen, call.temperature)
            seed_all(call.seed, f"{call.streams}visit", call.round, caller.client)
            replies.append(visit(caller, None))
            model.check_memory(frozen)
        return replies

    def personal(self, call: Call, client: int, shown: EvaluatedModel, mine: Any) -> EvaluatedModel:
        """The client's own model after a round, or the server's where it has none.

        `call.phase` is the path of the algorithm that makes personal models, `mine` the state that
        the client keeps for it.
        """
        stacks = self._together(call.phase)  # the same bits as beside others
        meet = None if stacks is None else stacks.alone
        return self._personal(call, call.phase, client, shown, mine, meet)[0]

    def _personal(
        self,
        call: Call,
        path: str,
        client: int,
        shown: EvaluatedModel,
        mine: Any,
        meet: TrainTogether | None,
    ) -> tuple[EvaluatedModel, Work]:
        node, problem = self.owner(path)
        if type(node).personal is Algorithm.personal:
            return shown, Work()
        problem.model.begin(shown.buffers, shown.frozen, shown.temperature)
        seed_all(call.seed, "personal", call.round, client)
        site = self._site(call, problem, client, meet, streams="personal ")
        own, shown = settled(mine.inner if isinstance(mine, Unsent) else mine), settled(shown)
        if problem.device != "cpu":
            own = placed(own, problem.device)
        lent = Lent.of({"shown.w": shown.w, "mine": own})
        made = node.personal(site, shown, own) or shown
        lent.check(f"{type(node).__name__}.personal")
        return made, site.work

    def _site(
        self, call: Call, problem: Problem, client: int, meet: TrainTogether | None, **more: Any
    ) -> Any:
        if meet is not None:
            more["meet"] = meet
        return self.site(
            problem,
            self.clients.view(client),
            client=client,
            round=call.round,
            seed=call.seed,
            augment=self.augment,
            **more,
        )

    def _evaluate(
        self, call: Call, shown: EvaluatedModel, caller: VisitInput, meet: TrainTogether | None
    ) -> Reply:
        """A client's figures on test data of its own; it is silent if it has none."""
        path, client = owner_of(call.phase), caller.client
        problem, tests = self.owner(path)[1], self.clients.test
        x, y = tests.view(client).batch(None) if tests is not None else (None, ())
        if tests is None or not count(y):
            return Reply(None, None, (), Work(), is_finite=True)
        try:
            model, work = self._personal(call, path, client, shown, caller.mine, meet)
            sums = client_sums(Evaluator(problem, x, y, evaluate_chunk).chunks(model))
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            n, has_classes = count(y), isinstance(y, Tensor) and not y.is_floating_point()
            labels = n if has_classes else 0
            sums = ClientSums(n=n, weight=n, loss_sum=0.0, labels=labels, correct=0, lost=1)
            work = Work()
        work.forwards += sums.n
        return Reply(sums, None, (), work, is_finite=True)

    def _visit(
        self,
        call: Call,
        method: ClientVisit,
        problem: Problem,
        down: Any,
        caller: VisitInput,
        meet: TrainTogether | None,
    ) -> Reply:
        trouble, client = call.trouble, caller.client
        part = 1.0 if trouble is None else trouble.part.get(client, 1.0)
        site = self._site(call, problem, client, meet, part=part, streams=call.streams)
        kept = caller.mine.inner if isinstance(caller.mine, Unsent) else caller.mine
        private, mine, is_away = *settled((caller.private, kept)), problem.device != "cpu"
        if is_away:  # server, messages and states are the host's; only training is elsewhere
            down, private, mine = (placed(v, problem.device) for v in (down, private, mine))
        if alignment.CHECKS:
            alignment.check_settled(call.phase, down, private, mine)
        lent = Lent.of({"down": down, "private": private, "mine": mine})
        try:
            up, new = method(site, down, mine, () if private is None else (private,))
        except (RuntimeError, OverflowError) as error:
            if not is_overflow(error):
                raise
            return Reply(None, caller.mine, (), site.work, is_finite=False)
        lent.check(call.phase)
        if is_away:
            up, new = placed(up, "cpu"), placed(new, "cpu")
        if trouble is not None and trouble.how is not None and client in trouble.corrupted:
            up = corrupted(up, trouble.how, call.seed, call.round, client)
        up, new, payload = self._packed(call, up, new, caller)
        moved = tuple(b.cpu() for b in problem.model.buffers()) if site.has_trained else ()
        finite = all_finite(pack(up)) and (new is None or all_finite(pack(new)))
        finite = finite and all(map(is_finite, moved))
        return Reply(up, new, moved, site.work, finite, payload, site.training)

    def _packed(
        self, call: Call, up: Any, new: Any, caller: VisitInput
    ) -> tuple[Any, Any, Payload]:
        """The reply as it arrives, the new state with what was not sent, the bytes that travel."""
        how, old = self.problem.compression, caller.mine
        if how is None or up is None:
            return up, replace(old, inner=new) if isinstance(old, Unsent) else new, {}
        path = self.state_path(call.phase)
        if path not in self._fed_back:
            self._fed_back[path] = fed_back(self.root, self.problem, path)
        fed = self._fed_back[path]
        error = dict(zip(fed, old.error, strict=True)) if isinstance(old, Unsent) else {}
        own = {name: kept for (phase, name), kept in error.items() if phase == call.phase}
        stream = call.seed, call.streams + call.phase, call.round, caller.client
        up, payload, left = packed_message(how, "up", up, stream, own)
        if error:
            error |= {(call.phase, name): rest for name, rest in left.items()}
            new = Unsent(inner=new, error=tuple(error.values()))
        return up, new, payload


def corrupted(up: Any, how: Corrupt, seed: int, round: int, client: int) -> Any:
    """What a corrupted client sends: the reply with every vector changed; numbers stay."""
    random = torch.Generator().manual_seed(torch_seed(seed, "fault noise", round, client))
    changed = {
        path: _changed(leaf, how, random)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
        else leaf
        for path, leaf in pack(up).items()
    }
    return unpack(type(up), changed, up)


def _changed(leaf: Tensor, how: Corrupt, random: torch.Generator) -> Tensor:
    if how.kind == "nan":
        return torch.full_like(leaf, float("nan"))
    if how.kind == "noise":
        noise = torch.randn(leaf.shape, generator=random, dtype=leaf.dtype).to(leaf.device)
        length = float(norm(leaf.reshape(-1)))
        return noise * (how.factor * length / max(1.0, leaf.numel() ** 0.5))
    return leaf * (-how.factor if how.kind == "sign" else how.factor)
