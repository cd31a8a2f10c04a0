"""A run as it is examined, and what an examination finds: one form for every measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedrift.analysis.next_round import Unwatched, Visited, Watch, rehearse
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.flat import Batch, Vec, count, map_tree, take
from fedrift.core.flat_model import FlatModel
from fedrift.core.problem import Problem
from fedrift.core.sampling import LOOKS
from fedrift.engine.plan import Task
from fedrift.errors import InputError
from fedrift.rng import generator
from fedrift.storage.client_state import Store
from fedrift.storage.jsonl import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PATIENCE = 1000  # rounds that are looked ahead for one in which somebody takes part

Draw = Callable[["Figure"], None]
"""Draws on an empty figure with constrained layout."""
DrawTogether = Callable[["Figure", Mapping[str, Record]], None]
"""Draws several runs in one figure, from their names and `numbers`."""


class NotMeasured(Exception):
    """This run has nothing of the kind that was to be measured; the message says why."""


@dataclass(frozen=True)
class Options:
    """What a reader may choose; every finding says which of these it used."""

    data: Literal["train", "test"] = "train"
    """Where losses, gradients and Hessians are taken: the clients' pooled samples or the test's."""
    images: int = 2000
    """Samples of that set at most, drawn once; 0 takes all."""
    clients: int = 5
    """Local models that are looked at: as many of the coming cohort at most."""
    curved: int = 2
    """Local models whose curvature is measured: it takes as long for each as for the global one."""
    local_density: bool = False
    """Their spectral density and trace, too."""
    top: int = 5
    steps: int = 100
    """Of Lanczos, for the spectral density."""
    probes: int = 1
    rho: float = 0.05
    """Radius of sharpness."""
    rho_a: float = 0.5
    """Radius of adaptive sharpness, in units of the weights."""
    eta_a: float = 0.01
    passes: bool = True
    """Passes over the clients' data are allowed: gradient dissimilarity, true gradients."""
    watch: Watch = field(default_factory=Unwatched)


@dataclass(frozen=True)
class Finding:
    """What a measurement found in one run."""

    title: str
    sentences: tuple[str, ...]
    """One to three plain sentences: what is seen, on which data, with which settings."""
    numbers: Record
    """Only what JSON can hold (numpy arrays and scalars are turned into lists and numbers)."""
    figures: Mapping[str, Draw] = field(default_factory=dict[str, Draw])
    """Short name, which becomes part of the file's → drawing."""
    together: Mapping[str, DrawTogether] = field(default_factory=dict[str, DrawTogether])
    """The same for several runs at once, where that says more."""

    @property
    def said(self) -> tuple[str, ...]:
        """The old name of `sentences`."""
        return self.sentences


Measure = Callable[["Case", Options], Finding]
"""The one signature of everything that `fedrift analyse --what` names."""


