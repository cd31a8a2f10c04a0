"""Runs in the tools people already watch: TensorBoard and MLflow, as optional observers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedrift.errors import InputError, RunError, unknown
from fedrift.grammar import parse

if TYPE_CHECKING:
    from fedrift.engine.callbacks import Observer, Plan, RoundReport
    from fedrift.engine.result import Result


# What trackers are told of a run, whatever they make of it.

ROW_ONLY = ("round", "n", "seconds")


@dataclass(frozen=True)
class Tracked:
    """One run as a tracker introduces it. `folder` is None for a run that is not kept."""

    name: str
    settings: Mapping[str, Any]
    folder: Path | None
    place: str | None
    """Where the tracker writes, if the user said so."""

    def home(self, usual: str) -> Path:
        """Where the tracker writes: as said, beside the runs of a comparison, or here."""
        if self.place is not None:
            return Path(self.place)
        if self.folder is None:
            return Path(usual)
        inside = self.folder.parent.parent if self.folder.parent.name == "runs" else self.folder
        return inside / usual


def values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the metrics of a round."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in ROW_ONLY
    }


def of_report(report: RoundReport) -> dict[str, float]:
    """What is written of a round: its metrics, its costs, and the time since the start."""
    cost = report.cost
    return {
        **{f"test/{key}": value for key, value in values(report.metrics).items()},
        "round/clients": float(len(report.cohort)),
        "round/bytes_down": float(cost.bytes_down),
        "round/bytes_up": float(cost.bytes_up),
        "round/gradients": float(cost.gradients),
        "seconds": report.seconds,
    }


# MLflow: runs in a SQLite file, or on the server that MLFLOW_TRACKING_URI names.

EXPERIMENT, FOLDER = "fedrift", "fedrift.folder"
FILE = "mlflow.db"
LONGEST = 500  # characters of a parameter that every store takes
_opening = threading.Lock()  # a new file gets its tables from one run alone


class MLflow:
    """Writes options, metrics by round, and how the run ended."""

    def __init__(self, run: Tracked) -> None:
        self._run = run
        self._client: Any = None
        self._id = ""

    def started(self, plan: Plan) -> None:
        for talker in ("alembic", "mlflow.store.db.utils"):  # they tell of every table they make
            logging.getLogger(talker).setLevel(logging.WARNING)
        mlflow: Any = import_module("mlflow")  # by name: it is optional, and types come with it

        try:
            with _opening:
                self._client = mlflow.MlflowClient(self._address())
                self._id = self._open(plan.resumed_from)
        except mlflow.MlflowException as error:
            raise RunError(f"track 'mlflow' cannot be used: {error}") from error

    def _address(self) -> str:
        said = os.environ.get("MLFLOW_TRACKING_URI")
        if said and self._run.place is None:
            return said
        home = self._run.home(".")
        home.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{(home / FILE).resolve()}"

    def _open(self, resumed_from: int) -> str:
        """A new run, or the one of the same folder that was interrupted."""
        found = self._client.get_experiment_by_name(EXPERIMENT)
        home = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        folder = "" if self._run.folder is None else str(self._run.folder.resolve())
        if resumed_from and folder:
            mark = folder.replace("'", "\\'")
            earlier = self._client.search_runs([home], f"tags.`{FOLDER}` = '{mark}'", max_results=1)
            if earlier:
                self._client.set_terminated(earlier[0].info.run_id, "RUNNING")
                return str(earlier[0].info.run_id)
        tags = {FOLDER: folder} if folder else {}
        made = self._client.create_run(home, run_name=self._run.name, tags=tags)
        for key, value in self._run.settings.items():
            self._client.log_param(made.info.run_id, key, str(value)[:LONGEST])
        return str(made.info.run_id)

    def finished_round(self, report: RoundReport) -> None:
        metric = import_module("mlflow.entities").Metric
        now = int(1000 * time.time())
        found = [metric(k, v, now, report.round) for k, v in of_report(report).items()]
        self._client.log_batch(self._id, metrics=found)

    def finished(self, result: Result) -> None:
        if self._client is None:  # it was only read, and was written when it was made
            return
        self._client.set_tag(self._id, "fedrift.status", result.status)
        self._client.set_tag(self._id, "fedrift.fingerprint", result.fingerprint)
        self._client.set_terminated(self._id, "FINISHED")

    def failed(self, interrupted: bool) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, "KILLED" if interrupted else "FAILED")


# TensorBoard: one event folder per run, `tensorboard --logdir` shows them together.


class TensorBoard:
    """Writes scalars by round, and the options as a text."""

    def __init__(self, run: Tracked) -> None:
        self._run = run
        self._writer: Any = None

    def started(self, plan: Plan) -> None:
        # Here and not before: the run's own folder must be empty when it is made.
        from torch.utils.tensorboard import SummaryWriter

        again = plan.resumed_from
        place = self._run.home("tensorboard") / self._run.name
        # What was written after the checkpoint is replaced by what comes now.
        self._writer = SummaryWriter(str(place), purge_step=again + 1 if again else None)
        if not again:
            lines = "".join(f"    {k} = {v}\n" for k, v in self._run.settings.items())
            self._writer.add_text("options", lines, 0)

    def finished_round(self, report: RoundReport) -> None:
        for key, value in of_report(report).items():
            self._writer.add_scalar(key, value, report.round)

    def finished(self, result: Result) -> None:
        if self._writer is not None:  # a run that was only read was written when it was made
            said = f"{result.status}, fingerprint {result.fingerprint}"
            self._writer.add_text("result", said, result.rounds[-1] if result.rounds else 0)
        self._close()

    def failed(self, interrupted: bool) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


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
            pass

            return TensorBoard(run)
        pass

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
