"""Runs that differ in nothing but the seed are one group: a method in a setting.

A method is the algorithm with its options and the local work; a setting is the rest of the task:
how the data are divided, who takes part, the model, the number of rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.grammar import parse
from fedrift.measured import Measured

LOCAL_WORK = "epochs steps batch_size lr momentum weight_decay clip schedule".split()
TASK = "clients model head shift rounds augment dtype device eval_every".split()
IN_PYTHON = "python"  # stands for data that were given as objects

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Setting:
    """One column of a paper's table."""

    partition: str
    participation: str
    task: Options
    shown: str = ""
    """What of the task differs between the settings of a report, in words."""

    @property
    def label(self) -> str:
        """`dirichlet 0.1 · 3 of 10 clients`."""
        return " · ".join(filter(None, (self.partition, self.participation, self.shown)))


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
    problems: tuple[str, ...]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.method for group in self.groups))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """In the order of their numbers: alpha 0.1 before 1, 2 clients before 10."""
        found = dict.fromkeys(group.setting for group in self.groups)
        return tuple(
            sorted(
                found,
                key=lambda s: (natural(s.participation), natural(s.shown), natural(s.partition)),
            )
        )

    def of(self, setting: Setting) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.setting == setting)

    def get(self, method: str, setting: Setting) -> Group | None:
        return next((group for group in self.of(setting) if group.method == method), None)


def natural(text: str) -> tuple[tuple[float, str], ...]:
    """A key that puts 2 before 10."""
    pieces = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return tuple((float(p), "") if i % 2 else (-1.0, p) for i, p in enumerate(pieces) if p)


def group(runs: Sequence[Measured]) -> Grouped:
    """Groups in the order of their first run; refuses runs on different data."""
    if not runs:
        raise InputError("there is no run to report on; name run folders or comparison folders")
    _check_same_test(runs)
    found: dict[tuple[str, Options, Setting], list[Measured]] = {}
    for run in runs:
        key = (run.label, _method(run.spec), _setting(run))
        found.setdefault(key, []).append(run)
    problems: list[str] = []
    chosen = [_once(held, problems) for held in found.values()]
    methods = _method_labels(list(found))
    shown = _shown([key[2] for key in found])
    groups = [
        _group(method, shown[key[2]], held)
        for method, key, held in zip(methods, found, chosen, strict=True)
    ]
    return Grouped(tuple(groups), tuple(problems))


def _group(method: str, setting: Setting, runs: Sequence[Measured]) -> Group:
    done = tuple(run for run in runs if run.is_finished)
    left = tuple(run for run in runs if not run.is_finished)
    return Group(method, setting, done, left) if done else Group(method, setting, left)


def _check_same_test(runs: Iterable[Measured]) -> None:
    data = {str(parse(run.spec.data, "data")): run for run in runs}
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
        other = kept.get(run.seed)
        if other is None:
            kept[run.seed] = run
            continue
        if run.is_finished and not other.is_finished:
            kept[run.seed], run, other = run, other, run
        differ = run.fingerprint and other.fingerprint and run.fingerprint != other.fingerprint
        problems.append(
            f"'{run.name}' is left out: '{other.name}' has the same options and seed"
            + (", but another fingerprint" if differ else "")
        )
    return [kept[seed] for seed in sorted(kept)]


def _method(spec: Spec) -> Options:
    said = [(key, getattr(spec, key)) for key in LOCAL_WORK if getattr(spec, key) is not None]
    return (("algorithm", str(spec.algorithm_named)), *said)


def _setting(run: Measured) -> Setting:
    spec = run.spec
    task = [(key, getattr(spec, key)) for key in TASK]
    task += [("participants", spec.participants)]
    return Setting(_partition(run), _participation(run), tuple(task))


def _partition(run: Measured) -> str:
    """`dirichlet 0.1`, whether the number came with the name or as alpha."""
    if run.spec.data == IN_PYTHON:
        return run.clients.scheme if run.clients and run.clients.scheme else "own clients"
    named = parse(run.spec.partition, "partition")
    value = named.value or named.options.get("alpha")
    value = value if run.spec.alpha is None else f"{run.spec.alpha:g}"
    others = [f"{k}={v}" for k, v in sorted(named.options.items()) if k != "alpha"]
    return " ".join(filter(None, (named.name, value, *others)))


def _participation(run: Measured) -> str:
    """`3 of 10 clients`, `all 10 clients`."""
    spec = run.spec
    clients = len(run.clients.sizes) if run.clients else spec.wanted_clients
    everybody = f"{clients} clients" if clients else "clients"
    if spec.participants is not None:
        return f"a schedule of {everybody}"
    size = spec.per_round
    if spec.data == IN_PYTHON and size is None and spec.fraction is None:
        sizes = {len(cohort) for cohort in run.cohorts}
        size = sizes.pop() if len(sizes) == 1 else None
    if spec.sampling == "bernoulli":
        share = spec.fraction or (spec.per_round or 1) / (clients or 1)
        return f"each of {everybody} with probability {share:g}"
    if spec.fraction is not None and clients:
        size = max(1, int(spec.fraction * clients + 1e-9))
    if size is None or size == clients:
        return f"all {everybody}"
    turns = " in turns" if spec.sampling == "cyclic" else ""
    return f"{size} of {everybody}{turns}"


def _shown(settings: Iterable[Setting]) -> dict[Setting, Setting]:
    """Settings with the words that tell them apart."""
    distinct = list(dict.fromkeys(settings))
    tasks = [dict(setting.task) for setting in distinct]
    varying = [key for key in TASK if len({str(task[key]) for task in tasks}) > 1]
    places = {(s.partition, s.participation) for s in distinct}
    if len(places) < len(distinct) and not varying:
        varying = ["participants"]
    named: dict[Setting, Setting] = {}
    for setting, task in zip(distinct, tasks, strict=True):
        words = ", ".join(f"{key} {_text(task[key])}" for key in varying if key != "clients")
        named[setting] = Setting(setting.partition, setting.participation, setting.task, words)
    return named


def _text(value: object) -> str:
    if isinstance(value, tuple):
        listed = ", ".join(map(str, value))
        return listed if len(listed) <= 40 else f"{listed[:39]}…"
    return "as usual" if value is None else str(value)


def _method_labels(keys: Sequence[tuple[str, Options, Setting]]) -> list[str]:
    """The algorithm's text, shorter where its options vary with the setting (tuned values, say),
    longer where it does not tell two groups of one setting apart."""
    texts = [label or str(dict(method)["algorithm"]) for label, method, _ in keys]
    heads = [label or text.partition(":")[0] for (label, _, _), text in zip(keys, texts)]
    places = [setting for _, _, setting in keys]
    for head in set(heads):
        mine = [i for i, other in enumerate(heads) if other == head]
        settings = [places[i] for i in mine]
        vary = len({texts[i] for i in mine}) > 1
        if vary and len(set(settings)) == len(settings):
            for i in mine:
                texts[i] = f"{head} (options by setting)"
    return [f"{text}{_difference(i, texts, keys)}" for i, text in enumerate(texts)]


def _difference(
    at: int, texts: Sequence[str], keys: Sequence[tuple[str, Options, Setting]]
) -> str:
    """The local work in which a group differs from others of its name and setting."""
    rivals = [
        dict(keys[i][1])
        for i, text in enumerate(texts)
        if text == texts[at] and keys[i][2] == keys[at][2]
    ]
    own = dict(keys[at][1])
    keys_seen = [key for key in LOCAL_WORK if len({str(rival.get(key)) for rival in rivals}) > 1]
    return "".join(f" {key}={_text(own.get(key))}" for key in keys_seen)
