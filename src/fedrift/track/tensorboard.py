"""TensorBoard: one event folder per run, `tensorboard --logdir` shows them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrift.track.told import Tracked, of_report

if TYPE_CHECKING:
    from fedrift.result import Result
    from fedrift.rounds import Plan, RoundReport


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
