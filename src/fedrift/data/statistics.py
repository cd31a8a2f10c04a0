"""How uneven a partition is: sizes, labels per client, distance to the global labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedrift.data.parts import Floats, Ints, Partition
from fedrift.errors import InputError

LARGEST = 4  # classes named in a client's row of the table


@dataclass(frozen=True, eq=False)
class Statistics:
    """`counts` is clients × classes; everything else follows from it."""

    name: str
    seed: int
    digest: str
    note: str
    counts: Ints

    @property
    def sizes(self) -> Ints:
        return self.counts.sum(axis=1)

    @property
    def classes_per_client(self) -> Ints:
        """How many classes each client has at least one sample of."""
        return (self.counts > 0).sum(axis=1)

    @property
    def shares(self) -> Floats:
        """Label distribution of each client; all zero for an empty one."""
        return self.counts / np.maximum(self.sizes, 1)[:, None]

    @property
    def distances(self) -> Floats:
        """Total variation between each client's labels and all labels: 0 = the same, 1 = disjoint.

        An empty client has no labels: nan.
        """
        overall = self.counts.sum(axis=0) / self.counts.sum()
        distance = np.abs(self.shares - overall).sum(axis=1) / 2
        return np.where(self.sizes > 0, distance, np.nan)

    @property
    def mean_distance(self) -> float:
        """Mean total variation distance of the clients that hold anything."""
        return float(np.nanmean(self.distances))

    @property
    def size_spread(self) -> float:
        """Standard deviation of the sizes over their mean: 0 = all equal."""
        return float(self.sizes.std() / self.sizes.mean())

    def summary(self) -> list[tuple[str, str]]:
        """Name and value of what describes the whole partition, for a two-column table."""
        sizes, classes = self.sizes, self.classes_per_client
        rows = [
            ("partition", self.name),
            ("seed", str(self.seed)),
            ("clients", f"{len(sizes):,}"),
            ("samples", f"{sizes.sum():,}"),
            (
                "samples per client",
                f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, "
                f"spread {self.size_spread:.2f}",
            ),
            (
                "classes per client",
                f"{classes.min()} to {classes.max()}, mean {classes.mean():.2f}",
            ),
            ("mean label distance (TV)", f"{self.mean_distance:.3f}"),
            ("sha256", self.digest[:16]),
        ]
        return [*rows, ("note", self.note)] if self.note else rows

    def table(self, class_names: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
        """Headings and one row of text per client."""
        names = class_names or [str(c) for c in range(self.counts.shape[1])]
        rows = [
            [
                str(client),
                f"{self.sizes[client]:,}",
                str(self.classes_per_client[client]),
                "–" if np.isnan(distance) else f"{distance:.2f}",
                _largest(self.counts[client], names),
            ]
            for client, distance in enumerate(self.distances)
        ]
        return ["client", "samples", "classes", "TV", "largest classes"], rows


def _largest(counts: Ints, names: Sequence[str]) -> str:
    order = np.argsort(-counts, kind="stable")
    held = order[counts[order] > 0]
    shown = ", ".join(f"{names[c]}: {counts[c]:,}" for c in held[:LARGEST])
    return f"{shown}, …" if len(held) > LARGEST else shown


def statistics(partition: Partition, y: npt.ArrayLike, classes: int) -> Statistics:
    """Counts the labels 0..classes-1 of each client."""
    labels = np.asarray(y)
    if labels.shape != (partition.samples,) or labels.dtype.kind not in "iub":
        raise InputError(
            f"y must be one whole-number label for each of the {partition.samples} samples, "
            f"not {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"classes={classes} allows labels 0 to {classes - 1}, "
            f"but y has {labels.min()} to {labels.max()}; use classes={labels.max() + 1}"
        )
    counts = [np.bincount(labels[part], minlength=classes) for part in partition.parts]
    return Statistics(
        partition.name,
        partition.seed,
        partition.digest,
        partition.note,
        np.array(counts, np.int64),
    )
