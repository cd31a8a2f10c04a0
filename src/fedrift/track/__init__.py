"""Runs in the tools people already watch: TensorBoard and MLflow, as optional observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedrift.errors import InputError, unknown
from fedrift.grammar import parse
from fedrift.track.told import Tracked

if TYPE_CHECKING:
    from fedrift.result import Result
    from fedrift.rounds import Observer, Plan, RoundReport

# What must be importable for each; the extra of the package has the same name.
NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}


class Tracker(Protocol):
    """Follows one run. What it is told is true already: it cannot change the run."""

    def started(self, plan: Plan) -> None: ...
    def finished_round(self, report: RoundReport) -> None: ...
    def finished(self, result: Result) -> None: ...
    def failed(self, interrupted: bool) -> None: ...


@dataclass(frozen=True)
class Track:
    """A tracker that was asked for: its kind, and where it writes."""

    kind: str
    place: str | None = None

    def follow(self, name: str, settings: Mapping[str, Any], folder: Path | None) -> Tracker:
        run = Tracked(name, settings, folder, self.place)
        if self.kind == "tensorboard":
            from fedrift.track.tensorboard import TensorBoard

            return TensorBoard(run)
        from fedrift.track.mlflow import MLflow

        return MLflow(run)


def tracks(wanted: str | Sequence[str] | None) -> tuple[Track, ...]:
    """`tensorboard`, `mlflow:FOLDER`; refuses what is unknown or not installed."""
    texts = [wanted] if isinstance(wanted, str) else list(wanted or ())
    found: list[Track] = []
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"track {text!r} must be a name such as 'tensorboard'")
        named = parse(text, "track")
        if named.name not in NEEDS:
            raise unknown("track", named.name, NEEDS)
        if named.options or named.inner is not None:
            raise InputError(f"track '{text}' has no options; write {named.name}:FOLDER")
        missing = next((m for m in NEEDS[named.name] if find_spec(m) is None), None)
        if missing is not None:
            raise InputError(
                f"track '{named.name}' needs the package {missing}; install it with: "
                f"pip install 'fedrift[{named.name}]'"
            )
        found.append(Track(named.name, named.value))
    return tuple(found)


@dataclass(frozen=True)
class _Several:
    watchers: Sequence[Any]

    def started(self, plan: Plan) -> None:
        for watcher in self.watchers:
            watcher.started(plan)

    def finished_round(self, report: RoundReport) -> None:
        for watcher in self.watchers:
            watcher.finished_round(report)


def following(
    wanted: Sequence[Track],
    name: str,
    settings: Mapping[str, Any],
    folder: Path | None,
    observer: Observer | None,
    execute: Callable[[Observer | None], Result],
) -> Result:
    """Make a run, with everybody told how it goes and how it ended."""
    if not wanted:
        return execute(observer)
    trackers = [one.follow(name, settings, folder) for one in wanted]
    watchers = [*trackers, *([] if observer is None else [observer])]
    try:
        result = execute(_Several(watchers))
    except BaseException as reason:
        for tracker in trackers:
            tracker.failed(isinstance(reason, KeyboardInterrupt))
        raise
    for tracker in trackers:
        tracker.finished(result)
    return result
