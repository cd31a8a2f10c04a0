"""TensorBoard: one event folder per run, `tensorboard --logdir` shows them together."""

from __future__ import annotations

from typing import Any

from fedrift.engine.callbacks import Plan, RoundReport
from fedrift.engine.result import Result
from fedrift.engine.trackers.tracker import Tracked, Tracker, of_report


class TensorBoard(Tracker):
    """Writes scalars by round, and the options as a text."""

    def __init__(self, run: Tracked) -> None:
        super().__init__(run)
        self._writer: Any = None

    def on_start(self, plan: Plan) -> None:
        # Here and not before: the run's own folder must be empty when it is made.
        from torch.utils.tensorboard import SummaryWriter

        again = plan.resumed_from
        place = self.run.home("tensorboard") / self.run.name
        # What was written after the checkpoint is replaced by what comes now.
        self._close()  # of the origin of a fork
        self._writer = SummaryWriter(str(place), purge_step=again + 1 if again else None)
        if not again:
            lines = "".join(f"    {k} = {v}\n" for k, v in self.run.settings.items())
            self._writer.add_text("options", lines, 0)

    def on_round(self, report: RoundReport) -> None:
        for key, value in of_report(report).items():
            self._writer.add_scalar(key, value, report.round)

    def on_end(self, result: Result) -> None:
        if self._writer is not None:  # a run that was only read was written when it was made
            text = f"{result.status}, fingerprint {result.fingerprint}"
            self._writer.add_text("result", text, result.rounds[-1] if result.rounds else 0)
        self._close()

    def on_error(self, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
