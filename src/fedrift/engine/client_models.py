"""Models of the clients' own, out of a finished run: from its memory or from its folder."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedrift.backends.visit import Call, Visitor
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.alignment import settled
from fedrift.core.composition import personal_path, state_path
from fedrift.core.isolation import one_thread
from fedrift.engine import recorder
from fedrift.engine.plan import Task
from fedrift.errors import InputError
from fedrift.storage.client_state import Store
from fedrift.storage.run_folder import STATES, RunFolder


@dataclass(frozen=True)
class Ended:
    """Where a run ended, as far as personal models are made of it."""

    state: Any
    buffers: tuple[Tensor, ...]
    round: int
    """How many rounds it made."""
    states: Store


class ClientModels:
    """Makes the model of any client of a run."""

    def __init__(self, task: Task, end: Ended | Path | None) -> None:
        """`end` is known, or is in a folder, which is read when the first model is asked for; None
        if there are no models. The states are closed with this."""
        self._task, self._end = task, end
        if isinstance(end, Ended):
            weakref.finalize(self, end.states.close)
        self._visitor = Visitor(task.algorithm, task.problem, task.split, task.augment)

    def __call__(self, client: int) -> EvaluatedModel:
        task = self._task
        path = personal_path(task.algorithm, task.problem)
        if path is None:
            raise InputError(
                f"{task.about['algorithm']} has no models of the clients' own; module() is "
                "everybody's, and finetune(…) would fit it to each client"
            )
        number = task.problem.population
        if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < number:
            raise InputError(f"client {client!r}: the run has {number} clients, 0 to {number - 1}")
        end = self._end
        if isinstance(end, Path):
            self._end = end = in_folder(task, end)
            weakref.finalize(self, end.states.close)
        assert end is not None  # there are models
        shown = task.algorithm.shown(settled(end.state), task.problem, settled(end.buffers))[""]
        mine = end.states.read(state_path(task.algorithm, path), client)
        # The round after which clients are asked for the last time: the same draws.
        call = Call(path, max(0, end.round - 1), task.seed)
        with one_thread():
            return settled(self._visitor.personal(call, client, shown, mine))


def has_models(task: Task) -> bool:
    """Whether the clients of a run have models of their own."""
    try:
        return personal_path(task.algorithm, task.problem) is not None
    except InputError:  # of a part of the model, which nobody can ask for
        return False


def in_folder(task: Task, folder: Path) -> Ended:
    """The end of a run that was kept."""
    state = task.algorithm.server(task.problem)
    try:
        store = Store(task.algorithm, task.problem, folder / STATES, writes=False)
    except OSError as error:
        raise InputError(
            f"'{folder}' does not hold the clients' models: {STATES} {error.strerror}"
        ) from None
    try:
        found, notes = recorder.find(
            RunFolder(folder), state, lambda point: store.restore(point.rows, point.sums)
        )
    except BaseException:
        store.close()
        raise
    if found is None:
        store.close()
        why = notes[0] if notes else "it has no checkpoint"
        raise InputError(f"'{folder}' does not hold the clients' models: {why}")
    return Ended(found.server, found.buffers, found.round, store)
