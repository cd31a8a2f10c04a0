"""A part of the training data held out to choose options on, so that the test data stay unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrift.data.samples import DataSet
from fedrift.streams import stream

SHARE = 0.2


def hold_out(data: DataSet) -> DataSet:
    """The same data with a fifth of the training samples of each class in the place of the test."""
    rng = stream(0, "validation")
    held = np.zeros(len(data.y), dtype=bool)
    strata = data.y if data.y.dtype.kind != "f" else np.zeros(len(data.y), np.int64)
    for label in np.unique(strata):
        members = np.flatnonzero(strata == label)
        held[rng.permutation(members)[: round(SHARE * len(members))]] = True
    users = None if data.users is None else data.users[~held]
    return replace(
        data,
        x=data.x[~held],
        y=data.y[~held],
        x_test=data.x[held],
        y_test=data.y[held],
        users=users,
    )
