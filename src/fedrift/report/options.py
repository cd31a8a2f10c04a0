"""With which options the methods ran, and the commands that make the runs again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fedrift import catalogue
from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.grammar import Named, parse
from fedrift.options import spell
from fedrift.report.spelling import listed
from fedrift.statistics.findings import Findings
from fedrift.statistics.grouping import Group
from fedrift.statistics.naming import IN_PYTHON, LOCAL_WORK, spelled

USUAL = {"epochs": "1", "batch_size": "64", "lr": "0.1"}
NOT_TYPED = {"algorithm", "out"}


def sentences(findings: Findings) -> list[str]:
    """Defaults, given and tuned values, said plainly."""
    groups = findings.grouped.groups
    said = [_algorithms(groups)]
    shared = _shared(groups)
    if shared:
        said.append(f"Local work, the same for all: {shared}.")
    tuned = _tuned(groups)
    said += tuned or [
        "Nothing here was tuned for these data, as far as the runs say: with other options the "
        "order may change."
    ]
    return said


def _algorithms(groups: Sequence[Group]) -> str:
    plain: list[str] = []
    given: list[str] = []
    for method in dict.fromkeys(group.method for group in groups):
        named = parse(next(g.spec.algorithm for g in groups if g.method == method), "algorithm")
        own = _given(named)
        if own:
            given.append(f"{method} with {', '.join(own)}")
        else:
            plain.append(method)
    parts = [f"{listed(plain)} with default options"] if plain else []
    return f"{'; '.join([*parts, *given])}."


def _given(named: Named) -> list[str]:
    own = [f"{key}={value}" for key, value in named.options.items()]
    return own + (_given(named.inner) if named.inner is not None else [])


def _shared(groups: Sequence[Group]) -> str:
    """What all methods have in common; a value that is not said is the usual one."""
    words: list[str] = []
    for key in LOCAL_WORK:
        found = {getattr(group.spec, key) for group in groups}
        if len(found) > 1:
            continue
        value = found.pop()
        if value is not None:
            words.append(f"{key} {spelled(value)}")
        elif key in USUAL and not (key == "epochs" and groups[0].spec.steps is not None):
            words.append(f"{key} as usual ({USUAL[key]})")
    return ", ".join(words)


def _tuned(groups: Sequence[Group]) -> list[str]:
    said: list[str] = []
    for group in groups:
        tuned = group.runs[0].tuned
        if tuned:
            values = ", ".join(f"{key}={spelled(value)}" for key, value in tuned.items())
            said.append(f"{group.method} ({group.setting.label}): {values} found by tuning.")
    whole = {group.method for group in groups}
    some = {group.method for group in groups if group.runs[0].tuned}
    if said and some < whole:
        rest = listed(sorted(whole - some))
        said.append(f"Not tuned: {rest}. Tuned and untuned methods are not on equal terms.")
    return said


def table(findings: Findings) -> list[tuple[str, str, Mapping[str, str]]]:
    """Method, setting and every option with its value, defaults included."""
    return [(g.method, g.setting.label, described(g.spec)) for g in findings.grouped.groups]


def described(spec: Spec) -> dict[str, str]:
    """The options of a run, the algorithm's defaults among them."""
    named = parse(spec.algorithm, "algorithm")
    found = {key: _text(value) for key, value in spec.said().items() if key != "seed"}
    try:
        known = catalogue.entry(named.name)
    except InputError:
        return found
    defaults = {o.name: o for o in known.options if not o.required and o.name not in named.options}
    for name, option in defaults.items():
        if name not in found:
            found[f"{named.name}: {name}"] = f"{spell(option.default)} (default)"
    return found


def command(spec: Spec) -> str:
    """`fedrift run …` that makes a run again; empty for one that was made in Python."""
    if spec.data == IN_PYTHON:
        return ""
    words = ["fedrift", "run", spec.algorithm]
    for field in fields(Spec):
        value = getattr(spec, field.name)
        if field.name in NOT_TYPED or (value == field.default and field.name != "seed"):
            continue
        flag = f"--{field.name.replace('_', '-')}"
        if field.name == "augment":
            words += [word for name in value for word in (flag, name)]
        else:
            words += [flag, _text(value)]
    return shlex.join(words)


def _text(value: Any) -> str:
    """As it is typed: `1,3,2`, `0,3|1,2`."""
    if isinstance(value, tuple):
        inner = [_text(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return ("|" if any(isinstance(item, tuple) for item in value) else ",").join(inner)  # pyright: ignore[reportUnknownVariableType]
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
