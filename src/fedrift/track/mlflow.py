"""MLflow: runs in a SQLite file, or on the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedrift.errors import RunError
from fedrift.track.told import Tracked, of_report

if TYPE_CHECKING:
    from fedrift.result import Result
    from fedrift.rounds import Plan, RoundReport

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
