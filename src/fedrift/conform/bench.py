"""Where algorithms are tried out: a trial that fits most, a run of it, and workers for all."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.forkserver import ensure_running

from fedrift import backends
from fedrift.backends.pool import Pool
from fedrift.conform.problem import Trial, classifier, with_model
from fedrift.conform.runs import run
from fedrift.conform.subject import Subject
from fedrift.conform.watched_run import Inside
from fedrift.core.isolation import one_thread

WORKERS = 2
ROUNDS = 6
PRELOADED = ["fedrift.backends.worker", "fedrift.conform.generic"]


class Bench:
    """Serves one algorithm after another; what several columns look at is run once."""

    def __init__(self, trial: Trial, pool: Pool, is_usual: bool = True) -> None:
        self.trial, self.pool, self.is_usual = trial, pool, is_usual
        self._watched: tuple[Subject, Inside] | None = None
        self._plain: tuple[Subject, str] | None = None

    def watched(self, subject: Subject) -> Inside:
        """A finished run of the trial of which everything was seen."""
        if self._watched is None or self._watched[0] is not subject:
            inside = Inside(subject, self.trial)
            inside.run()
            self._watched = subject, inside
        return self._watched[1]

    def fingerprint(self, subject: Subject) -> str:
        """What an ordinary run of the trial in this process ends with."""
        if self._plain is None or self._plain[0] is not subject:
            self._plain = subject, run(subject, self.trial).fingerprint
        return self._plain[1]


@contextmanager
def open_bench(model: str | None = None, adapter: str | None = None) -> Generator[Bench]:
    """A bench with fresh workers, which are ended afterwards; `model` by name, `adapter` on it."""
    trial = classifier() if model is None else with_model(model)
    trial = replace(trial, rounds=ROUNDS, adapter=adapter)
    _prestart()
    with one_thread():
        pool = Pool(WORKERS)
        try:
            yield Bench(trial, pool, model is None and adapter is None)
        finally:
            pool.close()


def _prestart() -> None:
    """Let the fork server import all that its processes need, once for all of them."""
    if backends.start_method() == "forkserver":
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        with backends.hidden_main():
            ensure_running()
