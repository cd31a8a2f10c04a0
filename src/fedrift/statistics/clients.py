"""How the clients fare: accuracy expected from a client's labels, its worst tenth and spread.

Nothing here was measured on a client's data. A client's figure is the mean of the model's test
accuracies per class, weighted by the client's own label mix: what it would see if its samples of
a class are as hard as the test set's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrift.statistics.estimates import Estimate, counted, estimate
from fedrift.statistics.measured import Floats, Measured


@dataclass(frozen=True)
class Spread:
    """How evenly the clients are served: over seeds, of each seed's mean, worst tenth, minimum
    and standard deviation between clients."""

    mean: Estimate
    worst: Estimate
    lowest: Estimate
    std: Estimate


def class_accuracy(run: Measured, last: int | None) -> Floats | None:
    """Accuracy per class, mean over the last rounds."""
    if run.classes is None or run.status == "diverged":
        return None
    return run.classes[-counted(run, last) :].mean(axis=0)


def client_accuracy(run: Measured, last: int | None) -> Floats | None:
    """Expected accuracy of each client that holds samples; None where labels are not known."""
    accuracy = class_accuracy(run, last)
    if accuracy is None or run.clients is None or run.clients.counts is None:
        return None
    counts, shares = run.clients.counts, run.clients.shares
    if shares is None or counts.shape[1] != len(accuracy):
        return None
    held = counts.sum(axis=1) > 0
    return shares[held] @ accuracy if held.any() else None


def worst_tenth(values: Floats) -> float:
    """Mean of the worst tenth of the clients, at least one."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())


def spread(runs: Sequence[Measured], last: int | None) -> Spread | None:
    """Of a group's seeds; None if one of them has no such figures."""
    found = [client_accuracy(run, last) for run in runs]
    known = [values for values in found if values is not None]
    if len(known) < len(found) or not known:
        return None
    return Spread(
        mean=estimate(float(v.mean()) for v in known),
        worst=estimate(worst_tenth(v) for v in known),
        lowest=estimate(float(v.min()) for v in known),
        std=estimate(float(v.std()) for v in known),
    )
