"""The server's side of a federation: our engine over somebody's post."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrift import session
from fedrift.algorithm import parts
from fedrift.backends.backend import Backend
from fedrift.backends.evaluation import Evaluator
from fedrift.backends.remote import Remote
from fedrift.backends.roster import Post, Roster
from fedrift.backends.versions import NodeStates
from fedrift.backends.visit import Visitor
from fedrift.engine import Observer, RoundReport
from fedrift.errors import InputError
from fedrift.exchange import Signature
from fedrift.federation.agreement import experiment, settled
from fedrift.federation.charter import Charter
from fedrift.federation.sizes import Sizes
from fedrift.federation.visible import phases
from fedrift.planning import Task
from fedrift.result import Result

DEADLINE = 600.0  # seconds an exchange may take

Around = Callable[[Remote, Mapping[str, Signature]], Backend]
"""Puts something around the backend, such as masks; it is told the phases of the algorithm."""


@dataclass
class AtNodes:
    """Clients at the nodes of a roster."""

    task: Task
    post: Post
    roster: Roster
    sizes: Sizes
    deadline: float
    note: Callable[[str], None]
    around: Around | None = None
    _states: NodeStates | None = None

    def states(self, visitor: Visitor) -> NodeStates:
        self._states = NodeStates(visitor, [path for path, _ in parts(self.task.algorithm)])
        return self._states

    def backend(self, visitor: Visitor, evaluator: Evaluator | None) -> Backend:
        assert self._states is not None
        remote = Remote(
            visitor,
            self._states,
            evaluator,
            self.post,
            self.roster,
            experiment=experiment(self.task),
            deadline=self.deadline,
            note=self.note,
        )
        return remote if self.around is None else self.around(remote, phases(self.task.algorithm))

    def present(self) -> np.ndarray:
        here = self.roster.present()
        self.sizes.remember(self.task)
        return here


def serve(
    charter: Charter,
    post: Post,
    *,
    test: tuple[Any, Any] | None = None,
    out: Path | None = None,
    least: int | None = None,
    deadline: float = DEADLINE,
    observer: Observer | None = None,
    note: Callable[[str], None] = lambda text: None,
    around: Around | None = None,
) -> Result:
    """Run the charter's experiment with whoever is there; goes on with what `out` holds of it."""
    least = charter.clients if least is None else least
    if not 1 <= least <= charter.clients:
        raise InputError(f"min-nodes={least} must be from 1 to {charter.clients}, the clients")
    if not 0 < deadline < float("inf"):
        raise InputError(f"deadline={deadline} must be a number of seconds above 0")
    with session.one_thread():
        task = settled(charter, test)
    if task.faults is not None:
        raise InputError("faults: they are simulated, and a federation has its own; leave them out")
    if around is not None and task.aggregation is not None:
        raise InputError(
            "aggregate and privacy need to see each reply, which secure aggregation hides; "
            "use one or the other"
        )
    roster = Roster(
        post,
        experiment=experiment(task),
        population=charter.clients,
        least=least,
        note=note,
    )
    sizes = Sizes(out, roster.sizes)
    sizes.recall()
    roster.present()
    task.split.sizes = roster.sizes  # filled in as nodes come
    task = replace(task, problem=replace(task.problem, samples=int(roster.sizes.sum())))
    place = AtNodes(task, post, roster, sizes, deadline, note, around)
    return session.execute(task, out=out, observer=observer, on_round=_at_once, place=place)


def _at_once(report: RoundReport) -> None:
    """Being there makes the engine tell of a round before it begins the next."""
