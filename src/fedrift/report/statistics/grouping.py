"""Runs that differ in nothing but the seed are one group: a method in a setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrift.config.own_code import IN_PYTHON
from fedrift.config.participation import sampling_of
from fedrift.config.spec import FAULTS, HOW, LOCAL_WORK, SETTINGS, TIME, Spec
from fedrift.errors import InputError
from fedrift.grammar import Named, parse
from fedrift.report.statistics.measured import Measured

# Told by the columns of their own, or without a say in the result.
_SHOWN = "algorithm data partition alpha per_round fraction sampling participants weights".split()
_WHERE = "data_dir seed workers backend out".split()
TASK = [key for key in SETTINGS if key not in (*LOCAL_WORK, *_SHOWN, *_WHERE)]
_CONDUCT = {key for key in TASK if SETTINGS[key].group in (TIME, FAULTS, HOW)}
"""What can belong to a method: how it is run, not what on."""

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Setting:
    """One column of a paper's table."""

    partition: str
    participation: str
    task: Options
    shown: str = ""
    """What of the task differs between the settings of a report, in words."""
    short: str = ""
    """What tells it apart from the other settings of a report; empty if there is no other."""

    @property
    def full(self) -> str:
        """`dirichlet 0.1 · 3 of 10 clients`."""
        return " · ".join(filter(None, (self.partition, self.participation, self.shown)))

    @property
    def label(self) -> str:
        return self.short or self.full

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts by numbers: alpha 0.1 before 1, 2 clients before 10, all of them last."""
        asked = natural(self.participation.removeprefix("all "))
        return asked, natural(self.shown), natural(self.partition)


@dataclass(frozen=True)
class Method:
    """An algorithm, its local work and the options that a comparison gives each for itself;
    `label` is what the comparison calls it, if anything."""

    algorithm: str
    work: Options
    label: str = ""

    @property
    def text(self) -> str:
        return self.label or self.algorithm

    @property
    def head(self) -> str:
        """The name without options: `swa(fedasam)`."""
        return self.label or _head(parse(self.algorithm, "algorithm"))


def natural(text: str) -> tuple[tuple[float, str], ...]:
    """A key that puts 2 before 10."""
    pieces = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return tuple((float(p), "") if i % 2 else (-1.0, p) for i, p in enumerate(pieces) if p)


def _head(named: Named) -> str:
    name = named.code or named.name
    return name if named.inner is None else f"{name}({_head(named.inner)})"


def method_of(run: Measured) -> Method:
    """What is compared."""
    spec = run.spec
    keys = (*LOCAL_WORK, *sorted(run.own & _CONDUCT))
    work = [(key, getattr(spec, key)) for key in keys if getattr(spec, key) is not None]
    return Method(str(spec.algorithm_named), tuple(work), run.label)


def setting_of(run: Measured) -> Setting:
    """What it is compared on."""
    own = run.own & _CONDUCT
    keys = (*TASK, "participants")
    task = {key: None if key in own else getattr(run.spec, key) for key in keys}
    if run.clients is not None:
        task["clients"] = len(run.clients.sizes)
    return Setting(_partition(run), _participation(run), tuple(task.items()))


def _partition(run: Measured) -> str:
    """`dirichlet 0.1`, whether the number came with the name or as alpha."""
    if run.spec.data == IN_PYTHON:
        return run.clients.scheme if run.clients and run.clients.scheme else "own clients"
    named = parse(run.spec.partition, "partition")
    value = named.value or named.options.get("alpha")
    value = value if run.spec.alpha is None else f"{run.spec.alpha:g}"
    others = [f"{k}={v}" for k, v in sorted(named.options.items()) if k != "alpha"]
    return " ".join(filter(None, (named.name, value, *others)))


SAMPLED = {
    "cyclic": " in turns",
    "size": " by size",
    "available": " that are there",
    "power": " by loss",
}


def _participation(run: Measured) -> str:
    """`3 of 10 clients`, `all 10 clients`."""
    spec = run.spec
    clients = len(run.clients.sizes) if run.clients else _wanted(spec)
    everybody = f"{clients} clients" if clients else "clients"
    if spec.participants is not None:
        return f"a schedule of {everybody}"
    if spec.sampling == "bernoulli":
        share = spec.fraction or (spec.per_round or 1) / (clients or 1)
        return f"each of {everybody} with probability {share:g}"
    size, how = _cohort(run, spec, clients), sampling_of(spec.sampling)
    if how.code is not None:
        return f"of {everybody} those that {spec.sampling} chooses"
    if size is None or size == clients:
        return f"all {everybody}"
    if clients is None:
        return f"{size} clients a round"
    return f"{size} of {everybody}{SAMPLED.get(how.kind, '')}"


def _wanted(spec: Spec) -> int | None:
    return None if spec.data == IN_PYTHON else spec.wanted_clients


def _cohort(run: Measured, spec: Spec, clients: int | None) -> int | None:
    """How many take part in a round; None if all."""
    if spec.fraction is not None and clients:
        return max(1, int(spec.fraction * clients + 1e-9))
    if spec.per_round is None and spec.data == IN_PYTHON:  # its spec may not say
        sizes = {len(cohort) for cohort in run.cohorts}
        return sizes.pop() if len(sizes) == 1 else None
    return spec.per_round


def named_settings(settings: Iterable[Setting]) -> dict[Setting, Setting]:
    """Each with the words that tell it apart from the others."""
    distinct = list(dict.fromkeys(settings))
    tasks = [dict(setting.task) for setting in distinct]
    varying = [key for key in TASK if len({str(task[key]) for task in tasks}) > 1]
    if len({(s.partition, s.participation) for s in distinct}) < len(distinct) and not varying:
        varying = ["participants"]
    divided = len({setting.partition for setting in distinct}) > 1
    attended = len({setting.participation for setting in distinct}) > 1
    named: dict[Setting, Setting] = {}
    for setting, task in zip(distinct, tasks, strict=True):
        words = ", ".join(f"{key} {spelled(task[key])}" for key in varying if key != "clients")
        differing = [setting.partition * divided, setting.participation * attended, words]
        short = " · ".join(filter(None, differing))
        named[setting] = replace(setting, shown=words, short=short)
    return named


def named_methods(pairs: Sequence[tuple[Method, Setting]]) -> list[str]:
    """The algorithm's text: shorter where its options vary with the setting (tuned values, say),
    longer where it does not tell two groups of one setting apart."""
    texts = [method.text for method, _ in pairs]
    for head in {method.head for method, _ in pairs}:
        mine = [i for i, (method, _) in enumerate(pairs) if method.head == head]
        settings = [pairs[i][1] for i in mine]
        if len({texts[i] for i in mine}) > 1 and len(set(settings)) == len(settings):
            for i in mine:
                texts[i] = f"{head} (options by setting)"
    keys = {text: _distinguishing(text, texts, pairs) for text in set(texts)}
    works = [dict(method.work) for method, _ in pairs]
    return [
        text + "".join(f" {key}={spelled(work.get(key))}" for key in keys[text])
        for text, work in zip(texts, works, strict=True)
    ]


def _distinguishing(
    text: str, texts: Sequence[str], pairs: Sequence[tuple[Method, Setting]]
) -> list[str]:
    """The local work and own options in which groups of one name differ within a setting."""
    rivals: dict[Setting, list[dict[str, Any]]] = {}
    for other, (method, setting) in zip(texts, pairs, strict=True):
        if other == text:
            rivals.setdefault(setting, []).append(dict(method.work))
    known = dict.fromkeys(key for works in rivals.values() for work in works for key in work)
    order = (*LOCAL_WORK, *(key for key in known if key not in LOCAL_WORK))
    return [
        key
        for key in order
        if any(len({str(work.get(key)) for work in works}) > 1 for works in rivals.values())
    ]


def spelled(value: object) -> str:
    """A value of a spec in a label."""
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    text = "as usual" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


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
        settings = dict.fromkeys(group.setting for group in self.groups)
        return tuple(sorted(settings, key=lambda setting: setting.order))

    @property
    def runs(self) -> tuple[Measured, ...]:
        """The runs that the statistics use."""
        return tuple(run for group in self.groups for run in group.runs)

    def of(self, setting: Setting) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.setting == setting)

    def get(self, method: str, setting: Setting) -> Group | None:
        return next((group for group in self.of(setting) if group.method == method), None)


def group_runs(runs: Sequence[Measured]) -> Grouped:
    """Groups in the order of their first run; refuses runs on different data."""
    if not runs:
        raise InputError("there is no run to report on; name run folders or comparison folders")
    runs = _alike(runs)
    _check_same_test(runs)
    runs_by_group: dict[tuple[Method, Setting], list[Measured]] = {}
    for run in runs:
        runs_by_group.setdefault((method_of(run), setting_of(run)), []).append(run)
    problems: list[str] = []
    settings = named_settings(setting for _, setting in runs_by_group)
    groups = [
        _group(name, settings[setting], _once(members, problems))
        for name, ((_, setting), members) in zip(
            named_methods(list(runs_by_group)), runs_by_group.items(), strict=True
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
    known["is_judged_at_clients"] = model.is_judged_at_clients
    return [replace(run, **known) if run.is_blank else run for run in runs]


def _check_same_test(runs: Iterable[Measured]) -> None:
    runs = list(runs)
    data = {str(parse(run.spec.data, "data")) for run in runs}
    if len(data) > 1:
        raise InputError(
            f"the runs are on different data sets ({', '.join(sorted(data))}), which no table "
            "can compare; make one report for each"
        )
    at_clients = [run for run in runs if run.is_judged_at_clients]
    elsewhere = [run for run in runs if not run.is_judged_at_clients]
    if at_clients and elsewhere:
        raise InputError(
            f"'{at_clients[0].name}' is judged by the clients' own test data and "
            f"'{elsewhere[0].name}' by the server's; run it again with --eval-clients, or make one "
            "report for each"
        )
    tests = {(run.samples, run.class_total, run.accuracy is None): run for run in elsewhere}
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
