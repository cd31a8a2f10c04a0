"""Weights & Biases: on its server, or in files until `wandb sync` (WANDB_MODE=offline)."""

from __future__ import annotations

import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

from fedrift.engine.callbacks import Plan, RoundReport
from fedrift.engine.result import Result
from fedrift.engine.trackers.tracker import Tracked, Tracker, of_report
from fedrift.errors import DONE, FAILED, INTERRUPTED, RunError

PROJECT = "fedrift"  # unless WANDB_PROJECT names another
MARK = "wandb.txt"  # in the run folder: under which id it goes on


class WandB(Tracker):
    """Writes options, metrics by round, and how the run ended."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        self._open: Any = None

    def on_start(self, plan: Plan) -> None:
        if self._open is not None:  # a fork goes on where its origin has ended
            return
        wandb: Any = import_module("wandb")  # by name: it is optional, and types come with it
        if self.run.place is not None:
            Path(self.run.place).mkdir(parents=True, exist_ok=True)
        # Otherwise it would catch what is printed, the progress bar included.
        settings = wandb.Settings(console="off", quiet=True)
        project = PROJECT if settings.project is None else settings.project
        try:
            self._open = wandb.init(
                project=project,
                id=self._id(plan.resumed_from),
                name=self.run.name,
                dir=self.run.place,  # not the run folder: it makes links, which no run may hold
                config={key: _plain(value) for key, value in self.run.settings.items()},
                resume="allow" if plan.resumed_from and settings.mode != "offline" else None,
                reinit="create_new",  # several runs of a comparison are open at a time
                settings=settings,
            )
        except wandb.Error as error:
            raise RunError(f"track 'wandb' cannot be used: {error}") from error

    def _id(self, resumed_from: int) -> str:
        """A new one, or that of the same folder whose run goes on."""
        mark = None if self.run.folder is None else self.run.folder / MARK
        if mark is not None and resumed_from and mark.is_file():
            return mark.read_text(encoding="utf-8").strip()
        made = uuid.uuid4().hex[:8]
        if mark is not None:
            mark.write_text(f"{made}\n", encoding="utf-8")
        return made

    def on_round(self, report: RoundReport) -> None:
        self._open.log(of_report(report), step=report.round)

    def on_end(self, result: Result) -> None:
        self._close(result.status, DONE, fingerprint=result.fingerprint)

    def on_error(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._close("interrupted", INTERRUPTED)
        else:
            self._close("failed", FAILED)

    def _close(self, status: str, code: int, **more: str) -> None:
        if self._open is not None:  # a run that was only read was written when it was made
            self._open.summary.update({"status": status, **more})
            self._open.finish(exit_code=code)
            self._open = None


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
