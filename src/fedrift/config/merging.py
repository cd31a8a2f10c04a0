"""The rules by which models are merged, by name, with their options; no torch needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedrift.errors import InputError, no_option, unknown
from fedrift.grammar import Named, number, parse


@dataclass(frozen=True)
class Rule:
    """How it is written, in one line what it does, and the range of every option."""

    grammar: str
    about: str
    options: Mapping[str, tuple[float, float]]
    value: str | None = None
    """The option that the text after the colon gives."""
    needs_start: bool = False
    needs_data: bool = False


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
        needs_data=True,
    ),
    "regmean": Rule(
        "regmean[:shrink=0.9,samples=2000]",
        "every linear layer as the least-squares fit of all models' outputs",
        {"shrink": (0, 1), "samples": (1, 1_000_000)},
        needs_data=True,
    ),
    "aligned": Rule("aligned", "neurons matched first, then the mean", {}),
    "evolve": Rule(
        "evolve[:steps=200,samples=200]",
        "coefficients found by trial on a few labelled samples, without gradients",
        {"steps": (1, 100_000), "samples": (1, 100_000)},
        needs_start=True,
        needs_data=True,
    ),
}
DEFAULTS = {"task": {"scale": 0.3}, "ties": {"keep": 0.2, "scale": 1.0}, "dare": {"drop": 0.9}}


def check_rule(text: str) -> tuple[Named, dict[str, float]]:
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
    options = dict(DEFAULTS.get(named.name, {}))
    for key, value in given.items():
        if key not in rule.options:
            raise no_option(f"merge rule '{text}'", key, rule.options, rule.grammar)
        low, high = rule.options[key]
        field = f"merge rule '{named.name}': {key}"
        options[key] = number(value, field, low=low, high=high)
    return named, options
