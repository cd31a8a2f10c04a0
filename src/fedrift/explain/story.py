"""A few rounds of a real algorithm on two clients in two dimensions, recorded point by point."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedrift.conform import runs
from fedrift.conform.problem import Trial, alternating
from fedrift.conform.subject import Subject, subject_of
from fedrift.conform.watched_run import Inside
from fedrift.core.isolation import one_thread
from fedrift.core.messages import pack
from fedrift.engine.callbacks import RoundReport
from fedrift.errors import InputError
from fedrift.explain.recording import Visit, point, watching
from fedrift.explain.terrain import Point, Terrain, bowl_with_pits

LONG = 200  # rounds after which an algorithm has come to rest, or never will
STILL = 1e-4  # a model that moves less than this in some rounds is at rest
FEW = 8
FAR = 100.0  # times the size of a map, about twenty
SERVER_MODEL = re.compile(r"(?:(?:inner|second)\.)*w")


@dataclass(frozen=True)
class Task:
    """What is run: the algorithm, where, with how many steps, for how long, by turns or not."""

    text: str
    terrain: Terrain
    steps: tuple[int, ...]
    """Local steps, one number or one for each client."""
    lr: float
    rounds: int
    turns: bool = False

    def trial(self, rounds: int | None = None) -> Trial:
        """The same as a small federation."""
        steps = self.steps[0] if len(self.steps) == 1 else self.steps
        trial = Trial(
            self.terrain.model(),
            self.terrain.data(),
            {"lr": self.lr, "steps": steps, "batch_size": None},
            self.rounds if rounds is None else rounds,
            loss=bowl_with_pits,
        )
        return alternating(trial) if self.turns else trial


@dataclass(frozen=True)
class Turn:
    """One round: what was sent, what the clients did, where the server went."""

    number: int
    sent: Point
    visits: tuple[Visit, ...]
    mean: Point
    """Of the clients' last models."""
    end: Point
    """The server's next model."""
    shown: Point
    """The model that is evaluated."""
    state: dict[str, list[float]]
    """Vectors and numbers of the server (`server.c`) and of the clients (`client 1.c`)."""


@dataclass(frozen=True)
class Path:
    """The evaluated model after every round, and where it is after very many."""

    points: tuple[Point, ...]
    limit: Point | None
    """None if it became infinite."""
    rests: bool


@dataclass(frozen=True)
class Story:
    """Everything that is drawn."""

    task: Task
    subject: Subject
    turns: tuple[Turn, ...]
    path: Path
    other: Path | None
    """FedAvg from the same start; None if it is FedAvg that is told."""
    lowest: Point
    bottoms: tuple[Point, Point]
    """Of the two clients' own losses."""

    def box(self) -> tuple[Point, Point]:
        """Corners of the part of the plane that is drawn: all that happens, within reason."""
        terrain = self.task.terrain
        wide = [b - a for a, b in zip(terrain.low, terrain.high, strict=True)]
        points = [*self.path.points, *(self.other.points if self.other else ())]
        for turn in self.turns:
            points += [turn.sent, turn.mean, turn.end]
            points += [s.end for visit in turn.visits for s in visit.strides]
        corners: list[Point] = []
        for i in range(2):
            low, high, margin = terrain.low[i], terrain.high[i], 0.04 * wide[i]
            least = min(p[i] for p in points) - margin
            most = max(p[i] for p in points) + margin
            corners.append(
                (max(min(low, least), low - wide[i]), min(max(high, most), high + wide[i]))
            )
        (left, right), (down, up) = corners
        return (left, down), (right, up)


def make_story(task: Task) -> Story:
    """Runs the algorithm, watched; then, unwatched, for long; then FedAvg beside it."""
    with one_thread():
        subject = subject_of(task.text)
        turns = record_turns(task, subject)
        if not turns:
            raise InputError(
                f"lr={task.lr:g} is too large: the first round leaves the map; lower it"
            )
        points = (task.terrain.start, *(turn.shown for turn in turns))
        path = Path(points, *_limit(subject, task))
        other = None
        if subject.text != "fedavg":
            other = _beside(replace(task, text="fedavg"))
        terrain = task.terrain
        bottoms = terrain.lowest([0]), terrain.lowest([1])
        return Story(task, subject, turns, path, other, terrain.lowest(), bottoms)


