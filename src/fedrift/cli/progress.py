"""What a run shows while it runs: what it is about to do, then every round, on standard error."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedrift.cli.console import console, loss_text
from fedrift.config.spec import Spec
from fedrift.engine.callbacks import Passive
from fedrift.grammar import parse
from fedrift.report.numbers import bytes_text, seconds_text
from fedrift.storage.run_folder import is_own_column

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedrift.engine.callbacks import Plan, RoundReport


# What `fedrift analyse` shows while it works: how long it may take, then a bar.

LONG = 5.0  # seconds from which on the reader is told
TRIED = 1.0  # seconds after which the pace so far says more than an estimate


class Watch:
    """Says the estimate before long work; a bar on a terminal."""

    def __init__(self, silent: bool, beside: Console | None = None) -> None:
        """`beside` is a screen that shows another bar already."""
        self._silent, self._screen = silent, beside or console(errors=True)
        self._has_bar = beside is None and self._screen.is_terminal
        self._about = self._what = ""
        self._steps, self._done, self._start = 0, 0, 0.0
        self._is_told = True
        self._bar: Any = None

    def say(self, text: str) -> None:
        if not self._silent:
            self._screen.print(text)

    def turn(self, run: str, what: str) -> None:
        """The next measurement begins."""
        self.close()
        self._about = f"{run}: {what}"

    def begin(self, what: str, steps: int, seconds: float) -> None:
        self.close()
        self._what, self._steps, self._done = what, steps, 0
        self._start, self._is_told = time.perf_counter(), self._silent
        if seconds >= LONG:
            self._tell(seconds)

    def step(self) -> None:
        self._done += 1
        if self._bar is not None:
            task = self._bar.tasks[0]
            self._bar.update(task.id, advance=1, total=max(task.total, self._done))
        elif not self._is_told:  # slower than it was thought to be, or nobody knew
            passed = time.perf_counter() - self._start
            whole = passed * max(1.0, self._steps / self._done)
            if passed >= TRIED and whole >= LONG and self._done < self._steps:
                self._tell(whole)

    def _tell(self, seconds: float) -> None:
        if self._is_told:
            return
        self._is_told = True
        about = f"{self._about}: " if self._about else ""
        self.say(f"{about}{self._steps:,} {self._what}, about {seconds_text(seconds)}")
        if self._has_bar:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (MofNCompleteColumn(), BarColumn(24), TimeElapsedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._screen)
            self._bar.add_task("", total=self._steps, completed=self._done)
            self._bar.start()

    def close(self) -> None:
        """Leaves the terminal as it was; it can be closed twice."""
        self._is_told = True
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


@contextmanager
def watching(*, silent: bool) -> Generator[Watch]:
    watch = Watch(silent)
    try:
        yield watch
    finally:
        watch.close()


class Silent(Passive):
    """Counts rounds and says nothing."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.finished = 0
        self.measuring: Watch | None = None
        """Is told of long measurements during the run."""
        self.has_started = False

    def on_start(self, plan: Plan) -> None:
        self.has_started = True
        self.finished = plan.resumed_from

    def on_round(self, report: RoundReport) -> None:
        self.finished = report.round

    def close(self) -> None:
        """Leaves the terminal as it was; it can be closed twice."""


class Telling(Passive):
    """What tells of a run on standard error has in common."""

    def __init__(self, spec: Spec) -> None:
        self.counter = Silent(spec)
        self.screen = console(errors=True)
        self.measuring = Watch(silent=False, beside=self.screen)

    @property
    def has_started(self) -> bool:
        return self.counter.has_started

    @property
    def finished(self) -> int:
        return self.counter.finished


class Lines(Telling):
    """One line per evaluated round: for logs and pipes."""

    def on_start(self, plan: Plan) -> None:
        self.counter.on_start(plan)
        for name, text in described(self.counter.spec, plan):
            self.screen.print(f"{name:<10} {text}")

    def on_round(self, report: RoundReport) -> None:
        self.counter.on_round(report)
        if text := dropped(report):
            self.screen.print(text)
        if not report.metrics:
            return
        words = [
            f"round {report.round}/{self.counter.spec.rounds}",
            *_words(report.metrics),
            seconds_text(report.seconds),  # when it ended: what is told late was not done late
        ]
        self.screen.print("  ".join(words))

    def close(self) -> None:
        """Nothing to put back."""


