"""Local training of many clients at once: the loop of `local`, on rows instead of one vector.

Rows do not mix, and each begins at a boundary, wherever in the stack it is: what becomes of a
client does not depend on who is trained beside it. Rows stand in order of their number of steps, so
those still at work are always the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrift.backends.stacking.chain import Chain, Seen
from fedrift.core import alignment
from fedrift.core.alignment import empty_rows, has_settled_rows, settled_rows
from fedrift.core.flat import Batch, Layout, Vec, copy_each, sent
from fedrift.core.flat_model import Forward, Objective
from fedrift.core.local import Buffers, PlainStep, Run, clip_, span_of, table
from fedrift.core.optim import OptState
from fedrift.core.site import Request, Trained, first_rows, joined, room_of, rows
from fedrift.core.training_report import HELD, Training
from fedrift.data.split import pooled
from fedrift.errors import InputError

# The minibatches of several clients side by side: which samples, and what each of them counts.

AHEAD = 32  # steps whose targets are made ready at once


class Minibatches:
    """Chosen for all steps before the first one; clients with more steps come first."""

    def __init__(self, chain: Chain, requests: Sequence[Request], like: Tensor) -> None:
        first, most = requests[0], len(requests[0].rates)
        self._chain, self._room = chain, room_of(len(first.samples), first.local.batch_size)
        self._x, self._y, places = pooled([r.samples for r in requests])
        index = np.zeros((most, len(requests), self._room), dtype=np.int64)
        self.sizes = np.ones((most, len(requests)), dtype=np.int64)
        for i, r in enumerate(requests):
            k = len(r.rates)
            order, sizes = table(len(r.samples), r.local.batch_size, k, r.order, self._room)
            index[:k, i] = places[i][order]
            self.sizes[:k, i] = sizes
        self.ready: Tensor
        """Targets of the steps that are made ready."""
        counts = np.arange(self._room) < self.sizes[..., None]
        share = torch.from_numpy(counts / self.sizes[..., None]).unsqueeze(-1)
        self._share = sent(share.to(like.dtype), like.device)
        self._index = sent(torch.from_numpy(index), like.device)

    def some(self, which: range, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Samples, what is wanted of them and what they count, step by step, of the first rows."""
        for begin in range(which.start, which.stop, AHEAD):
            steps = slice(begin, min(begin + AHEAD, which.stop))
            index, share = self._index[steps, :rows], self._share[steps, :rows]
            y = self._y(index.reshape(-1))
            y = y.reshape(*index.shape, *y.shape[1:])
            self.ready = y
            wanted = self._chain.wanted(y, share)
            each = zip(index.flatten(1).unbind(), wanted.unbind(), share.unbind(), strict=True)
            for chosen, aim, counts in each:
                yield settled_rows(self._x(chosen).view(rows, self._room, -1)), aim, counts


ALONE = "a piece that looks at samples is for one client: do not say that it is rowwise"


class RowStep(Buffers):
    """The `Step` that pieces see, with one row for each client still at work."""

    def __init__(self, chain: Chain, layout: Layout, w: Vec, start: Vec) -> None:
        super().__init__(layout, w, start)
        self._chain = chain
        self.passes = 0
        self.seen: list[Seen] = []
        """In the first pass of every step, until it is looked at."""
        self.seconds = 0.0
        self._views = layout.views(w)
        self._bound = chain.bound(self._views)

    def begin(self, k: int, lr: float, x: Tensor, wanted: Tensor, share: Tensor) -> None:
        if alignment.CHECKS:
            assert has_settled_rows(x) and has_settled_rows(self.w)
        self.k, self.lr, self._batch = k, lr, (x, wanted, share)
        self._used = self.passes = 0

    def new(self) -> Vec:
        return empty_rows(self.w, self.w.shape)

    def gradients(self, at: Vec) -> list[Tensor]:
        began, seen = perf_counter(), [] if self.passes else self.seen
        self.passes += 1
        bound = self._bound
        if at is not self.w:
            bound = self._chain.bound(self.layout.views(at.expand_as(self.w)))
        made = self._chain.gradients(bound, *self._batch, seen)
        self.seconds += perf_counter() - began
        return made

    @property
    def batch(self) -> Batch:
        raise InputError(ALONE)

    def forward(self, at: Vec, statistics: Sequence[Tensor] | None = None) -> Forward:
        raise InputError(ALONE)

    def grad(self, at: Vec, objective: Objective | None = None) -> Vec:
        if objective is not None:
            raise InputError(ALONE)
        into = self.buffer()
        copy_each(self.layout.views(into), self.gradients(at))
        return into

    def move(self, gradients: Sequence[Tensor], by: float) -> None:
        for view, g in zip(self._views, gradients, strict=True):
            view.add_(g, alpha=by)


