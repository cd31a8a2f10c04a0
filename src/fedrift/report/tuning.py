"""What a comparison's folder tells of tuning: which options were searched, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrift import results
from fedrift.errors import InputError
from fedrift.experiment import Spec
from fedrift.grammar import parse
from fedrift.quantities import count_text
from fedrift.records import read_file
from fedrift.report.spelling import plural
from fedrift.statistics.naming import LOCAL_WORK

TUNING, RUNS = "tuning", "runs"


@dataclass(frozen=True)
class Tuning:
    """Values that were tried, by algorithm and option."""

    runs: int
    gradients: int
    tried: dict[str, dict[str, set[str]]]

    def chosen(self, spec: Spec) -> dict[str, Any]:
        """Of a run: the options that were searched for its algorithm, with their values."""
        named = parse(spec.algorithm, "algorithm")
        known = self.tried.get(named.name, {})
        own = _values(spec)
        return {key: own[key] for key, values in known.items() if len(values) > 1 and key in own}

    def sentence(self) -> str:
        return (
            f"Options were tuned on training data held out for it, never on the test set: "
            f"{plural(self.runs, 'run')} and {count_text(self.gradients)} gradient evaluations, "
            "which no other figure here contains."
        )


def _values(spec: Spec) -> dict[str, str]:
    named = parse(spec.algorithm, "algorithm")
    work = {key: getattr(spec, key) for key in LOCAL_WORK}
    return {k: str(v) for k, v in {**work, **named.options}.items() if v is not None}


def tuning(folder: Path) -> Tuning | None:
    """Of a comparison folder; None if nothing was tuned."""
    place = folder / TUNING / RUNS
    if not place.is_dir():
        return None
    tried: dict[str, dict[str, set[str]]] = {}
    runs, gradients = 0, 0
    for run in sorted(place.iterdir()):
        try:
            spec = results.read_spec(run)
            summary = read_file(run / results.SUMMARY) or {}
        except InputError:  # costs are a lower bound then; the runs themselves are not shown
            continue
        runs += 1
        spent = summary.get("gradient_evaluations")
        gradients += spent if isinstance(spent, int) else 0
        options = tried.setdefault(parse(spec.algorithm, "algorithm").name, {})
        for key, value in _values(spec).items():
            options.setdefault(key, set()).add(value)
    return Tuning(runs, gradients, tried) if runs else None
