"""What every tracker is given of a run, whatever it makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrift.engine.callbacks import Passive, RoundReport

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


class Tracker(Passive):
    """Follows one run. It may end without having been started: what it opens, it closes."""

    def __init__(self, run: Tracked) -> None:
        self.run = run


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
    measured = {k: v for k, v in values(report.metrics).items() if k not in report.training}
    return {
        **{f"test/{key}": value for key, value in measured.items()},
        **{f"train/{key.removeprefix('train_')}": v for key, v in report.training.items()},
        "round/clients": float(len(report.cohort)),
        "round/bytes_down": float(cost.bytes_down),
        "round/bytes_up": float(cost.bytes_up),
        "round/gradients": float(cost.gradients),
        "seconds": report.seconds,
    }
