"""Numbers as a report prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedrift.errors import bytes_text
from fedrift.figures.svg import MINUS

if TYPE_CHECKING:
    from fedrift.report.statistics.costs import Target
    from fedrift.report.statistics.estimates import Estimate, Score

NOTHING = "–"
FAILED = "(X)"


def seconds_text(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_text(count: float) -> str:
    """`853`, `12.3 k`, `4.56 M`."""
    for unit in ("", " k", " M", " G"):
        if abs(count) < 999.5:
            return f"{count:.0f}{unit}" if not unit or abs(count) >= 99.95 else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def value_text(value: float, has_accuracy: bool) -> str:
    """`85.55` (percent), or a loss with four digits."""
    if math.isnan(value):
        return NOTHING
    return f"{100 * value:.2f}" if has_accuracy else f"{value:.4g}"


def with_unit(value: float, has_accuracy: bool) -> str:
    """`85.55 %`."""
    text = value_text(value, has_accuracy)
    return f"{text} %" if has_accuracy and text != NOTHING else text


def percent_text(share: float, places: int = 2) -> str:
    """`85.55 %` of 0.8555."""
    return f"{100 * share:.{places}f} %"


def mean_std(estimate: Estimate, has_accuracy: bool) -> str:
    """`85.55 ± 3.97`; without the spread for one seed."""
    mean, std = estimate.mean, estimate.std
    if math.isnan(mean) or math.isnan(std):
        return value_text(mean, has_accuracy)
    if math.isinf(mean) or math.isinf(std):
        return f"{mean:.4g} ± {std:.2g}"
    if has_accuracy:
        return f"{value_text(mean, True)} ± {value_text(std, True)}"
    places = _places(mean, std)
    if places > 6:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:.{places}f} ± {std:.{places}f}"


def _places(mean: float, std: float) -> int:
    """Decimals that show four digits of a mean and two of its spread, but no zeros of both."""
    shown = [
        digits - 1 - math.floor(math.log10(abs(x))) for x, digits in ((mean, 4), (std, 2)) if x
    ]
    places = max([0, *shown])
    while places and all(f"{x:.{places}f}".endswith("0") for x in (mean, std)):
        places -= 1
    return places


def interval_text(estimate: Estimate, has_accuracy: bool) -> str:
    """`75.68 to 95.41`; an accuracy stays between 0 and 100."""
    if not estimate.has_interval:
        return NOTHING
    low, high = estimate.low, estimate.high
    if has_accuracy:
        low, high = max(0.0, low), min(1.0, high)
    return f"{value_text(low, has_accuracy)} to {value_text(high, has_accuracy)}"


def signed(value: float, has_accuracy: bool) -> str:
    """`+1.36`, `−0.31`, `0.00`."""
    text = value_text(abs(value), has_accuracy)
    if text == NOTHING or not text.strip("0."):
        return text
    return f"{MINUS if value < 0 else '+'}{text}"


def difference_text(estimate: Estimate | None, has_accuracy: bool) -> str:
    """`+1.36 (−1.21 to +3.93)`."""
    if estimate is None:
        return NOTHING
    text = signed(estimate.mean, has_accuracy)
    if not estimate.has_interval:
        return text
    low, high = interval_ends(estimate, has_accuracy)
    return f"{text} ({low} to {high})"


def interval_ends(estimate: Estimate, has_accuracy: bool) -> tuple[str, str]:
    """Of the interval of a difference; two accuracies differ by at most 100 points."""
    low, high = estimate.low, estimate.high
    if has_accuracy:
        low, high = max(-1.0, low), min(1.0, high)
    return signed(low, has_accuracy), signed(high, has_accuracy)


def score_text(score: Score, has_accuracy: bool) -> str:
    """`85.55 ± 3.97`, or (X) with the share of seeds that became infinite."""
    if score.failed:
        part = 0 < score.diverged < len(score.group.runs)
        return f"{FAILED} {score.diverged} of {len(score.group.runs)}" if part else FAILED
    return mean_std(score.final, has_accuracy)


def quantity_text(value: float, axis: str) -> str:
    """A cost on one of the axes rounds, bytes, gradients, seconds."""
    if math.isnan(value):
        return NOTHING
    if axis == "bytes":
        return bytes_text(value)
    if axis == "seconds":
        return seconds_text(value)
    return f"{value:.1f}".removesuffix(".0") if axis == "rounds" else count_text(value)


def cost_text(target: Target | None, axis: str) -> str:
    """Mean cost to the target, or how many seeds met it."""
    if target is None:
        return NOTHING
    if not target.is_met:
        return f"{target.met} of {target.seeds} seeds" if target.met else "not met"
    return quantity_text(target.costs[axis].mean, axis)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def plural(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
