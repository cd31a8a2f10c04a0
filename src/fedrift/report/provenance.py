"""Where the numbers come from: runs, options, versions, and the commands that make them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedrift.config import algorithms
from fedrift.config.algorithms import spell
from fedrift.config.grid import Cell as GridCell
from fedrift.config.grid import Tuned
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.spec import LOCAL_WORK, Spec
from fedrift.errors import InputError
from fedrift.grammar import Named, parse
from fedrift.report.analyses import Analysis
from fedrift.report.markup import bullet_list, copyable, folded, html_table, paragraph, section
from fedrift.report.methods import Working
from fedrift.report.numbers import count_text, listed, plural, value_text
from fedrift.report.statistics.estimates import final
from fedrift.report.statistics.findings import Findings
from fedrift.report.statistics.grouping import Group, spelled
from fedrift.report.tables import Cell, Table, measure, text

USUAL = {"epochs": "1", "batch_size": "64", "lr": "0.1"}
NOT_TYPED = {"algorithm", "out"}
VERSIONS = ("fedrift", "torch", "python", "instructions")


@dataclass(frozen=True)
class Extras:
    """What a report says besides its statistics."""

    title: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    """That make the comparison and the report again."""
    analyses: Sequence[Analysis] = ()
    """What was found inside the models of some runs."""
    workings: Sequence[Working] = ()
    """How the methods work, if that was asked for."""
    specs: Sequence[tuple[str, str]] = ()
    """Names and texts of comparison files."""


# The runs, their options, and the commands that make them again.


def runs_section(findings: Findings, extras: Extras) -> str:
    """The last section of the page."""
    return section(
        "runs",
        "Runs",
        html_table(runs_table(findings)),
        "<h3>Options</h3>",
        _options(findings),
        "<h3>Make it again</h3>",
        _commands(findings, extras),
    )


def runs_table(findings: Findings) -> Table:
    """One row per run, with its fingerprint and what its bits depend on."""
    rows = [
        (
            *map(text, (group.method, group.setting.label)),
            Cell(str(run.seed), run.seed),
            Cell(
                value_text(final(run, findings.last), findings.has_accuracy),
                _value(final(run, findings.last)),
            ),
            *map(text, (run.status, run.fingerprint)),
            *(text(_version(run.environment, key)) for key in VERSIONS),
            text(run.name),
        )
        for group in (one.group for one in findings.all)
        for run in (*group.runs, *group.unfinished)
    ]
    headings = ("method", "setting", "seed", measure(findings), "status", "fingerprint")
    about = "Equal fingerprints mean equal weights and equal curves, bit for bit."
    columns = (*headings, *VERSIONS, "folder")
    hidden = (*VERSIONS, *(["setting"] if len(findings.settings) == 1 else []))
    usual = tuple(i for i, name in enumerate(columns) if name not in hidden)
    words = tuple(range(4, len(columns)))
    return Table("runs", about, columns, tuple(rows), texts=2, words=words, usual=usual)


def _value(figure: float) -> float | None:
    return None if figure != figure else figure


def _version(environment: Mapping[str, Any], key: str) -> str:
    return str(environment.get(key, "–"))


def _options(findings: Findings) -> str:
    """What all groups share as a list, what differs as a table."""
    options_of_groups = options_of(findings)
    keys = list(dict.fromkeys(key for _, _, options in options_of_groups for key in options))
    varying = [
        key for key in keys if len({options.get(key) for _, _, options in options_of_groups}) > 1
    ]
    shared = [f"{key}: {options_of_groups[0][2][key]}" for key in keys if key not in varying]
    listed = folded("The same for all", bullet_list(shared)) if shared else ""
    if not varying:
        return listed
    rows = [
        (text(method), text(setting), *(text(options.get(key, "–")) for key in varying))
        for method, setting, options in options_of_groups
    ]
    table = Table(
        "options",
        "Options that differ. Values that are marked as defaults were not given.",
        ("method", "setting", *varying),
        tuple(rows),
        texts=2 + len(varying),
        usual=() if len(findings.settings) > 1 else (0, *range(2, 2 + len(varying))),
    )
    return html_table(table) + listed


def _commands(findings: Findings, extras: Extras) -> str:
    parts: list[str] = []
    if extras.commands:
        parts.append(copyable("again", "\n".join(extras.commands)))
    for place, (name, content) in enumerate(extras.specs):
        parts.append(folded(name, copyable(f"spec-{place}", content)))
    groups = [one.group for one in findings.all]
    runs = [run for group in groups for run in (*group.runs, *group.unfinished)]
    lines = [line for run in runs if (line := command(run.spec))]
    if lines:
        singly = copyable("singly", "\n".join(lines))
        parts.append(folded("Every run by itself", singly, is_long=True))
    if len(lines) < len(runs):
        parts.append(
            paragraph("Runs on data and models given in Python are made again by the same calls.")
        )
    return "".join(parts)


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


# The same options in sentences.


def option_sentences(findings: Findings) -> list[str]:
    """Defaults, given and tuned values, said plainly."""
    groups = [one.group for one in findings.all]
    lines = [_algorithms(groups)]
    shared = _shared(groups)
    if shared:
        lines.append(f"Local work, the same for all: {shared}.")
    tuned = _tuned(groups)
    lines += tuned or [
        "Nothing here was tuned for these data, as far as the runs say: with other options "
        + ("the order may change." if len(findings.methods) > 1 else "it may end elsewhere.")
    ]
    return lines


def _algorithms(groups: Sequence[Group]) -> str:
    plain: list[str] = []
    given: list[str] = []
    for method in dict.fromkeys(group.method for group in groups):
        text = next(g.spec.algorithm for g in groups if g.method == method)
        (given if _has_options(parse(text, "algorithm")) else plain).append(method)
    parts = [f"default options: {listed(plain)}"] if plain else []
    parts += [f"options given: {listed(given)}"] if given else []
    text_of_parts = "; ".join(parts)
    return f"{text_of_parts[0].upper()}{text_of_parts[1:]}."


def _has_options(named: Named) -> bool:
    return bool(named.options) or (named.inner is not None and _has_options(named.inner))


def _shared(groups: Sequence[Group]) -> str:
    """What all methods have in common; a value that was not given is the usual one, except in
    runs made in Python, which may have been given what no record can hold."""
    words: list[str] = []
    unsaid: list[str] = []
    for key in LOCAL_WORK:
        values = {getattr(group.spec, key) for group in groups}
        if len(values) > 1:
            continue
        value = values.pop()
        if value is not None:
            words.append(f"{key} {spelled(value)}")
        elif key in USUAL and not (key == "epochs" and groups[0].spec.steps is not None):
            unsaid.append(f"{key} {USUAL[key]}")
    if unsaid and groups[0].spec.data != IN_PYTHON:
        words.append(f"by default {listed(unsaid)}, unless the algorithm or optimizer has its own")
    return ", ".join(words)


def _tuned(groups: Sequence[Group]) -> list[str]:
    """Which values tuning found for whom; methods that were not tuned are at a disadvantage."""
    methods_by_values: dict[str, dict[str, None]] = {}
    for group in groups:
        tuned = group.runs[0].tuned
        if tuned:
            values = ", ".join(f"{key}={spelled(value)}" for key, value in tuned.items())
            methods_by_values.setdefault(values, {})[group.method] = None
    lines = [
        f"Found by tuning: {values} for {listed(list(who))}."
        for values, who in methods_by_values.items()
    ]
    whole = dict.fromkeys(group.method for group in groups)
    rest = [m for m in whole if not any(m in who for who in methods_by_values.values())]
    if lines and rest:
        lines.append(
            f"Not tuned: {listed(rest)}. Tuned and untuned methods are not on equal terms."
        )
    return lines


def options_of(findings: Findings) -> list[tuple[str, str, Mapping[str, str]]]:
    """Method, setting and every option with its value, defaults included."""
    return [
        (g.method, g.setting.label, options_of_spec(g.spec))
        for g in (one.group for one in findings.all)
    ]


def options_of_spec(spec: Spec) -> dict[str, str]:
    """The options of a run; the algorithm's own, with its defaults, as one text."""
    hidden = {"seed", "algorithm", *(["partition"] if spec.data == IN_PYTHON else [])}
    given = {k: _text(v) for k, v in spec.to_dict().items() if k not in hidden}
    return {"algorithm options": _algorithm_options(parse(spec.algorithm, "algorithm")), **given}


