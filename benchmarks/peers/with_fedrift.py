"""fedrift: `fr.run` with a worker per core, as its documentation says."""

from __future__ import annotations

import time
from functools import partial

import fedrift as fr
from fedrift.engine.callbacks import Passive, Plan, RoundReport
from peers import work
from peers.notes import Notes

WORKERS = 2


class Watch(Passive):
    """Keeps every report, and when the last one came."""

    def __init__(self) -> None:
        self.began = self.last = 0.0
        self.reports: list[RoundReport] = []

    def on_start(self, plan: Plan) -> None:
        self.began = time.time()

    def on_round(self, report: RoundReport) -> None:
        self.last = time.time()
        self.reports.append(report)

    def tell(self, notes: Notes) -> None:
        """The ends of rounds by the engine's clock: from fold to fold.

        The next round begins while a model is evaluated, so reports come late; but between the
        folds of two rounds as many evaluations are done as rounds (from the second round on).
        """
        notes.began(self.began)
        for report in self.reports:
            at = self.last - self.reports[-1].seconds + report.seconds
            notes.ended(report.round, report.metrics["loss"], at)


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    data, watch = work.data(row), Watch()
    fr.run(
        row.algorithm,
        model=partial(work.model, row),
        clients=[data.of(client, row.samples) for client in range(row.clients)],
        test=(data.test_x, data.test_y),
        rounds=row.rounds,
        per_round=row.cohort,
        batch_size=row.batch,
        lr=row.lr,
        seed=seed,
        workers=WORKERS,
        callbacks=[watch],
    )
    watch.tell(notes)
    return True