def record_turns(task: Task, subject: Subject) -> tuple[Turn, ...]:
    """The rounds as they happened."""
    visits: list[Visit] = []
    inside = Inside(subject, task.trial(), site=watching(visits))
    turns: list[Turn] = []
    sent = [task.terrain.start]

    def note(report: RoundReport) -> None:
        if not on_map(report.weights) or len(turns) < report.round - 1:
            return  # it has run away: the rest is not worth a picture
        seen = _merged([v for v in visits if v.round == report.round - 1])
        if not all(map(math.isfinite, _drawn(seen))):
            return  # at a client, already; the server keeps its last finite model
        ends = [v.end for v in seen if v.end is not None]
        end = _server(report.state, report.weights)
        mean = _middle(ends) if ends else end
        shown = point(report.weights)
        state = _state(inside, report.state)
        turns.append(Turn(report.round, sent[-1], seen, mean, end, shown, state))
        sent.append(end)

    inside.run(note)
    return tuple(turns)


def on_map(w: Tensor) -> bool:
    """Not so far away that nothing else could be seen."""
    return bool(w.isfinite().all()) and float(w.abs().max()) < FAR


def _drawn(visits: Sequence[Visit]) -> Iterator[float]:
    """The coordinates of all that a round's visits draw."""
    for visit in visits:
        yield from visit.end or ()
        for stride in visit.strides:
            yield from stride.end
            for _, arrow in stride.arrows():
                yield from arrow
        for look in (*visit.looks, *(look for stride in visit.strides for look in stride.looks)):
            yield from (*look.at, *look.gradient)


def _merged(visits: Sequence[Visit]) -> tuple[Visit, ...]:
    """One visit for each client, though there may have been several exchanges."""
    by_client: dict[int, Visit] = {}
    for visit in visits:
        kept = by_client.setdefault(visit.client, Visit(visit.client, visit.round))
        kept.begin = visit.begin or kept.begin
        kept.end = visit.end or kept.end
        kept.strides += visit.strides
        kept.looks += visit.looks
    return tuple(by_client[client] for client in sorted(by_client))


def _middle(points: Sequence[Point]) -> Point:
    return sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)


def _server(state: Any, shown: Tensor) -> Point:
    """The model the server goes on with, which a wrapper may hide behind an average."""
    leaves = pack(state)
    paths = [path for path in leaves if SERVER_MODEL.fullmatch(path)]
    return point(leaves[max(paths, key=len)] if paths else shown)


def _state(inside: Inside, server: Any) -> dict[str, list[float]]:
    numbers = _numbers("server", pack(server))
    for client in range(len(inside.split)):
        for path in inside.store.tables:
            numbers |= _numbers(f"client {client + 1}", pack(inside.client(client, path)))
    return numbers


def _numbers(whose: str, leaves: dict[str, Any]) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = {}
    for path, leaf in leaves.items():
        name = re.sub(r"^(?:(?:inner|second)\.)+", "", path)
        if isinstance(leaf, Tensor) and leaf.numel() <= 2:
            numbers[f"{whose}.{name}"] = [float(x) for x in leaf.flatten()]
        elif isinstance(leaf, float):
            numbers[f"{whose}.{name}"] = [leaf]
    return numbers


def _limit(subject: Subject, task: Task) -> tuple[Point | None, bool]:
    """Where it is after many rounds, and whether it has come to rest there."""
    last: list[Point] = []

    def rests() -> bool:
        return len(last) == FEW and max(math.dist(a, last[-1]) for a in last) < STILL

    def note(report: RoundReport) -> bool:
        last[:] = [*last[1 - FEW :], point(report.weights)]
        return not on_map(report.weights) or (report.round > task.rounds and rests())

    result = runs.run(subject, task.trial(LONG), on_round=note)
    if result.status == "diverged" or not max(map(abs, last[-1])) < FAR:
        return None, False
    return last[-1], rests()


def _beside(task: Task) -> Path:
    subject = subject_of(task.text)
    points = [point(w) for w in runs.path(subject, task.trial()) if on_map(w)]
    return Path((task.terrain.start, *points), *_limit(subject, task))
