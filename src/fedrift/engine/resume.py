"""Where a run starts: at the beginning, at a checkpoint of its folder, or as a fork of another."""

from __future__ import annotations

import errno
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrift.core.alignment import settled
from fedrift.core.composition import parts
from fedrift.core.isolation import at_server
from fedrift.core.messages import pack
from fedrift.core.phases import is_evaluation
from fedrift.engine import recorder
from fedrift.engine.history import Progress, is_finite
from fedrift.engine.identity import differences
from fedrift.engine.ledger import Ledger
from fedrift.engine.loop import Settings
from fedrift.engine.plan import Task
from fedrift.errors import InputError
from fedrift.storage.checkpoint import Checkpoint, Mark, read, write
from fedrift.storage.client_state import States, Store, kept_states
from fedrift.storage.jsonl import load
from fedrift.storage.run_folder import (
    CLIENT_ROUNDS,
    LEDGER,
    ROUNDS,
    SPEC,
    STATES,
    SUMMARY,
    RunFolder,
    read_spec,
)
from fedrift.storage.run_record import load as load_folder
from fedrift.storage.run_record import read_environment, read_summary


def is_complete(folder: RunFolder) -> bool:
    """Nothing is left to do: a run that was stopped goes on."""
    return read_summary(folder.path).get("status") in ("done", "diverged")


# A run that goes on beyond the rounds it was to have.


def shortened(task: Task, rounds: int) -> Task:
    """The same task with fewer rounds, as far as its parts do not look at how many there are."""
    return replace(
        task,
        rounds=rounds,
        problem=replace(task.problem, rounds=rounds),
        participation=task.participation.first(rounds),
    )


def is_longer(
    task: Task, path: Path, known: Mapping[str, Any], origin: tuple[Task, int] | None
) -> bool:
    """Whether a folder holds the first rounds of a task that has more than it; refused where these
    would have been others, had it been known how many would follow."""
    there = read_spec(path).rounds
    if there >= task.rounds:
        return False
    others = differences(known, shortened(task, there), origin)
    is_scheduled = others == ("the algorithm",) and "cosine" in (task.spec.schedule or "")
    counting = [type(n).__name__ for _, n in parts(task.algorithm) if n.counts_on_rounds()]
    if is_scheduled or (not others and counting):
        why = f"schedule '{task.spec.schedule}'" if is_scheduled else counting[0]
        raise InputError(
            f"out '{path}' holds {there} rounds, and {why} makes them others where {task.rounds} "
            "are to come; name a new folder"
        )
    return not others


def has_more_rounds(task: Task, folder: RunFolder) -> bool:
    """Whether a folder, which is of this task, is one of fewer rounds by its own words."""
    return read_spec(folder.path).rounds < task.rounds


def prolong(task: Task, folder: RunFolder, settings: Settings, identity: object) -> None:
    """Make the folder one of a run with more rounds.

    What was evaluated in the last round only because it was the last is taken out of the lines: a
    run that was to be longer from the start would not have it. Whatever happens meanwhile, the same
    call goes on with the folder.
    """
    there = read_spec(folder.path).rounds
    if read_summary(folder.path).get("status") == "diverged":
        return
    point, _ = recorder.find(folder, task.algorithm.server(task.problem), lambda point: None)
    if point is not None and point.round == there:
        short = replace(point, lines=_without_end(folder, point, there, settings))
        for _ in range(2):  # both files, so that neither tells of the end
            write(folder.path, short)
    known = read_environment(folder.path)
    known |= {"identity": identity, "notes": list(task.notes)}
    past = known.get("rounds_before")
    before = [n for n in past if isinstance(n, int)] if isinstance(past, list) else []
    folder.write_environment({**known, "rounds_before": [*before, there]})
    folder.write_text(SPEC, replace(task.spec, out=None).to_toml())
    (folder.path / SUMMARY).unlink(missing_ok=True)


def _without_end(
    folder: RunFolder, point: Checkpoint, last: int, settings: Settings
) -> dict[str, Mark]:
    """How far the lines reach without what was done because the round was the last."""
    is_due, asks = settings.is_due(last - 1), settings.clients_are_due(last - 1)
    record = load_folder(folder.path)
    asked = any(row["round"] == last for row in record.client_rounds)
    if is_due and asked and not asks:
        raise InputError(
            f"out '{folder.path}': clients evaluated after round {last} because it was the last, "
            "and that is no round of eval_clients; name a new folder"
        )
    drops = {
        ROUNDS: not is_due,
        CLIENT_ROUNDS: not asks,
        LEDGER: not asks and asked,
    }
    marks = dict(point.lines)
    for name, drop in drops.items():
        if drop and name in marks:
            marks[name] = _without_last(folder.path / name, marks[name], last, name == LEDGER)
    return {name: mark for name, mark in marks.items() if name in (ROUNDS, LEDGER) or mark[0]}


def _without_last(path: Path, mark: Mark, round: int, is_ledger: bool) -> Mark:
    """Without the last line, if it is of that round and, in a ledger, of an evaluation."""
    lines = path.read_bytes()[: mark[0]].splitlines(keepends=True)
    if lines:
        row = load(lines[-1].decode())
        if row["round"] == round and (not is_ledger or is_evaluation(row["phase"])):
            lines.pop()
    whole = b"".join(lines)
    return len(whole), zlib.crc32(whole)