class Cells(NamedTuple):
    """Where the minibatches of a stack stand among all that a trace has seen: `steps` times
    `rows` of them, one step after another."""

    begin: int
    rows: int
    steps: int

    def of(self, figures: Sequence[float]) -> np.ndarray:
        """Theirs among the figures of all, a row for each step."""
        end = self.begin + self.rows * self.steps
        return np.reshape(figures[self.begin : end], (self.steps, self.rows))


class RowTrace:
    """Sees every minibatch of several stacks, and looks at many of them at once: when somebody asks
    or much has come together. One that has been read takes up no more stacks."""

    def __init__(self, chain: Chain) -> None:
        self._chain, self.is_read = chain, False
        self._count = self._held = 0
        self._seen: list[Seen] = []
        self._targets: list[Tensor] = []
        self._sizes: list[np.ndarray] = []
        self._losses: list[float] = []
        self._hits: list[int] | None = []

    def add(self, seen: list[Seen], y: Tensor, sizes: np.ndarray) -> Cells:
        """What was seen in some steps, which is taken from the list; their targets, and how many
        samples of every batch count."""
        z = seen[0][0]
        self._held += len(seen) * z.numel()
        if self._held > HELD or (self._seen and self._seen[0][0].shape[1:] != z.shape[1:]):
            self._look()
        cells = Cells(self._count, z.shape[0], len(seen))
        self._count += cells.rows * cells.steps
        self._seen += seen
        self._targets.append(y.flatten(0, 1))
        self._sizes.append(sizes.reshape(-1))
        seen.clear()
        return cells

    def _look(self) -> None:
        if not self._seen:
            return
        self.is_read = True
        losses, right = self._chain.losses(self._seen, torch.cat(self._targets))
        sizes = np.concatenate(self._sizes)
        found = [losses.cpu().numpy()] + ([] if right is None else [right.cpu().numpy()])
        for short in np.flatnonzero(sizes < found[0].shape[1]).tolist():
            for each in found:
                each[short, sizes[short] :] = 0  # what fills a short batch up
        with np.errstate(over="ignore"):  # of a run that diverges, which is told
            self._losses += (found[0].sum(-1) / sizes).tolist()
        if right is None or self._hits is None:
            self._hits = None
        else:
            self._hits += found[1].sum(-1).tolist()
        for held in (self._seen, self._targets, self._sizes):
            held.clear()
        self._held = 0

    def trainings(self, cells: Sequence[Cells], sizes: np.ndarray) -> list[Training | None]:
        """What the training of every row of a stack reports, with the sizes of its minibatches: 0
        after its last."""
        self._look()
        losses, hits, k = np.zeros(sizes.shape), np.zeros(sizes.shape, dtype=np.int64), 0
        for one in cells:
            steps = slice(k, k + one.steps)
            losses[steps, : one.rows] = one.of(self._losses)
            if self._hits is not None:
                hits[steps, : one.rows] = one.of(self._hits)
            k += one.steps
        return Training.of_each(losses, sizes, None if self._hits is None else hits)


class Reports:
    """What the rows of a stack report, looked at for all when the first is asked."""

    def __init__(self, trace: RowTrace, cells: Sequence[Cells], sizes: np.ndarray) -> None:
        self._trace, self._cells, self._sizes = trace, cells, sizes

    @cached_property
    def _each(self) -> list[Training | None]:
        return self._trace.trainings(self._cells, self._sizes)

    def of(self, row: int) -> Training | None:
        return self._each[row]


@torch.no_grad()
def train(
    chain: Chain, layout: Layout, requests: Sequence[Request], trace: RowTrace
) -> list[Trained]:
    """Train requests of one kind, each from its own w on its own samples."""
    places = sorted(range(len(requests)), key=lambda i: -len(requests[i].rates))
    stack = _Stack(chain, layout, [requests[i] for i in places], trace)
    stack.train()
    trained = dict(zip(places, stack.results(), strict=True))
    return [trained[i] for i in range(len(requests))]


