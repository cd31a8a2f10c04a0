"""The server's side of a federation: our engine over somebody's transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.backends.backend import Backend
from fedrift.backends.visit import Visitor
from fedrift.core.composition import parts
from fedrift.core.evaluation import Evaluator
from fedrift.core.exchange import Signature
from fedrift.core.isolation import one_thread
from fedrift.core.plain_files import replace_bytes
from fedrift.engine import execute, recorder
from fedrift.engine.callbacks import Callback
from fedrift.engine.plan import Task
from fedrift.engine.result import Result
from fedrift.errors import InputError
from fedrift.federation.config import FederationConfig
from fedrift.federation.membership import Membership, Transport
from fedrift.federation.remote import NodeStates, Remote
from fedrift.federation.task import experiment_id, make_server_task
from fedrift.federation.visibility import phases
from fedrift.storage.jsonl import dump, read_file
from fedrift.storage.run_folder import CLIENTS

DEADLINE = 600.0  # seconds an exchange may take

WrapBackend = Callable[[Remote, Mapping[str, Signature]], Backend]
"""Puts something around the backend, such as masks; it is told the phases of the algorithm."""


@dataclass
class NodeClients:
    """Clients at the nodes of a membership."""

    task: Task
    transport: Transport
    membership: Membership
    sizes: Sizes
    deadline: float
    note: Callable[[str], None]
    around: WrapBackend | None = None
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
            self.transport,
            self.membership,
            experiment=experiment_id(self.task),
            deadline=self.deadline,
            note=self.note,
        )
        return remote if self.around is None else self.around(remote, phases(self.task.algorithm))

    def present(self) -> np.ndarray:
        here = self.membership.present()
        self.sizes.remember(self.task)
        return here


def serve(
    config: FederationConfig,
    transport: Transport,
    *,
    test: tuple[Any, Any] | None = None,
    out: Path | None = None,
    least: int | None = None,
    deadline: float = DEADLINE,
    callbacks: Sequence[Callback] = (),
    note: Callable[[str], None] = lambda text: None,
    around: WrapBackend | None = None,
) -> Result:
    """Run the config's experiment with whoever is there; goes on with what `out` holds of it."""
    least = config.clients if least is None else least
    if not 1 <= least <= config.clients:
        raise InputError(f"min-nodes={least} must be from 1 to {config.clients}, the clients")
    if not 0 < deadline < float("inf"):
        raise InputError(f"deadline={deadline} must be a number of seconds above 0")
    with one_thread():
        task = make_server_task(config, test)
    if task.faults is not None:
        raise InputError("faults: they are simulated, and a federation has its own; leave them out")
    if task.clock is not None:
        what = "devices" if task.spec.devices is not None else f"algorithm '{task.spec.algorithm}'"
        raise InputError(f"{what}: needs the simulated clock, and a federation has real time")
    if around is not None and task.aggregation is not None:
        raise InputError(
            "aggregate and privacy need to see each reply, which secure aggregation hides; "
            "use one or the other"
        )
    if around is not None and task.problem.compression is not None:
        raise InputError(
            "compress: masked replies are added up as they are, and packed ones cannot be; leave "
            "compress or secure aggregation out"
        )
    if around is not None and task.eval_clients is not None:
        raise InputError(
            "eval_clients: each client's figures would be seen by themselves, which secure "
            "aggregation is to prevent; leave eval_clients and client_test out"
        )
    if around is not None and task.algorithm.frozen_moves():
        raise InputError(
            "adapter how=exact needs every client's factors as they are, which secure aggregation "
            "hides; use how=freeze-A, whose mean is exact anyway"
        )
    membership = Membership(
        transport,
        experiment=experiment_id(task),
        population=config.clients,
        least=least,
        note=note,
    )
    sizes = Sizes(out, membership.sizes)
    sizes.recall()
    membership.present()
    task.split.sizes = membership.sizes  # filled in as nodes come
    task = replace(task, problem=replace(task.problem, samples=int(membership.sizes.sum())))
    place = NodeClients(task, transport, membership, sizes, deadline, note, around)
    return execute.execute(task, out=out, callbacks=callbacks, place=place)


@dataclass
class Sizes:
    """How many samples each client has: learnt as nodes come, kept in `clients.json`."""

    folder: Path | None
    sizes: np.ndarray
    """Filled in by the membership."""
    _written: Sequence[int] = field(default_factory=list[int])

    def recall(self) -> None:
        """What an earlier start of the run knew about clients that are not here now."""
        known: Any = None if self.folder is None else (read_file(self.folder / CLIENTS) or {})
        known = known.get("sizes") if isinstance(known, dict) else None
        if not isinstance(known, list) or len(known) != len(self.sizes):
            return
        if all(type(n) is int and n >= 0 for n in known):
            self._written = known
            self.sizes[:] = np.where(self.sizes > 0, self.sizes, known)

    def remember(self, task: Task) -> None:
        """Write them down if somebody new has come."""
        now = self.sizes.tolist()
        if self.folder is None or now == self._written or not (self.folder / CLIENTS).exists():
            return
        text = dump(recorder.clients(task.split, task.problem.classes)) + "\n"
        replace_bytes(self.folder / CLIENTS, text.encode())
        self._written = now
