"""Who holds which sample: what a partition scheme is asked, and what comes out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedrift.errors import InputError
from fedrift.grammar import Named, number

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_CELLS = 100_000_000  # clients × classes: beyond it the counts alone fill the memory
USUAL_MINIMUM = 10  # samples per client that NIID-bench and Flower insist on


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each client: sorted indices, every sample in exactly one part.

    `note` says what the scheme had to do besides what its name promises.
    """

    name: str
    parts: tuple[Ints, ...]
    seed: int
    note: str = ""

    @property
    def clients(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> Ints:
        return np.array([len(part) for part in self.parts], np.int64)

    @property
    def samples(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def digest(self) -> str:
        """sha256 of the parts alone: equal for equal divisions, whatever made them."""
        return parts_digest(self.parts)


def parts_digest(parts: Sequence[Ints]) -> str:
    """sha256 over each part in turn: its length, then its indices, as little-endian int64."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(np.ascontiguousarray(part, "<i8").tobytes())
    return whole.hexdigest()


@dataclass(frozen=True, eq=False)
class Labels:
    """Class labels as codes 0..Y-1 of the labels that occur, in ascending order."""

    values: Ints
    codes: Ints
    counts: Ints

    def shuffled_order(self, rng: np.random.Generator) -> Ints:
        """The samples sorted by label, in random order within each label."""
        mixed = rng.permutation(len(self.codes))
        return mixed[np.argsort(self.codes[mixed], kind="stable")]

    def deal(self, counts: Ints, rng: np.random.Generator) -> Ints:
        """The owner of each sample; `counts[i, c]` is how many of label c client i gets."""
        clients, classes = counts.shape
        owner = np.empty(len(self.codes), np.int64)
        holders = np.tile(np.arange(clients), classes)
        owner[self.shuffled_order(rng)] = np.repeat(holders, counts.T.ravel())
        return owner


@dataclass(frozen=True, eq=False)
class Assignment:
    """What a scheme answers: the client of each sample."""

    owner: Ints
    clients: int
    note: str = ""

    def parts(self) -> tuple[Ints, ...]:
        order = np.argsort(self.owner, kind="stable").astype(np.int64, copy=False)
        ends = np.cumsum(np.bincount(self.owner, minlength=self.clients))
        return tuple(np.split(order, ends[:-1]))


@dataclass(frozen=True, eq=False)
class PartitionRequest:
    """What a scheme is asked; its methods turn a bad request into one sentence for the user."""

    scheme: Named
    y: npt.NDArray[np.generic]
    wanted_clients: int | None
    rng: np.random.Generator
    users: npt.NDArray[np.generic] | None = None

    def error(self, message: str) -> InputError:
        return InputError(f"partition '{self.scheme}': {message}")

    @property
    def samples(self) -> int:
        return len(self.y)

    @property
    def clients(self) -> int:
        """The number of clients, for a scheme that does not bring its own."""
        clients = self.wanted_clients
        if clients is None:
            raise self.error("clients is missing; say how many, for example clients=10")
        if clients < 1:
            raise self.error(f"clients must be at least 1, not {clients}")
        if clients > self.samples:
            raise self.error(
                f"clients={clients} is more than the {self.samples} samples; "
                f"use at most clients={self.samples}"
            )
        return clients

    @cached_property
    def labels(self) -> Labels:
        if self.y.ndim == 2 and self.y.dtype.kind in "iub":
            raise self.error(
                f"each sample has {self.y.shape[1]} labels, as the positions of a text have, and "
                "no class to divide by; use natural, iid, lognormal or powerlaw, or in Python "
                "fr.split(…, labels=…)"
            )
        if self.y.ndim != 1 or self.y.dtype.kind not in "iub":
            raise self.error(
                f"y must be one whole-number class label per sample, not {self.y.dtype} of shape "
                f"{self.y.shape}; fr.split takes others as labels=…, and iid, lognormal, "
                "powerlaw and natural need none"
            )
        values, codes, counts = np.unique(
            self.y.astype(np.int64), return_inverse=True, return_counts=True
        )
        if len(values) * (self.wanted_clients or 1) > MOST_CELLS:
            raise self.error(
                f"y has {len(values)} different values for {self.wanted_clients} clients, too many "
                "for classes; iid, lognormal and powerlaw need no labels"
            )
        return Labels(values, codes.astype(np.int64, copy=False), counts.astype(np.int64))

    def parameter(
        self,
        name: str,
        example: str,
        kind: type[int] | type[float] = float,
        low: float = 0,
        high: float | None = None,
    ) -> float:
        """The scheme's value as a number; `example` is shown when it is missing."""
        if self.scheme.value is None:
            also = " or give --alpha" if name == "alpha" else ""
            raise self.error(f"{name} is missing; write for example {example}{also}")
        field = f"partition '{self.scheme}': {name}"
        return number(self.scheme.value, field, kind=kind, low=low, high=high)

    def minimum(self) -> int:
        """Least samples per client: `min_size`, or 10 where half an even share allows it."""
        text = self.scheme.options.get("min_size")
        if text is None:
            return max(1, min(USUAL_MINIMUM, self.samples // (2 * self.clients)))
        minimum = number(text, f"partition '{self.scheme}': min_size", kind=int, low=0)
        if minimum * self.clients > self.samples:
            raise self.error(
                f"min_size={minimum} for {self.clients} clients needs more than the "
                f"{self.samples} samples; use at most min_size={self.samples // self.clients}"
            )
        return minimum