class _Stack:
    """Requests of one kind, longest first, and their rows."""

    def __init__(
        self, chain: Chain, layout: Layout, requests: Sequence[Request], trace: RowTrace
    ) -> None:
        first = requests[0]
        self.chain, self.layout, self.requests, self.first = chain, layout, requests, first
        self.steps = np.array([len(r.rates) for r in requests])
        self.start = rows([r.w for r in requests])
        self.w = self._rows(self.start)
        optimizer = first.local.optimizer
        if first.opt is None:
            self.memory = optimizer.init(self.w)
        else:
            slots = zip(*(r.opt.slots for r in requests if r.opt is not None), strict=True)
            kept = tuple(self._rows(rows(s)) for s in slots)
            self.memory = OptState(slots=kept, count=first.opt.count.clone())
        self.done = int(self.memory.count)
        self.total = torch.zeros_like(self.w, dtype=torch.float64) if first.mean_grad else None
        self.pieces = [joined(same) for same in zip(*(r.pieces for r in requests), strict=True)]
        self.examples = np.zeros(len(requests), dtype=np.int64)
        self.spent = {"gradient": 0.0, "batch": 0.0}
        self.batches = Minibatches(chain, requests, self.w)
        self.trace = trace
        self.cells: list[Cells] = []

    def _rows(self, of: Vec) -> Vec:
        """Rows of one's own, of one vector for all or of one for each."""
        return empty_rows(of, (len(self.requests), of.shape[-1])).copy_(of)

    def train(self) -> None:
        began, most = perf_counter(), int(self.steps[0])
        at_work = (self.steps[None, :] > np.arange(most)[:, None]).sum(1).tolist()
        begin = 0
        while begin < most:  # as long as the same rows are at work
            rows = at_work[begin]
            end = begin
            while end < most and at_work[end] == rows:
                end += 1
            self._some_steps(range(begin, end), rows)
            begin = end
        self.spent["optimizer"] = perf_counter() - began - sum(self.spent.values())

    def _some_steps(self, which: range, rows: int) -> None:
        first, local, w = self.first, self.first.local, self.w[:rows]
        start = self.start if self.start.dim() == 1 else self.start[:rows]
        step = RowStep(self.chain, self.layout, w, start.expand_as(w))
        optimizer = local.optimizer
        rule, *corrections = (first_rows(piece, rows) for piece in self.pieces)
        inside = len(corrections) - len(first.outside)
        corrections, outside = corrections[:inside], corrections[inside:]
        memory = OptState(slots=tuple(s[:rows] for s in self.memory.slots), count=self.memory.count)
        asks_more = outside or first.mean_grad
        plain = None if asks_more else PlainStep.of(local, rule, corrections)
        passes: list[int] = []
        batches = self.batches.some(which, rows)
        for k in which:
            began, lr = perf_counter(), first.rates[k]
            step.begin(k, lr, *next(batches))
            self.spent["batch"] += perf_counter() - began
            if plain is not None:
                plain(step)
            else:
                d = rule(step)
                if self.total is not None:
                    self.total[:rows].add_(d)
                for correction in corrections:
                    correction(d, step)
                if local.clip is not None:
                    clip_(d, local.clip)
                direction = optimizer.update_(d, memory, w, first.freeze)
                if outside:
                    direction = step.buffer().copy_(direction)
                    for correction in outside:
                        correction(direction, step)
                w.add_(direction, alpha=-lr)
            passes.append(step.passes)
            if len(step.seen) == len(self.batches.ready):
                sizes = self.batches.sizes[k + 1 - len(step.seen) : k + 1, :rows]
                self.cells.append(self.trace.add(step.seen, self.batches.ready, sizes))
        sizes = self.batches.sizes[which.start : which.stop, :rows]
        self.examples[:rows] += np.array(passes) @ sizes
        self.spent["gradient"] += step.seconds

    def results(self) -> list[Trained]:
        """One `Trained` for each request, in the order of the rows."""
        number, rates = len(self.requests), self.first.rates
        share = {kind: seconds / number for kind, seconds in self.spent.items()}
        means: Sequence[Vec | None] = [None] * number
        if self.total is not None:
            steps = torch.from_numpy(self.steps).to(self.w.device).unsqueeze(-1)
            means = settled_rows((self.total / steps).to(self.w.dtype)).unbind()
        slots = zip(*(settled_rows(s).unbind() for s in self.memory.slots), strict=True)
        kept = list(slots) if self.memory.slots else [()] * number
        after = {
            k: torch.tensor(self.done if self.first.freeze else self.done + k, dtype=torch.int64)
            for k in {*self.steps.tolist()}
        }
        spans = {k: span_of(rates[:k]) for k in after}
        plain = {k: OptState(slots=(), count=count) for k, count in after.items()}
        at_work = np.arange(len(self.batches.sizes))[:, None] < self.steps
        reports = Reports(self.trace, self.cells, np.where(at_work, self.batches.sizes, 0))
        found: list[Trained] = []
        rows = zip(
            self.steps.tolist(),
            self.examples.tolist(),
            self.w.unbind(),
            torch.sub(self.w, self.start, out=empty_rows(self.w, self.w.shape)).unbind(),
            kept,
            means,
            strict=True,
        )
        for row, (k, examples, w, delta, own, mean) in enumerate(rows):
            opt = OptState(slots=own, count=after[k]) if own else plain[k]
            run = Run(w, delta, k, rates[0], spans[k], opt, mean)
            found.append(Trained(run, examples, partial(reports.of, row), share))
        return found
