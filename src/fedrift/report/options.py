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
    groups = [one.group for one in findings.all]
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
        text = next(g.spec.algorithm for g in groups if g.method == method)
        (given if _has_options(parse(text, "algorithm")) else plain).append(method)
    parts = [f"default options: {listed(plain)}"] if plain else []
    parts += [f"options given: {listed(given)}"] if given else []
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _has_options(named: Named) -> bool:
    return bool(named.options) or (named.inner is not None and _has_options(named.inner))


def _shared(groups: Sequence[Group]) -> str:
    """What all methods have in common; a value that was not given is the usual one, except in
    runs made in Python, which may have been given what no record can hold."""
    words: list[str] = []
    unsaid: list[str] = []
    for key in LOCAL_WORK:
        found = {getattr(group.spec, key) for group in groups}
        if len(found) > 1:
            continue
        value = found.pop()
        if value is not None:
            words.append(f"{key} {spelled(value)}")
        elif key in USUAL and not (key == "epochs" and groups[0].spec.steps is not None):
            unsaid.append(f"{key} {USUAL[key]}")
    if unsaid and groups[0].spec.data != IN_PYTHON:
        words.append(f"not given, so {listed(unsaid)} unless the algorithm has its own")
    return ", ".join(words)


def _tuned(groups: Sequence[Group]) -> list[str]:
    """Which values tuning found for whom; methods that were not tuned are at a disadvantage."""
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        tuned = group.runs[0].tuned
        if tuned:
            values = ", ".join(f"{key}={spelled(value)}" for key, value in tuned.items())
            found.setdefault(values, {})[group.method] = None
    said = [f"Found by tuning: {values} for {listed(list(who))}." for values, who in found.items()]
    whole = dict.fromkeys(group.method for group in groups)
    rest = [m for m in whole if not any(m in who for who in found.values())]
    if said and rest:
        said.append(f"Not tuned: {listed(rest)}. Tuned and untuned methods are not on equal terms.")
    return said


def table(findings: Findings) -> list[tuple[str, str, Mapping[str, str]]]:
    """Method, setting and every option with its value, defaults included."""
    return [
        (g.method, g.setting.label, described(g.spec)) for g in (one.group for one in findings.all)
    ]


def described(spec: Spec) -> dict[str, str]:
    """The options of a run; the algorithm's own, with its defaults, as one text."""
    hidden = {"seed", "algorithm", *(["partition"] if spec.data == IN_PYTHON else [])}
    found = {k: _text(v) for k, v in spec.said().items() if k not in hidden}
    return {"algorithm options": _own(parse(spec.algorithm, "algorithm")), **found}


def _own(named: Named) -> str:
    """`mu=0.3, weights=samples (default)`."""
    given = [f"{key}={value}" for key, value in named.options.items()]
    inner = [f"{named.inner.name}: {_own(named.inner)}"] if named.inner is not None else []
    try:
        known = catalogue.entry(named.name).options
    except InputError:  # the user's own algorithm
        known = ()
    left = (o for o in known if not o.required and o.name not in named.options)
    usual = [f"{option.name}={spell(option.default)} (default)" for option in left]
    return ", ".join([*given, *usual, *inner]) or "none"


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
