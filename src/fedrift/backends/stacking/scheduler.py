"""Visits side by side: each stops where it trains, and those that can be are trained in one stack.

A client method is ordinary code. It runs in a coroutine of its own (a greenlet) up to
`site.train`; when all have come that far, stacks are trained and everyone goes on with its own
`Run`. Whether a visit is stacked depends on itself alone, and what comes out of it on nobody else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from greenlet import getcurrent, greenlet

from fedrift.backends.stacking.chain import Chain, chain_of
from fedrift.backends.stacking.loop import RowTrace, train
from fedrift.core.problem import Problem
from fedrift.core.site import Kind, Request, Trained, TrainTogether, kind_of, room_of
from fedrift.data.split import backing_samples
from fedrift.errors import InputError, is_overflow

T = TypeVar("T")
Asked: TypeAlias = tuple[int, Request]
"""The number of its kind, and what is asked."""

WORTH = 1 << 24  # parameters × samples of a batch up to which stacks were seen to pay
CACHED = 1 << 18  # parameters of a stack: what fits into a core's cache is fastest
DEVICE = 1 << 28  # the same on a GPU, which is the slower the less it has to do at once
MOST = 64  # clients of a group
KINDS = 4096  # requests that are remembered
GROUPS = 4  # that a cohort has at least, so that several workers have something to do


class StackScheduler:
    """Trains stacks for the visits of one model."""

    def __init__(self, problem: Problem, chain: Chain) -> None:
        self._problem, self._chain = problem, chain
        self._known: dict[int, tuple[Any, bool]] = {}
        self._numbers: dict[Kind, int] = {}
        self._usual: dict[tuple[Any, ...], tuple[Any, int | None]] = {}
        self._count = itertools.count()
        self._trace = RowTrace(chain)
        self._size = problem.layout.size
        is_here = problem.device == "cpu"
        self._width = max(1, (CACHED if is_here else DEVICE) // self._size)
        self._worth = WORTH if problem.stack == "auto" and is_here else math.inf
        self._groups, self._most = (GROUPS, MOST) if is_here else (1, self._width)

    def groups(self, batch_size: int | None, sizes: np.ndarray) -> int:
        """Into how many tasks visits are put: a rule of model and cohort, never of who computes."""
        number, room = len(sizes), room_of(int(sizes.max()), batch_size)
        most = min(self._most, self._width)
        if self._size * room > self._worth or most == 1:
            return number
        tasks = -(-number // most)
        return min(number, -(-tasks // self._groups) * self._groups)

    def alone(self, request: Request) -> Trained | None:
        """Train one request, as a stack of one; None if it cannot be."""
        kind = self._kind(request)
        if kind is None:
            return None
        trained = self._trained([(kind, request)])[0]
        if isinstance(trained, Exception):
            raise trained
        return trained

    def run(self, visits: Sequence[Callable[[TrainTogether], T]]) -> list[T]:
        """The results of visits, in their order; they are begun and ended in it too."""
        if len(visits) == 1:
            return [visits[0](self.alone)]
        running = [greenlet(visit) for visit in visits]
        results: dict[int, T] = {}
        asked: dict[int, Asked] = {}
        grad = torch.is_grad_enabled()

        def go(i: int, given: Any) -> None:
            failed = isinstance(given, Exception)
            said = running[i].throw(given) if failed else running[i].switch(given)
            if torch.is_grad_enabled() != grad:  # it stopped inside a context of its own
                torch.set_grad_enabled(grad)
            if running[i].dead:
                results[i] = said
            else:
                asked[i] = said

        try:
            for i in range(len(visits)):
                go(i, self._meet)
            while asked:
                came = list(asked)
                trained = self._trained([asked.pop(i) for i in came])
                for i, given in zip(came, trained, strict=True):
                    go(i, given)
        finally:
            for one in running:
                if one:  # begun and not ended: another visit failed
                    one.throw()
        return [results[i] for i in range(len(visits))]

    def _meet(self, request: Request) -> Trained | None:
        """Wait for the others; a request that cannot be stacked does not."""
        kind = self._kind(request)
        if kind is None:
            return None
        grad, hub = torch.is_grad_enabled(), getcurrent().parent
        assert hub is not None
        given: Trained = hub.switch((kind, request))
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        return given

    def _kind(self, request: Request) -> int | None:
        """A number that requests of one kind share; None if this one must be trained alone."""
        if self._problem.model.temperature != 1.0 or not self._takes(request.samples):
            return None
        local, rates = request.local, request.rates
        if request.correct or request.outside or request.opt is not None or request.mean_grad:
            return self._number(request)
        # With nothing of the client's own, what is known of a client of this size is enough.
        held = local, request.gradient
        usual = id(local), id(request.gradient), len(request.samples), len(rates), *rates[:1]
        known = self._usual.get(usual)
        if known is None or known[0][0] is not held[0] or known[0][1] is not held[1]:
            if len(self._usual) > KINDS:
                self._usual.clear()
            known = self._usual[usual] = (held, self._number(request))
        return known[1]

    def _number(self, request: Request) -> int | None:
        room = room_of(len(request.samples), request.local.batch_size)
        kind = kind_of(request) if self._size * room <= self._worth else None
        if kind is None:
            return None
        if len(self._numbers) > KINDS:  # rates that change with every round
            self._numbers.clear()
        return self._numbers.setdefault(kind, next(self._count))

    def _takes(self, samples: Any) -> bool:
        """The samples have the form the chain is written for; looked at once for all clients."""
        held = getattr(samples, "x", samples)
        known = self._known.get(id(held))
        if known is None or known[0] is not held:
            x, y = backing_samples(samples)
            takes = self._chain.takes(x, y) and (y.is_floating_point() or int(y.min()) >= 0)
            known = (held, takes)
            if held is not samples:  # made anew for every visit otherwise
                self._known[id(held)] = known
        return known[1]

    def _trained(self, asked: Sequence[Asked]) -> list[Trained | Exception]:
        """What came of each; a number beyond the precision is for the visit to deal with."""
        kinds: dict[int, list[int]] = {}
        for i, (kind, _) in enumerate(asked):
            kinds.setdefault(kind, []).append(i)
        done: dict[int, Trained | Exception] = {}
        for places in kinds.values():
            places.sort(key=lambda i: -len(asked[i][1].rates))  # alike in length, little to wait
            cuts = np.linspace(0, len(places), -(-len(places) // self._width) + 1).astype(int)
            for begin, end in itertools.pairwise(cuts.tolist()):
                some = places[begin:end]
                try:
                    requests = [asked[i][1] for i in some]
                    if self._trace.is_read:
                        self._trace = RowTrace(self._chain)
                    made = train(self._chain, self._problem.layout, requests, self._trace)
                    done.update(zip(some, made, strict=True))
                except (RuntimeError, OverflowError) as error:
                    if not is_overflow(error):
                        raise
                    done |= dict.fromkeys(some, error)
        return [done[i] for i in range(len(asked))]


def scheduler_for(problem: Problem) -> StackScheduler | None:
    """What trains the stacks of a problem; None where stacks are off or the model is no chain."""
    if problem.stack == "off":
        return None
    is_open = problem.part == "all" and not problem.moving and not problem.writes_input
    model = problem.model
    chain = chain_of(model.module, problem.layout, problem.loss) if is_open else None
    if chain is None and problem.stack == "on":
        raise InputError(
            "stack=on: only models of linear layers and activations with one of our losses can "
            "be stacked; use stack=auto"
        )
    return None if chain is None else StackScheduler(problem, chain)
