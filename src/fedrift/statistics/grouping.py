"""Runs that differ in nothing but the seed are one group: a method in a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.grammar import parse
from fedrift.statistics.measured import Measured
from fedrift.statistics.naming import (
    Method,
    Setting,
    method_of,
    named_methods,
    named_settings,
    setting_of,
)


@dataclass(frozen=True, eq=False)
class Group:
    """The seeds of one method in one setting. `unfinished` runs stand apart if others finished."""

    method: str
    setting: Setting
    runs: tuple[Measured, ...]
    unfinished: tuple[Measured, ...] = ()

    @property
    def is_finished(self) -> bool:
        return all(run.is_finished for run in self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def spec(self) -> Spec:
        return self.runs[0].spec


@dataclass(frozen=True, eq=False)
class Grouped:
    """All groups of a report, and the sentences that had to be said on the way."""

    groups: tuple[Group, ...]
    problems: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.method for group in self.groups))

    @property
    def settings(self) -> tuple[Setting, ...]:
        found = dict.fromkeys(group.setting for group in self.groups)
        return tuple(sorted(found, key=lambda setting: setting.order))

    @property
    def runs(self) -> tuple[Measured, ...]:
        """The runs that the statistics use."""
        return tuple(run for group in self.groups for run in group.runs)

    def of(self, setting: Setting) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.setting == setting)

    def get(self, method: str, setting: Setting) -> Group | None:
        return next((group for group in self.of(setting) if group.method == method), None)


def group(runs: Sequence[Measured]) -> Grouped:
    """Groups in the order of their first run; refuses runs on different data."""
    if not runs:
        raise InputError("there is no run to report on; name run folders or comparison folders")
    runs = _alike(runs)
    _check_same_test(runs)
    found: dict[tuple[Method, Setting], list[Measured]] = {}
    for run in runs:
        found.setdefault((method_of(run), setting_of(run)), []).append(run)
    problems: list[str] = []
    settings = named_settings(setting for _, setting in found)
    groups = [
        _group(name, settings[setting], _once(held, problems))
        for name, ((_, setting), held) in zip(
            named_methods(list(found)), found.items(), strict=True
        )
    ]
    return Grouped(tuple(groups), tuple(problems))


def _group(method: str, setting: Setting, runs: Sequence[Measured]) -> Group:
    done = tuple(run for run in runs if run.is_finished)
    left = tuple(run for run in runs if not run.is_finished)
    return Group(method, setting, done, left) if done else Group(method, setting, left)


def _alike(runs: Sequence[Measured]) -> list[Measured]:
    """Runs that were never evaluated are taken to be on the test set of the others."""
    model = next((run for run in runs if not run.is_blank), None)
    if model is None:
        return list(runs)
    unknown = None if model.accuracy is None else np.full(1, np.nan)
    known = {"samples": model.samples, "class_total": model.class_total, "accuracy": unknown}
    return [replace(run, **known) if run.is_blank else run for run in runs]


def _check_same_test(runs: Iterable[Measured]) -> None:
    runs = list(runs)
    data = {str(parse(run.spec.data, "data")) for run in runs}
    if len(data) > 1:
        raise InputError(
            f"the runs are on different data sets ({', '.join(sorted(data))}), which no table "
            "can compare; make one report for each"
        )
    tests = {(run.samples, run.class_total, run.accuracy is None): run for run in runs}
    if len(tests) > 1:
        one, other = list(tests.values())[:2]
        raise InputError(
            f"'{one.name}' and '{other.name}' were evaluated on different test sets, which no "
            "table can compare; make one report for each"
        )


def _once(runs: Sequence[Measured], problems: list[str]) -> list[Measured]:
    """By seed; of two runs that are the same the finished one, else the first."""
    kept: dict[int, Measured] = {}
    for run in runs:
        other = kept.setdefault(run.seed, run)
        if other is run:
            continue
        if run.is_finished and not other.is_finished:
            kept[run.seed], run, other = run, other, run
        differ = run.fingerprint and other.fingerprint and run.fingerprint != other.fingerprint
        problems.append(
            f"'{run.name}' is left out: '{other.name}' has the same options and seed"
            + (", but another fingerprint" if differ else "")
        )
    return [kept[seed] for seed in sorted(kept)]
