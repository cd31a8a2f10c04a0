"""What happens in a federation, as it happens: to the log, and to a file beside the run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrift.engine.callbacks import Callback, Plan, RoundReport
from fedrift.engine.result import Result
from fedrift.federation.config import FederationConfig

EVENTS = "federation.jsonl"


class EventLog(Callback):
    """Tells of rounds and of what goes on between server and nodes."""

    def __init__(
        self, config: FederationConfig, folder: Path | None, say: Callable[[str], None]
    ) -> None:
        self._config, self._folder, self._say = config, folder, say
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def on_start(self, plan: Plan) -> None:
        self._tell(
            {
                "event": "started",
                "algorithm": str(self._config.spec.algorithm_named),
                "rounds": self._config.spec.rounds,
                "clients": plan.clients,
                "parameters": plan.parameters,
                "after": plan.resumed_from,
            }
        )

    def on_round(self, report: RoundReport) -> None:
        row: dict[str, Any] = {"event": "round", "round": report.round, "seconds": report.seconds}
        row |= {k: v for k, v in report.metrics.items() if isinstance(v, (int, float))}
        row |= {"asked": len(report.cohort), "up": report.cost.bytes_up}
        self._tell(row)

    def on_end(self, result: Result) -> None:
        plain = {k: v for k, v in result.summary().items() if isinstance(v, (int, float, str))}
        self._tell({"event": "finished", **plain})

    def failed(self, error: Exception) -> None:
        """Also of what went wrong before there was a run."""
        self._tell({"event": "failed", "text": f"{type(error).__name__}: {error}"})

    def note(self, text: str) -> None:
        self._tell({"event": "note", "text": text})

    def _tell(self, row: dict[str, Any]) -> None:
        self._say(row["text"] if row["event"] == "note" else json.dumps(row))
        if self._folder is not None:
            line = json.dumps({"time": round(time.time(), 3), **row})
            with (self._folder / EVENTS).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
