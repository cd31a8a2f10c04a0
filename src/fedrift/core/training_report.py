"""What local training reports: loss and accuracy of its minibatches, read once a visit.

Every minibatch is measured where its first gradient is taken, which is before its step: the first
one of a visit shows the model as it came, the last one nearly as it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

HELD = 1 << 16  # outputs that wait to be looked at together
WHEN = ("", "_before", "_after")
COLUMNS = tuple(f"train_{what}{when}" for what in ("loss", "accuracy") for when in WHEN)
"""Columns of a round: means over its clients."""


def is_classification(output: Any, target: Any, classes: int | None) -> bool:
    """The target holds class numbers and the output has `classes` as its second axis: one label
    per sample, or per position (N×classes×positions against N×positions)."""
    return (
        classes is not None
        and isinstance(output, Tensor)
        and isinstance(target, Tensor)
        and target.dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        and output.dim() == target.dim() + 1
        and classes > 1
        and output.shape == (target.shape[0], classes, *target.shape[1:])
    )


class Training(NamedTuple):
    """What one visit reports: means over its minibatches, over the first and over the last."""

    weight: int
    """Labels that the means are taken over; samples where there are no classes."""
    loss: float
    loss_before: float
    loss_after: float
    accuracy: float | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None

    @staticmethod
    def of(
        losses: Iterable[float], weights: Iterable[int], hits: Iterable[int] | None
    ) -> Training | None:
        """From the minibatches in their order; one without a label does not count."""
        seen = np.array(list(losses), dtype=float)[:, None]
        n = np.array(list(weights), dtype=np.int64)[:, None]
        right = None if hits is None else np.array(list(hits), dtype=np.int64)[:, None]
        return Training.of_each(seen, n, right)[0]

    @staticmethod
    def of_each(
        losses: np.ndarray, weights: np.ndarray, hits: np.ndarray | None
    ) -> list[Training | None]:
        """The same of several visits: a column for each, a row for their first minibatches."""
        counts, visits = weights > 0, np.arange(weights.shape[1])
        if not counts.any():
            return [None] * len(visits)
        loss_sum = np.zeros(len(visits))
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges, which is told
            for loss, n, is_there in zip(losses, weights, counts, strict=True):
                loss_sum += np.where(is_there, loss * n, 0.0)
        first, last = counts.argmax(0), len(counts) - 1 - counts[::-1].argmax(0)
        whole, each = np.maximum(weights.sum(0), 1), np.maximum(weights, 1)
        columns = [weights.sum(0), loss_sum / whole, losses[first, visits], losses[last, visits]]
        if hits is not None:
            right = np.where(counts, hits, 0)
            shares = right / each
            columns += [right.sum(0) / whole, shares[first, visits], shares[last, visits]]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [Training(*row) if row[0] else None for row in rows]

    def then(self, later: Training | None) -> Training:
        """Both as one: a visit that trains twice, a round that visits twice."""
        if later is None:
            return self
        weight = self.weight + later.weight
        loss = (self.loss * self.weight + later.loss * later.weight) / weight
        both = Training(weight, loss, self.loss_before, later.loss_after)
        if self.accuracy is None or later.accuracy is None:
            return both
        accuracy = (self.accuracy * self.weight + later.accuracy * later.weight) / weight
        return Training(*both[:4], accuracy, self.accuracy_before, later.accuracy_after)


Report: TypeAlias = Callable[[], Training | None]
"""What a training reports, to be asked for when it is over; the later, the more is read at once."""


def joined_reports(reports: Sequence[Report]) -> Training | None:
    """Those of one visit as one."""
    whole: Training | None = None
    for report in reports:
        one = report()
        whole = one if whole is None else whole.then(one)
    return whole


def no_report() -> None:
    """Nothing was trained."""


class Trace:
    """Sees every minibatch of a training. What it holds stays where it was computed, so that
    nobody waits for it, and is looked at in large pieces."""

    def __init__(self, classes: int | None) -> None:
        self._classes = classes
        self._k, self._held = -1, 0
        self._steps: list[int] = []
        self._sizes: list[int] = []
        self._losses: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._has_classes = True
        self._found: dict[int, tuple[float, int, int]] = {}

    def turn(self, k: int) -> None:
        """The next minibatch, which may come in several parts."""
        self._k = k

    def add(self, output: Any, target: Any, loss: Tensor) -> None:
        """A part of the minibatch: what the model made of it, and the mean loss."""
        if self._has_classes and not is_classification(output, target, self._classes):
            self._look()
            self._has_classes = False
        if self._has_classes:
            if self._outputs and output.shape[1:] != self._outputs[-1].shape[1:]:
                self._look()
            self._outputs.append(output.detach())
            self._targets.append(target)
            self._held += output.numel()
        self._steps.append(self._k)
        self._sizes.append(_samples(output, target))
        self._losses.append(loss.detach())
        if self._held > HELD:
            self._look()

    def _look(self) -> None:
        """Read what is held."""
        if not self._losses:
            return
        losses = torch.stack(self._losses).reshape(-1).double().cpu().numpy().tolist()
        weights, hits = self._sizes, [0] * len(losses)
        if self._has_classes:
            target = torch.cat(self._targets)
            right = torch.cat(self._outputs).argmax(1) == target
            begins = np.cumsum([0, *self._sizes[:-1]])
            weights, hits = (
                np.add.reduceat(_per_sample(one), begins).tolist() for one in (target >= 0, right)
            )
        for k, loss, n, hit in zip(self._steps, losses, weights, hits, strict=True):
            before = self._found.get(k, (0.0, 0, 0))
            added = loss * n if n else 0.0  # the mean over no label is NaN
            self._found[k] = before[0] + added, before[1] + n, before[2] + hit
        for held in (self._steps, self._sizes, self._losses, self._outputs, self._targets):
            held.clear()
        self._held = 0

    def end(self) -> Training | None:
        """What the training reports."""
        self._look()
        sums = list(self._found.values())
        return Training.of(
            [loss / max(1, n) for loss, n, _ in sums],
            [n for _, n, _ in sums],
            [hit for _, _, hit in sums] if self._has_classes else None,
        )


def _samples(output: Any, target: Any) -> int:
    for one in (target, output):
        if isinstance(one, Tensor) and one.dim():
            return one.shape[0]
    return 1


def _per_sample(labels: Tensor) -> np.ndarray:
    return labels.reshape(labels.shape[0], -1).sum(1).cpu().numpy()


# A round: what its clients report, as one line of the table of clients and as means.


class Reports:
    """What the clients of one round report."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[float, Training]] = {}

    def add(self, reports: Sequence[tuple[int, float, Training]]) -> None:
        """Those of one exchange: the client, the weight of its reply, its report."""
        for client, weight, training in reports:
            known = self._of.get(client)
            whole = training if known is None else known[1].then(training)
            self._of[client] = weight, whole

    def row(self, round: int) -> dict[str, Any]:
        """A line of the table: a column for each figure; empty if nobody has trained."""
        clients = sorted(self._of)
        if not clients:
            return {}
        columns: dict[str, Any] = {"client": clients}
        for place, name in enumerate(Training._fields):
            if name != "weight":
                values = [self._of[c][1][place] for c in clients]
                if None not in values:
                    columns[name] = values
        return {"round": round, **columns}

    def columns(self) -> dict[str, float]:
        """Means over the clients, weighted as their replies are."""
        of = [self._of[client] for client in sorted(self._of)]
        means: dict[str, float] = {}
        for place, name in enumerate(Training._fields):
            values = [(weight, training[place]) for weight, training in of]
            if name == "weight" or not of or any(value is None for _, value in values):
                continue
            whole = total = 0.0
            for weight, value in values:
                whole += weight
                total += weight * (value or 0.0)
            means[f"train_{name}"] = total / whole
        return means
