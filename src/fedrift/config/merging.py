"""The rules by which models are merged, by name, with their options; no torch needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from fedrift.errors import InputError, no_option, unknown
from fedrift.grammar import number, parse


@dataclass(frozen=True)
class Rule:
    """How it is written, in one line what it does, and the range of every option."""

    grammar: str
    about: str
    options: Mapping[str, tuple[float, float]]
    value: str | None = None
    """The option that the text after the colon gives."""
    needs_start: bool = False
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Options that are one of some words; the first unless another is given."""


@dataclass(frozen=True)
class Chosen:
    """A rule by name, and its options."""

    name: str
    numbers: Mapping[str, float]
    words: Mapping[str, str]


RULES: dict[str, Rule] = {
    "mean": Rule("mean", "the mean of the weights", {}),
    "task": Rule(
        "task:0.3",
        "the start plus a multiple of the sum of all changes",
        {"scale": (0, 10)},
        "scale",
        needs_start=True,
    ),
    "ties": Rule(
        "ties:0.2[,scale=1]",
        "only the largest changes, only where signs agree",
        {"keep": (0, 1), "scale": (0, 10)},
        "keep",
        needs_start=True,
    ),
    "dare": Rule(
        "dare:0.9[,scale=1/models]",
        "changes dropped at random, the rest enlarged, then added up",
        {"drop": (0, 0.999), "scale": (0, 10)},
        "drop",
        needs_start=True,
    ),
    "fisher": Rule(
        "fisher[:samples=200]",
        "weights count by how much the output depends on them",
        {"samples": (1, 100_000)},
    ),
    "regmean": Rule(
        "regmean[:shrink=0.9,samples=2000]",
        "every linear layer as the least-squares fit of all models' outputs",
        {"shrink": (0, 1), "samples": (1, 1_000_000)},
    ),
    "aligned": Rule("aligned", "neurons matched first, then the mean", {}),
    "evolve": Rule(
        "evolve[:steps=200,samples=200,by=model|block,search=own|cma]",
        "coefficients found by trial on a few labelled samples, without gradients",
        {"steps": (1, 100_000), "samples": (1, 100_000)},
        needs_start=True,
        words={"by": ("model", "block"), "search": ("own", "cma")},
    ),
}
DEFAULTS = {
    "task": {"scale": 0.3},
    "ties": {"keep": 0.2, "scale": 1.0},
    "dare": {"drop": 0.9},
    "evolve": {"steps": 200.0},
}


def check_rule(text: str) -> Chosen:
    """Reads a rule and its options; refuses what names none."""
    if not isinstance(text, str):  # type: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"merge rule {text!r} must be a text, such as 'mean' or 'ties:0.2'")
    named = parse(text, "merge rule")
    if named.name not in RULES:
        raise unknown("merge rule", named.name, RULES)
    rule = RULES[named.name]
    given = dict(named.options)
    if named.value is not None:
        if rule.value is None or rule.value in given:
            raise InputError(f"merge rule '{text}': write {rule.grammar}")
        given[rule.value] = named.value
    numbers = dict(DEFAULTS.get(named.name, {}))
    words = {key: known[0] for key, known in rule.words.items()}
    for key, value in given.items():
        where = f"merge rule '{named.name}': {key}"
        if key in rule.words:
            words[key] = _word(value, rule.words[key], where)
        elif key in rule.options:
            low, high = rule.options[key]
            numbers[key] = number(value, where, low=low, high=high)
        else:
            known = (*rule.options, *rule.words)
            raise no_option(f"merge rule '{text}'", key, known, rule.grammar)
    if words.get("search") == "cma" and find_spec("cma") is None:
        raise InputError(
            f"merge rule '{text}': search=cma needs the library cma: pip install 'fedrift[evolve]'"
        )
    return Chosen(named.name, numbers, words)


def _word(value: str, known: tuple[str, ...], where: str) -> str:
    if value not in known:
        raise InputError(f"{where} must be {' or '.join(known)}, not '{value}'")
    return value
