"""A case from a run folder: the task from its spec, the state from its checkpoint.

And the folder `analysis` inside it: what was found, and what was kept while the run went on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrift.analysis.case import Case
from fedrift.config.own_code import IN_PYTHON
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.composition import arrivals_of
from fedrift.core.flat import Vec
from fedrift.core.plain_files import write_file
from fedrift.core.problem import Problem
from fedrift.core.sampling import LOOKS
from fedrift.engine.identity import differences
from fedrift.engine.ledger import Ledger
from fedrift.engine.objects import Tensors
from fedrift.engine.plan import Task
from fedrift.engine.prepare import Prepared, prepare
from fedrift.engine.task import task_from_spec
from fedrift.errors import InputError, RunError, is_of_disk
from fedrift.storage import checkpoint, run_folder, run_record
from fedrift.storage.checkpoint import Checkpoint
from fedrift.storage.client_state import Store
from fedrift.storage.jsonl import Record, dump, read_lines
from fedrift.storage.run_folder import ANALYSIS
from fedrift.storage.run_record import RunRecord

ROUNDS, WEIGHTS = "rounds.jsonl", "weights"


class Loader:
    """Cases from folders; runs on the same data share them."""

    def __init__(self, data_dir: str | None = None) -> None:
        self._data_dir = data_dir
        self._prepared: dict[tuple[object, ...], Prepared] = {}
        self._tensors = Tensors()

    def case(self, folder: str | Path, name: str = "") -> Case:
        """The last state of a run. Reads only."""
        record = run_record.load(folder)
        spec = record.spec
        if spec.data == IN_PYTHON:
            raise InputError(
                f"'{folder}' was made in Python, and its data and model are not in it; use the "
                "functions of fedrift.analysis there"
            )
        if self._data_dir is not None:
            spec = replace(spec, data_dir=self._data_dir)
        key = (spec.data, spec.data_dir, spec.partition, spec.alpha, spec.shift, spec.clients)
        key = (*key, spec.model, spec.loss, spec.seed)
        if key not in self._prepared:
            self._prepared[key] = prepare(spec)
        task = task_from_spec(spec, self._prepared[key], self._tensors)
        return _case(task, record, name or str(spec.algorithm_named))


def load(folder: str | Path, name: str = "", data_dir: str | None = None) -> Case:
    """The last state of the run in a folder, to be measured."""
    return Loader(data_dir).case(folder, name)


def _case(task: Task, record: RunRecord, name: str) -> Case:
    algorithm, problem, folder = task.algorithm, task.problem, record.folder
    _check_history(task, record)
    point = checkpoint.read_newest(folder, algorithm.server(problem))
    store = _store(task, folder, point) if point is not None else None
    if (folder / run_folder.MODEL).is_file():
        shown, round = final_model(problem, record.weights(), folder), _rounds(record)
    elif point is not None:
        shown, round = algorithm.shown(point.server, problem, point.buffers)[""], point.round
    else:
        raise InputError(f"'{folder}' holds neither weights nor a checkpoint; run it further first")
    state, buffers = None, shown.buffers
    if point is not None and point.round == round:
        state, buffers = point.server, point.buffers
        shown = replace(algorithm.shown(state, problem, shown.buffers)[""], w=shown.w)
    kept = read_snapshots(folder, problem)
    return Case(
        name=name,
        task=task,
        round=round,
        shown=shown,
        state=state,
        buffers=buffers,
        store=store if state is not None else None,
        history=tuple(record.rounds),
        cohorts=_cohorts(record),
        snapshots={**kept, round: shown.w},
        notes=_notes(task, record),
    )


def _check_history(task: Task, record: RunRecord) -> None:
    """Refuses lines that tell of rounds, clients or classes which this run cannot have had."""
    clients, classes = task.problem.population, task.problem.classes
    for name, rows in ((run_folder.ROUNDS, record.rounds), (run_folder.LEDGER, record.ledger)):
        path = record.folder / name
        for row in rows:
            if row["round"] > task.rounds:
                raise InputError(
                    f"'{path}' tells of round {row['round']}, and the run has {task.rounds}"
                )
            named = (c for key in ("cohort", "asked", "replied") for c in row.get(key) or ())
            if (worst := max(named, default=0)) >= clients:
                raise InputError(f"'{path}' names client {worst}, and the run has {clients}")
            if "classes" in row and len(row["classes"] or ()) not in (0, classes):
                raise InputError(
                    f"'{path}' tells of {len(row['classes'])} classes, and the run has {classes}"
                )


def _cohorts(record: RunRecord) -> dict[int, tuple[int, ...]]:
    """By round, from the ledger; who came to any of its exchanges took part."""
    clients_by_round: dict[int, set[int]] = {}
    for entry in Ledger.of(record.ledger).entries:
        clients_by_round.setdefault(entry.round, set()).update(entry.replied)
    return {round: tuple(sorted(clients)) for round, clients in clients_by_round.items()}


def _rounds(record: RunRecord) -> int:
    """Rounds whose outcome the saved weights are; a diverged run keeps those before the last."""
    at = record.summary.get("diverged_at")
    if at is not None:
        return int(at) - 1
    return int(record.rounds[-1]["round"]) if record.rounds else record.spec.rounds


def final_model(problem: Problem, saved: Mapping[str, object], folder: Path) -> EvaluatedModel:
    """What a finished run has written, as the model of its problem."""
    file = folder / run_folder.MODEL
    tensors = {name: torch.from_numpy(value) for name, value in saved.items()}
    w = _vector(problem, tensors, file)
    moving = _fitting(problem, problem.moving, tensors, file)
    others = tensors.keys() - {*problem.layout.names, *problem.moving}
    frozen = _fitting(problem, sorted(others), tensors, file)
    return EvaluatedModel(w, tuple(moving.values()), frozen=frozen)


def _vector(problem: Problem, tensors: Mapping[str, Tensor], file: Path) -> Vec:
    """What is trained, flat."""
    own = _fitting(problem, problem.layout.names, tensors, file)
    return torch.cat([tensor.reshape(-1) for tensor in own.values()])


def _fitting(
    problem: Problem, names: Iterable[str], tensors: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    """Those of a file's tensors; refused if they are not of the model's form."""
    wanted = {**problem.rest, **problem.layout.named(problem.w0)}
    found: dict[str, Tensor] = {}
    for name in names:
        if name not in wanted:
            raise InputError(
                f"'{file}' has '{name}', which the model has not: it is another model's"
            )
        if name not in tensors:
            raise InputError(f"'{file}' has no '{name}': it is another model's")
        tensor, own = tensors[name], wanted[name]
        if (tensor.shape, tensor.dtype) != (own.shape, own.dtype):
            raise InputError(
                f"'{file}' is another model's: its '{name}' is of the form "
                f"{tuple(tensor.shape)}, {tensor.dtype}"
            )
        found[name] = tensor
    return found


def _store(task: Task, folder: Path, point: Checkpoint) -> Store | None:
    rows = folder / "clients"
    if not point.rows or not rows.is_dir():
        return None
    try:
        store = Store(task.algorithm, task.problem, rows, writes=False)
    except OSError as error:
        raise InputError(f"'{error.filename}' cannot be read: {error.strerror}") from None
    try:
        store.restore(point.rows, point.sums)
    except ValueError as error:
        raise InputError(f"'{folder}' has a checkpoint that cannot be used: {error}") from None
    return store


def _notes(task: Task, record: RunRecord) -> tuple[str, ...]:
    notes: list[str] = []
    if record.environment.get("identity"):
        others = [name for name in differences(record.environment, task) if "origin" not in name]
        if others:
            notes.append(f"not exactly what the run was made with: {', '.join(others)} differ")
    if task.participation.kind in LOOKS or arrivals_of(task.algorithm) is not None:
        notes.append(
            "whom the run would ask next depends on how it went on: where local models are looked "
            "at, as many clients drawn at random stand for them"
        )
    return tuple(notes)


# The folder `analysis`.


def analysis_folder(run: Path) -> Path:
    """Where a run's analysis is kept; made if need be."""
    folder = run / ANALYSIS
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        kind = RunError if is_of_disk(error) else InputError
        raise kind(f"'{folder}' cannot be made: {error.strerror}") from None
    return folder


def write_json(path: Path, record: Record) -> Path:
    """Replaces a file as a whole."""
    write_file(path, dump(record, indent=1) + "\n")
    return path


def read_observed(run: Path) -> list[Record]:
    """What was measured while the run was going on."""
    return read_lines(run / ANALYSIS / ROUNDS)[0]


def keep_weights(run: Path, round: int, names: Sequence[str], w: Sequence[torch.Tensor]) -> None:
    """The global weights of a round, by name."""
    from safetensors.numpy import save

    folder = analysis_folder(run) / WEIGHTS
    arrays = {n: np.array(t.detach().cpu().numpy()) for n, t in zip(names, w, strict=True)}
    write_file(folder / f"{round:06d}.safetensors", save(arrays))


def read_snapshots(run: Path, problem: Problem) -> dict[int, Vec]:
    """The global weights that were kept on the way, flat, by round."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights_by_round: dict[int, Vec] = {}
    for file in sorted((run / ANALYSIS / WEIGHTS).glob("*.safetensors")):
        try:
            round, tensors = int(file.stem), load_file(file)
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"'{file}' cannot be read: {error}") from None
        weights_by_round[round] = _vector(problem, tensors, file)
    return weights_by_round