class Live(Telling):
    """A bar with the round, the last accuracy and loss, the time passed and the time left."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.bar: Progress | None = None

    def on_start(self, plan: Plan) -> None:
        from rich.text import Text

        from fedrift.engine.progress import bar

        self.counter.on_start(plan)
        for name, text in described(self.counter.spec, plan):
            self.screen.print(Text.assemble((f"{name:<10} ", "dim"), text))
        self.bar = bar(self.screen, "round")
        rounds = self.counter.spec.rounds
        self.bar.add_task("", total=rounds, completed=plan.resumed_from, said="")
        self.bar.start()

    def on_round(self, report: RoundReport) -> None:
        self.counter.on_round(report)
        if self.bar is None:
            return
        if text := dropped(report):
            self.screen.print(text)
        task = self.bar.task_ids[0]
        if report.metrics:
            self.bar.update(task, said="  ".join(_words(report.metrics)))
        self.bar.update(task, completed=report.round)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


Watcher = Silent | Lines | Live


def watcher(spec: Spec, *, silent: bool) -> Watcher:
    """The fitting way to show a run."""
    if silent:
        return Silent(spec)
    return Live(spec) if console(errors=True).is_terminal else Lines(spec)


def dropped(report: RoundReport) -> str:
    """Who sent something that is no number, in a line of the log; empty if nobody did."""
    names = report.nonfinite
    if not names:
        return ""
    few = ", ".join(map(str, names[:10])) + (", …" if len(names) > 10 else "")
    return f"round {report.round}: not finite and left out: the replies of clients {few}"


SAID = {
    "accuracy": "accuracy",
    "loss": "loss",
    "global_accuracy": "server's model",
    "client_accuracy": "clients",
    "client_accuracy_worst": "worst tenth",
    "domain_accuracy_unseen": "unseen domains",
    "train_loss": "train loss",
}
"""Columns of a round that are shown while it runs, and what they are called."""
MOST_OWN = 3  # own metrics and logs of the algorithm beside them


def _words(metrics: Mapping[str, Any]) -> list[str]:
    own = metrics.get("client_accuracy")
    if own is not None and own == metrics.get("accuracy"):  # one of them is the other
        metrics = {name: value for name, value in metrics.items() if name != "client_accuracy"}
    own = [
        f"{name} {value:.4g}"
        for name, value in metrics.items()
        if isinstance(value, float) and is_own_column(name)
    ]
    return [
        f"{word} {loss_text(metrics[name]) if name == 'loss' else format(metrics[name], '.4f')}"
        for name, word in SAID.items()
        if isinstance(metrics.get(name), float)
    ] + own[:MOST_OWN]


def described(spec: Spec, plan: Plan) -> list[tuple[str, str]]:
    """What will run, in a few lines of name and text."""
    shift = f", shifted by {spec.shift}" if spec.shift else ""
    rows = [
        ("algorithm", str(spec.algorithm_named)),
        ("data", f"{spec.data}: {plan.samples:,} samples, {_partition(spec)}{shift}"),
        ("model", f"{spec.model}: {plan.parameters:,} parameters"),
        ("cohort", f"{_cohort(spec, plan)}, {_rounds(spec)}, seed {spec.seed}"),
        ("local", _local(spec, plan)),
        ("workers", str(plan.workers) if plan.workers else "none: in this process"),
        ("memory", _memory(plan)),
    ]
    if plan.resumed_from:
        rows.append(("resumed", f"after round {plan.resumed_from:,}"))
    return [*rows, *(("note", note) for note in plan.notes)]


def _partition(spec: Spec) -> str:
    """As it is written, with the alpha that takes the place of its own."""
    if spec.alpha is None:
        return spec.partition
    named = parse(spec.partition, "partition")
    options = {key: value for key, value in named.options.items() if key != "alpha"}
    return str(replace(named, value=f"{spec.alpha:g}", options=options))


def _rounds(spec: Spec) -> str:
    return f"{spec.rounds:,} round{'' if spec.rounds == 1 else 's'}"


def _cohort(spec: Spec, plan: Plan) -> str:
    if spec.participants is not None:
        return f"as listed, {plan.cohort:.3g} of {plan.clients:,} clients on average"
    how = "" if spec.sampling == "fixed" else f" ({spec.sampling})"
    if plan.cohort >= plan.clients:
        return f"all {plan.clients:,} clients{how}"
    return f"{plan.cohort:.3g} of {plan.clients:,} clients a round{how}"


def _local(spec: Spec, plan: Plan) -> str:
    said = {k: v for k, v in spec.local_work().items() if v is not None} if plan.local else {}
    work = {k: v for k, v in {**plan.local, **said}.items() if v is not None}
    words = [f"{key.replace('_', ' ')} {_short(value)}" for key, value in work.items()]
    words += [f"augment {', '.join(spec.augment)}"] if spec.augment else []
    return ", ".join(words) or "no training"


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        text = ",".join(map(str, value))  # type: ignore[reportUnknownArgumentType]
    return text if len(text) <= 40 else f"{text[:37]}…"


def _memory(plan: Plan) -> str:
    disk = f", {bytes_text(plan.disk_bytes)} on disk" if plan.disk_bytes else ""
    return f"about {bytes_text(plan.memory_bytes)}{disk}"