def _algorithm_options(named: Named) -> str:
    """`mu=0.3, weights=samples (default)`."""
    given = [f"{key}={value}" for key, value in named.options.items()]
    inner = (
        [f"{named.inner.name}: {_algorithm_options(named.inner)}"]
        if named.inner is not None
        else []
    )
    try:
        known = algorithms.entry(named.name).options
    except InputError:  # the user's own algorithm
        known = ()
    left = (o for o in known if not o.required and o.name not in named.options)
    usual = [f"{option.name}={spell(option.default)} (default)" for option in left]
    return ", ".join([*given, *usual, *inner]) or "none"


# What tuning chose, and at what cost.


def tuned_values(cell: GridCell) -> dict[str, Any]:
    """Of a run of a grid: the options that tuning decided, with their values."""
    named = parse(cell.spec.algorithm, "algorithm")
    values = {key: _given_option(named, key) for key in cell.entrant.tuned}
    return {k: getattr(cell.spec, k, None) if v is None else v for k, v in values.items()}


def _given_option(named: Named, key: str) -> str | None:
    if key in named.options:
        return named.options[key]
    return None if named.inner is None else _given_option(named.inner, key)


def tuning_sentence(tuned: Tuned) -> str:
    """How the values were found, and what that cost."""
    tried = [f"{key} among {', '.join(values)}" for key, values in tuned.options.items()]
    at = "".join(f", {key} {value}" for key, value in tuned.at.items())
    return (
        f"Tuned were {listed(tried)}, on training data held out for it and never on the test set, "
        f"with seed {tuned.seed}{at} only: {plural(tuned.runs, 'run')}, "
        f"{plural(tuned.rounds, 'round')} and {count_text(tuned.gradients)} gradient evaluations, "
        "which no other figure here contains."
    )
