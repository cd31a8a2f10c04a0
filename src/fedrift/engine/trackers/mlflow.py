"""MLflow: runs in a SQLite file, or on the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib import import_module
from typing import Any

from fedrift.engine.callbacks import Plan, RoundReport
from fedrift.engine.result import Result
from fedrift.engine.trackers.tracker import Tracked, Tracker, of_report
from fedrift.errors import RunError

EXPERIMENT, FOLDER = "fedrift", "fedrift.folder"
FILE = "mlflow.db"
LONGEST = 500  # characters of a parameter that every store takes
_opening = threading.Lock()  # a new file gets its tables from one run alone


class MLflow(Tracker):
    """Writes options, metrics by round, and how the run ended."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        self._client: Any = None
        self._id = ""

    def on_start(self, plan: Plan) -> None:
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
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri and self.run.place is None:
            return uri
        home = self.run.home(".")
        home.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{(home / FILE).resolve()}"

    def _open(self, resumed_from: int) -> str:
        """A new run, or the one of the same folder that was interrupted."""
        known = self._client.get_experiment_by_name(EXPERIMENT)
        home = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        folder = "" if self.run.folder is None else str(self.run.folder.resolve())
        if resumed_from and folder:
            mark = folder.replace("'", "\\'")
            earlier = self._client.search_runs([home], f"tags.`{FOLDER}` = '{mark}'", max_results=1)
            if earlier:
                self._client.set_terminated(earlier[0].info.run_id, "RUNNING")
                return str(earlier[0].info.run_id)
        tags = {FOLDER: folder} if folder else {}
        made = self._client.create_run(home, run_name=self.run.name, tags=tags)
        for key, value in self.run.settings.items():
            self._client.log_param(made.info.run_id, key, str(value)[:LONGEST])
        return str(made.info.run_id)

    def on_round(self, report: RoundReport) -> None:
        metric = import_module("mlflow.entities").Metric
        now = int(1000 * time.time())
        metrics = [metric(k, v, now, report.round) for k, v in of_report(report).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def on_end(self, result: Result) -> None:
        if self._client is None:  # it was only read, and was written when it was made
            return
        self._client.set_tag(self._id, "fedrift.status", result.status)
        self._client.set_tag(self._id, "fedrift.fingerprint", result.fingerprint)
        self._client.set_terminated(self._id, "FINISHED")

    def on_error(self, error: BaseException) -> None:
        if self._client is not None:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            self._client.set_terminated(self._id, "KILLED" if is_interrupted else "FAILED")
