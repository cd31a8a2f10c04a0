"""Measures while a run goes on: cheap things from what passes by, others by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrift.analysis import classes
from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.drift import (
    Running,
    against_gradients,
    against_step,
    client_lengths,
    server_lengths,
)
from fedrift.analysis.examine import MEASURES, write_finding
from fedrift.analysis.next_round import Unwatched, Watch
from fedrift.analysis.saved import ROUNDS, analysis_folder, keep_weights, read_observed
from fedrift.config.analyses import PLAN, LivePlan
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.exchange import Exchange
from fedrift.core.flat import Vec
from fedrift.core.messages import pack
from fedrift.core.plain_files import write_file
from fedrift.engine import recorder
from fedrift.engine.callbacks import Callback, Plan, RoundReport
from fedrift.engine.plan import Task
from fedrift.engine.result import Result
from fedrift.figures import clients as pictures
from fedrift.storage import checkpoint
from fedrift.storage.client_state import Store
from fedrift.storage.jsonl import Record, dump, encode
from fedrift.storage.run_folder import ANALYSIS
from fedrift.storage.run_record import load

ENDINGS = ("svg", "png")
BRIEF = Options(images=500, clients=3, curved=0, steps=30)
"""A run must not wait long for what is measured on the way."""


@dataclass(frozen=True)
class _InRound:
    """Says of which round it is that something is measured."""

    watch: Watch
    round: int

    def begin(self, what: str, steps: int, seconds: float) -> None:
        self.watch.begin(f"{what} after round {self.round}", steps, seconds)

    def step(self) -> None:
        self.watch.step()


class LiveAnalysis(Callback):
    """Writes one line to `analysis/rounds.jsonl` for every round it looks at."""

    def __init__(
        self, plan: LivePlan, task: Task, folder: Path, watch: Watch | None = None
    ) -> None:
        self.plan, self.task, self.folder = plan, task, folder
        self._watch = watch or Unwatched()
        self._store: Store | None = None
        self._is_on = False
        self._rows: list[Record] = []
        self._running: dict[int, Running] = {}
        self._before: Vec | None = None  # the global model before the round, for its step
        counts = recorder.clients(task.split, task.problem.classes)["counts"]
        self._counts = None if counts is None else np.array(counts, np.float64)
        self._file = folder / ANALYSIS / ROUNDS

    def on_start(self, plan: Plan) -> None:
        """The run folder stands; what it holds of later rounds will be measured again."""
        self._is_on = not plan.is_origin  # another task's rounds
        if not self._is_on:
            return
        self._store = plan.states
        self._rows = list(load(self.folder).rounds) if plan.resumed_from else []
        self._before = self._started(plan) if "step" in self.plan.what else None
        analysis_folder(self.folder)
        write_file(self.folder / PLAN, f"{self.plan}\n")
        kept = [row for row in read_observed(self.folder) if row["round"] <= plan.resumed_from]
        write_file(self._file, "".join(dump(row) + "\n" for row in kept))

    def _started(self, plan: Plan) -> Vec | None:
        """The global model that the first round begins with; None if it is not here."""
        algorithm, first = self.task.algorithm, self.task.algorithm.server(self.task.problem)
        if not plan.resumed_from:
            return algorithm.model(first)
        point = checkpoint.read_newest(self.folder, first)
        here = point is not None and point.round == plan.resumed_from
        return algorithm.model(point.server) if point is not None and here else None

    def looks_at(self, round: int) -> bool:
        return self._is_on and self.plan.is_due(round)

    def on_reply(self, exchange: Exchange, client: int, weight: float, up: Any) -> None:
        """Called as replies are folded; only sums are kept of them."""
        update = update_of(up)
        if update is not None and "drift" in self.plan.what:
            self._running.setdefault(exchange.round + 1, Running()).add(update, weight)

    def on_round(self, report: RoundReport) -> None:
        if report.metrics:
            row = {"round": report.round, **report.metrics, "cohort": list(report.cohort)}
            self._rows.append(row | {"seconds": report.seconds})
        if self.looks_at(report.round):
            line: Record = {"round": report.round}
            for what in self.plan.what:
                numbers = self._measured(what, report)
                if numbers:
                    line[what] = encode(numbers)
            with self._file.open("a", encoding="utf-8", newline="\n") as file:
                file.write(dump(line) + "\n")
        if "step" in self.plan.what:
            self._before = self.task.algorithm.model(report.state)

    def _measured(self, what: str, report: RoundReport) -> Record:
        if what == "drift":
            return self._drift(report)
        if what == "classes":
            return self._classes(report)
        if what == "weights":
            views = self.task.problem.layout.views(report.weights)
            keep_weights(self.folder, report.round, self.task.problem.layout.names, views)
            return {}
        case, watch = self._case(report), _InRound(self._watch, report.round)
        if what == "gradients":
            watch.begin("client gradients", len(report.cohort), 0.0)
            return against_gradients(case, report.cohort, report.weights, watch.step)
        if what == "step":
            return self._step(case, report, watch)
        try:
            return MEASURES[what](case, replace(BRIEF, watch=watch)).numbers
        except NotMeasured as reason:
            return {"not_measured": str(reason)}

    def _drift(self, report: RoundReport) -> Record:
        running = self._running.pop(report.round, None)
        numbers: Record = {} if running is None else dict(running.summary())
        case = self._case(report)
        controls = server_lengths(case)
        controls |= {f"{k}_i": v for k, v in client_lengths(case, report.cohort).items()}
        return numbers | ({"controls": controls} if controls else {})

    def _step(self, case: Case, report: RoundReport, watch: Watch) -> Record:
        """Nothing of a round in which nobody took part."""
        if self._before is None or not report.cohort:
            return {}
        watch.begin("the gradient of all data", 1, 0.0)
        numbers = against_step(case, self._before, self.task.algorithm.model(report.state))
        watch.step()
        return numbers

    def _classes(self, report: RoundReport) -> Record:
        accuracy = report.metrics.get("classes")
        norms = classes.head_norms(self.task.problem, report.weights)
        numbers: Record = {"norms": norms} if norms else {}
        if not accuracy:
            return numbers
        numbers["accuracy"] = accuracy
        history = np.array([row["classes"] for row in self._rows if "classes" in row])
        numbers["forgetting"] = float(classes.forgetting(history).mean())
        if self._counts is not None:
            share = classes.presence([report.cohort], self._counts)
            numbers["presence"] = share[0].tolist()
            numbers["lift"] = classes.recency(np.array([accuracy]), classes.held_classes(share))[
                "lift"
            ]
        return numbers

    def _case(self, report: RoundReport) -> Case:
        return Case(
            name=str(self.task.about["algorithm"]),
            task=self.task,
            round=report.round,
            shown=self._shown(report),
            state=report.state,
            buffers=report.buffers,
            store=self._store,
            history=tuple(self._rows),
            snapshots={report.round: report.weights},
        )

    def _shown(self, report: RoundReport) -> EvaluatedModel:
        return self.task.algorithm.shown(report.state, self.task.problem, report.buffers)[""]

    def on_end(self, result: Result) -> None:
        """The curves of what was seen, as one more finding."""
        rows = read_observed(self.folder) if self._is_on else []
        if not rows:
            return
        name = str(self.task.about["algorithm"])
        finding = summary(name, rows, self.plan)
        case = Case(name, self.task, rows[-1]["round"], EvaluatedModel(result.weights))
        write_finding(case, self.folder, "during", finding, Options(), ENDINGS)


def update_of(up: Any) -> Vec | None:
    """w_i − w from a reply; None if it holds none (a gradient, statistics)."""
    packed = pack(up)
    delta = packed.get("delta")
    if isinstance(delta, Tensor):
        return delta
    normalised, length = packed.get("d"), packed.get("a")  # FedNova sends Δ_i/‖a_i‖₁ and ‖a_i‖₁
    return normalised * length if isinstance(normalised, Tensor) and length else None


def summary(name: str, rows: Sequence[Record], plan: LivePlan) -> Finding:
    """What was measured during a run, as curves."""
    numbers: Record = {"round": rows[-1]["round"], "every": plan.every, "rows": list(rows)}
    sentences = [f"Measured in {len(rows)} rounds while the run was going on ({plan})."]
    drift = [row["drift"] for row in rows if "distance" in row.get("drift", {})]
    if drift:
        sentences.append(
            f"Local models ended {drift[0]['distance']:.4g} away from the global one in the first "
            f"and {drift[-1]['distance']:.4g} in the last of these rounds."
        )
    steps = [row["step"] for row in rows if "epsilon" in row.get("step", {})]
    if steps:
        sentences.append(
            f"The global step was on average {np.mean([one['degrees'] for one in steps]):.0f}° off "
            f"the true gradient of all data, ε = {np.mean([one['epsilon'] for one in steps]):.3f}."
        )
    drawn = {
        key: draw
        for key, draw in pictures.LIVE_FIGURES.items()
        if pictures.has_numbers_for(key, rows)
    }
    figures = {key: partial(draw, runs={name: numbers}) for key, draw in drawn.items()}
    return replace(Finding("During the run", tuple(sentences), numbers), figures=figures)