def check_fit(task: Task, first: Task) -> None:
    """Refuses to give the state of one algorithm to another."""
    kinds: list[list[Any]] = []
    for one in (first, task):
        server, shape = pack(one.algorithm.server(one.problem)), one.problem.w0.shape
        leaves = [(p, getattr(v, "shape", None)) for p, v in server.items()]
        clients = {
            path: (type(state), layout and (layout.leaves, layout.constants))
            for path, state, layout in kept_states(one.algorithm, one.problem)
        }
        kinds.append([type(one.algorithm), shape, leaves, clients])
    if kinds[0] != kinds[1]:
        raise InputError(
            f"{_kind(task)} cannot go on from the state of {_kind(first)}; fork with other options "
            "of the same algorithm"
        )


def _kind(task: Task) -> str:
    """What the form of a run's state follows from; clients keep what compression has left out."""
    packing = f" with compress={task.spec.compress}" if task.spec.compress else ""
    return f"{task.about['algorithm']}{packing}"


def unwritable(error: OSError, place: str, folder: RunFolder | None) -> str:
    """What to say of a disk that takes no more; finished rounds stand in the folder."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    where = place if folder is None else folder.path
    what = f"the disk of '{where}' is full" if is_full else f"'{where}': {error.strerror}"
    if folder is None:
        return f"{what}, and client states go there; set TMPDIR to another"
    fix = "make room" if is_full else "make it writable"
    return (
        f"{what}; what was finished is kept: {fix}, then go on "
        f"with the same command or: fedrift resume {shlex.quote(str(folder.path))}"
    )


def _check_point(point: Checkpoint, start: Progress, rounds: int, population: int) -> None:
    """ValueError if a checkpoint cannot be one of this run, whoever wrote it."""
    if not 0 <= point.round <= rounds:
        raise ValueError(f"it is of round {point.round}")
    forms = [(b.shape, b.dtype) for b in point.buffers]
    if forms != [(b.shape, b.dtype) for b in start.buffers]:
        raise ValueError("its running statistics have another form")
    if not all(0 <= client < population for client in (*point.counted, *point.told)):
        raise ValueError("it names clients that do not exist")
    for out in point.clock.out:
        if not (0 <= out.trip.client < population and 0 <= out.round <= point.round):
            raise ValueError("a client is out that cannot be")


def _check_model(task: Task, point: Checkpoint) -> None:
    """ValueError if no model can be had from a checkpoint; its hash may be right all the same."""
    w0 = task.problem.w0
    try:
        w = task.algorithm.model(point.server)
        fits = w.shape == w0.shape and w.dtype == w0.dtype
    except (AttributeError, TypeError, KeyError, IndexError, RuntimeError):
        fits = False
    if not fits:
        raise ValueError("it holds no model of this run")


def check_checkpoint(task: Task, folder: Path, name: str) -> None:
    """ValueError if a run could not go on from one of a folder's checkpoints."""
    state = task.algorithm.server(task.problem)
    point = read(folder / name, state)
    start = Progress(state, tuple(task.problem.rest[n] for n in task.problem.moving))
    lines = RunFolder(folder)
    lines.check_marks(point.lines)
    _check_point(point, start, task.rounds, task.problem.population)
    _check_model(task, point)
    try:
        store = Store(task.algorithm, task.problem, folder / STATES, writes=False)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from None
    try:
        store.check(point.rows, point.sums)
    finally:
        store.close()


def _check_lines(folder: RunFolder, point: Checkpoint) -> None:
    """ValueError if the lines tell of another end than it does: checkpoints of earlier versions
    may hold the state of a run that went on after it had diverged."""
    rows, entries = (folder.lines(name, point.lines) for name in (ROUNDS, LEDGER))
    last = max((line["round"] for line in (*rows, *entries)), default=0)
    ends = [row["round"] for row in rows if not is_finite(row)]
    if last > point.round or ends not in ([], [point.diverged_at]):
        raise ValueError("it was written after the run had diverged")


def resume(
    task: Task, store: States, folder: RunFolder | None, again: bool
) -> tuple[Progress, tuple[str, ...]]:
    """The initial state, or that of the folder's newest good checkpoint; what is to be said."""
    with at_server(task.seed, "start"):
        state = settled(task.algorithm.server(task.problem))
    start = Progress(state, settled(tuple(task.problem.rest[n] for n in task.problem.moving)))
    if folder is None or not again:
        return start, ()

    def accept(point: Checkpoint) -> None:
        _check_point(point, start, task.rounds, task.problem.population)
        _check_model(task, point)
        _check_lines(folder, point)
        store.restore(point.rows, point.sums)

    point, notes = recorder.find(folder, state, accept)
    folder.cut({} if point is None else point.lines)
    if point is None:
        return start, notes
    notes += recorder.elsewhere(folder, point.round)
    record = load_folder(folder.path)
    return Progress(
        settled(point.server),  # tensors of a file begin where it puts them
        settled(point.buffers),
        point.round,
        set(point.counted),
        set(point.told),
        point.seconds,
        list(record.rounds),
        Ledger.of(record.ledger),
        point.diverged_at,
        client_rows=list(record.client_rounds),
        training_rows=list(record.training),
        clock=settled(point.clock),
    ), notes
