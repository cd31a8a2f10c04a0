"""Classes: accuracy over rounds, confusion, recency, where the classifier leans; test images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.figures.style import (
    HEIGHT,
    MOST_NAMED,
    WIDTH,
    colour_of,
    colour_table,
    legend,
    name_ticks,
    panel_title,
    panels,
)
from fedrift.storage.jsonl import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEAST = 0.1  # of an even share: fewer samples than that are not marked
MOST_TICKS = 12
MOST_DOTS = 4000  # cells of the table over rounds that can still be marked


def over_rounds(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Accuracy per class and round; a dot marks a class that the cohort of the round held."""
    figure.set_size_inches(1.6 * WIDTH, (0.3 + 0.75 * len(runs)) * HEIGHT)
    axes: list[Any] = list(figure.subplots(len(runs), 1, squeeze=False)[:, 0])
    for axis, (name, numbers) in zip(axes, runs.items(), strict=True):
        accuracy = 100 * np.array(numbers["accuracy"]).T
        colour_table(axis, accuracy, "test accuracy (%)", low=0, high=100)
        present = np.array(numbers["presence"]).T
        if present.shape == accuracy.shape and present.size <= MOST_DOTS:
            of_class, at_round = np.nonzero(present * len(present) >= LEAST)
            sizes = 4 + 30 * present[of_class, at_round]
            axis.scatter(at_round, of_class, sizes, "white", edgecolors="black", linewidths=0.6)
        ticks = _tick_rounds(numbers["rounds"])
        axis.set_xticks(list(ticks), [str(round) for round in ticks.values()])
        _classes(axis.set_yticks, len(accuracy))
        axis.set_ylabel("class")
        axis.set_title(name, fontsize=10, parse_math=False)
    axes[-1].set_xlabel("round (dot: class held by the cohort, larger: more of its samples)")


def _tick_rounds(rounds: list[int]) -> dict[int, int]:
    """Where the first and every so many-th round stand, in steps of 1, 2, 5, 10, 20, …"""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    step = next(s for s in steps if sum(r % s == 0 for r in rounds) <= MOST_TICKS)
    return {0: rounds[0], **{i: r for i, r in enumerate(rounds) if r % step == 0}}


def _classes(set_ticks: Any, count: int) -> None:
    set_ticks(range(0, count, 1 if count <= MOST_NAMED else 10))


def confusion(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Share of each true class (row) that was taken for each class (column)."""
    axes = panels(figure, len(runs), 3.9)
    for axis, (name, numbers) in zip(axes, runs.items(), strict=True):
        counts = np.array(numbers["confusion"], np.float64)
        share = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        colour_table(axis, share, "share of the true class (%)", low=0, high=100, map="Blues")
        if len(share) <= 12:
            _write_shares(axis, share)
        _classes(axis.set_xticks, len(share))
        _classes(axis.set_yticks, len(share))
        axis.set_xlabel("predicted class")
        axis.set_ylabel("true class")
        panel_title(axis, numbers, name)


def _write_shares(axis: Axes, share: Any) -> None:
    for (row, column), value in np.ndenumerate(share):
        if value >= 0.5:
            ink = "white" if value > 55 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=7)


def recency(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Accuracy of a class by how long ago the cohort held it."""
    (axis,) = panels(figure, 1)
    for place, (name, numbers) in enumerate(runs.items()):
        values = [100 * a for a in numbers["recency"]["by_age"]]
        axis.plot(range(len(values)), values, "o-", color=colour_of(place), label=name)
    axis.set_ylim(-3, 103)  # a mark on the edge is seen whole
    axis.set_xlabel("evaluated rounds since the cohort held the class")
    axis.set_ylabel("mean test accuracy of the class (%)")
    legend(figure, [axis], 3)


def bias(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Length of the classifier's rows and mean logits, classes of the last cohort set apart."""
    name, numbers = next(iter(runs.items()))
    shown = [key for key in ("norms", "mean_logits") if numbers.get(key)]
    labels = {"norms": "norm of the classifier's row", "mean_logits": "mean test logit"}
    axes = panels(figure, len(shown))
    is_held = np.array(numbers["held"])
    for axis, key in zip(axes, shown, strict=True):
        values = np.array(numbers[key])
        at = np.arange(len(values))
        for chosen, label, place in (
            (is_held, "held by the last cohort", 1),
            (~is_held, "not held by it", 0),
        ):
            if chosen.any():
                axis.bar(at[chosen], values[chosen], 0.7, color=colour_of(place), label=label)
        _classes(axis.set_xticks, len(values))
        axis.set_xlabel("class")
        axis.set_ylabel(labels[key])
        panel_title(axis, numbers, name)
        axis.grid(axis="x", visible=False)
    legend(figure, axes)


def forgetting(figure: Figure, runs: Mapping[str, Record]) -> None:
    """What each run has forgotten at the end, and loses from round to round."""
    axes = panels(figure, 2)
    for axis, key, label in (
        (axes[0], "mean_forgetting", "forgotten at the end (points)"),
        (axes[1], "drops", "lost from round to round (points)"),
    ):
        values = [100 * n[key] for n in runs.values()]
        axis.bar(range(len(runs)), values, 0.6, color=[colour_of(i) for i in range(len(runs))])
        name_ticks(axis, list(runs))
        axis.set_ylabel(label)
        axis.grid(axis="x", visible=False)


# Test images in a grid: one row for each model, wrong answers marked.

RIGHT, WRONG = "#009E73", "#D55E00"
SIDE = 0.86  # inches of an image


def images(figure: Figure, runs: Mapping[str, Record]) -> None:
    """Columns are images, rows are models; a frame and a cross mark what is wrong."""
    run, numbers = next(iter(runs.items()))
    pictures, true, rows = np.array(numbers["images"], np.uint8), numbers["true"], numbers["models"]
    figure.set_size_inches(1.5 + SIDE * len(true), 0.7 + (SIDE + 0.24) * len(rows))
    axes: Any = figure.subplots(len(rows), len(true), squeeze=False)
    for row, (name, predictions) in zip(axes, rows.items(), strict=True):
        for i, axis in enumerate(row):
            predicted = predictions["labels"][i]
            is_right = predicted == true[i]
            picture = pictures[i] if pictures.shape[-1] == 3 else pictures[i, ..., 0]
            axis.imshow(picture, cmap="gray_r", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            ink = RIGHT if is_right else WRONG
            for side in axis.spines.values():
                side.set(color=ink, linewidth=1 if is_right else 2.6)
            words = f"{predicted} ✓" if is_right else f"{predicted} ✗"
            axis.set_xlabel(words, fontsize=9, color=ink, labelpad=2)
        share = f"{name}\n{100 * predictions['accuracy']:.0f} % right"
        row[0].set_ylabel(share, rotation=0, ha="right", va="center", fontsize=9, labelpad=8)
    for axis, label in zip(axes[0], true, strict=True):
        axis.set_title(f"true {label}", fontsize=9)
    heading = f"{run}, round {numbers['round']}: what each model takes test images for"
    figure.suptitle(heading, fontsize=10, parse_math=False)