@dataclass(frozen=True, eq=False)
class Case:
    """One run at one moment: the task, the global model, what server and clients keep.

    Nothing here changes the run: local models come from a rehearsal of the coming round, which is
    computed by the real algorithm from the saved state and then forgotten.
    """

    name: str
    """What figures call the run."""
    task: Task
    round: int
    """Rounds that have been made."""
    shown: EvaluatedModel
    """The global model as it is evaluated, with its buffers."""
    state: Any = None
    """The server's; None if it was not kept."""
    buffers: tuple[Tensor, ...] = ()
    store: Store | None = None
    """What clients keep between rounds."""
    history: Sequence[Record] = ()
    """One record per evaluated round, as in `rounds.jsonl`."""
    cohorts: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """Who replied in each round, also in those that were not evaluated."""
    snapshots: Mapping[int, Vec] = field(default_factory=dict[int, Vec])
    """Global weights by round, as far as they were kept; the present ones are among them."""
    notes: tuple[str, ...] = ()
    _trained: dict[tuple[int, ...], dict[int, Visited]] = field(default_factory=dict, repr=False)

    @property
    def problem(self) -> Problem:
        return self.task.problem

    @property
    def weights(self) -> Vec:
        """The global model that is evaluated."""
        return self.shown.w

    @property
    def moved(self) -> dict[str, Tensor]:
        """Buffers and frozen parameters that the run has decided, by name."""
        own = dict(zip(self.problem.moving, self.shown.buffers, strict=False))
        return own | dict(self.shown.frozen)

    def model(self, buffers: Sequence[Tensor] | None = None) -> FlatModel:
        """The bound model in evaluation mode with the run's buffers (or a client's) in place."""
        model, values = self.problem.model, self.shown.buffers if buffers is None else buffers
        model.load_buffers(values or [self.problem.rest[name] for name in self.problem.moving])
        model.freeze(self.shown.frozen)
        model.temperature = self.shown.temperature
        model.module.eval()
        return model

    def test(self, limit: int = 0) -> Batch:
        """The test set, or `limit` samples of it drawn once and for all."""
        if self.task.test is None:
            raise NotMeasured("the run has no test set")
        return _some(self.task.test, limit, "test sample")

    def pooled(self, limit: int = 0) -> Batch:
        """The samples of all clients, or `limit` of them."""
        split = self.task.split
        if split.make is not None:
            return self._gathered(limit)
        index = np.sort(np.concatenate(split.parts))
        chosen = _chosen(len(index), limit, "train sample")
        where = torch.from_numpy(index if chosen is None else index[chosen])
        return take(split.x, where), take(split.y, where)

    def _gathered(self, limit: int) -> Batch:
        """The samples of clients in random order until there are enough; made as they are read."""
        split, parts, number = self.task.split, list[Batch](), 0
        for client in generator(0, "train sample").permutation(len(split)).tolist():
            if split.sizes[client]:
                parts.append(split.view(client).batch(None))
                number += int(split.sizes[client])
            if 0 < limit <= number:
                break
        whole = map_tree(lambda *tensors: torch.cat(tensors), *parts)
        return take(whole, slice(0, limit or None))

    def client(self, client: int, limit: int = 0) -> Batch:
        """The samples of one client, or `limit` of them."""
        return _some(self.task.split.view(client).batch(None), limit, "client sample")

    def data(self, options: Options) -> tuple[Batch, str]:
        """The data set the options name, and what to call it."""
        chosen = self.pooled if options.data == "train" else self.test
        batch = chosen(options.images)
        kind = "training" if options.data == "train" else "test"
        return batch, f"{count(batch[0]):,} {kind} samples"

    @cached_property
    def cohort(self) -> tuple[int, ...]:
        """The clients of the coming round that hold samples; after a schedule, its last ones.

        Where the draw depends on how the run went, as many drawn at random stand for them.
        """
        who, sizes = self.task.participation, self.task.split.sizes
        if who.kind in LOOKS:
            who = replace(who, kind="fixed")
        drawn = who.draw(self.round, self.task.seed)
        if not drawn and who.schedule:
            drawn = who.schedule[-1]
        later = self.round
        while not drawn and later < self.round + PATIENCE:  # nobody may have thrown heads
            later += 1
            drawn = who.draw(later, self.task.seed)
        return tuple(c for c in drawn if sizes[c])

    def few(self, limit: int) -> tuple[int, ...]:
        """At most `limit` clients of the cohort, from all over it: neighbours may hold the same."""
        if not limit or limit >= len(self.cohort):
            return self.cohort
        places = np.linspace(0, len(self.cohort) - 1, limit).round().astype(int)
        return tuple(self.cohort[i] for i in places)

    def trained(self, clients: Sequence[int], watch: Watch | None = None) -> dict[int, Visited]:
        """Local models of these clients after the coming round's work, computed once."""
        key = tuple(sorted(clients))
        if key not in self._trained:
            if self.state is None:
                raise NotMeasured("its checkpoint is missing, so clients cannot be trained from it")
            if watch is not None:
                watch.begin("local models", len(key), self._pace() * len(key))
            visited = rehearse(
                self.task,
                self.state,
                self.buffers,
                self.store,
                self.round,
                key,
                watch,
                cohort=self.cohort,
            )
            if not visited:
                kind = type(self.task.algorithm).__name__
                raise NotMeasured(f"{kind} trains no local models in the coming round")
            self._trained[key] = visited
        return self._trained[key]

    def _pace(self) -> float:
        """Seconds that the run took for a client and round; 0 if it did not tell."""
        last = self.history[-1] if self.history else {}
        visits = last.get("round", 0) * len(last.get("cohort") or ())
        return float(last.get("seconds") or 0.0) / visits if visits else 0.0


def _chosen(n: int, limit: int, purpose: str) -> np.ndarray | None:
    if limit < 0:
        raise InputError(f"images={limit} must be a whole number of at least 0")
    if not limit or limit >= n:
        return None
    return np.sort(generator(0, purpose).choice(n, limit, replace=False))


def _some(batch: Batch, limit: int, purpose: str) -> Batch:
    chosen = _chosen(count(batch[0]), limit, purpose)
    if chosen is None:
        return batch
    where = torch.from_numpy(chosen)
    return take(batch[0], where), take(batch[1], where)
