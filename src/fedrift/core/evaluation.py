"""Quality on a test set as sums over chunks, which any process may compute; and at clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np
import torch
from torch import Tensor

from fedrift.core import alignment
from fedrift.core.algorithm import Algorithm, EvaluatedModel
from fedrift.core.alignment import settled
from fedrift.core.composition import personal_path, resolve
from fedrift.core.exchange import Exchange, Signature
from fedrift.core.flat import Vec, count, flatten, take
from fedrift.core.isolation import seed_alike
from fedrift.core.messages import Sum, message, shaped
from fedrift.core.phases import EVALUATE
from fedrift.core.problem import Problem
from fedrift.core.training_report import is_classification
from fedrift.rng import torch_seed

EVALUATION_CHUNK = 250  # fixed, so that results do not depend on who evaluates
PICTURES = 125  # of a chunk that go through the model at once

Chunk = Mapping[str, Any]
ChunkMetric = Callable[[Any, Any, Any, "int | None", "Tensor | None"], Mapping[str, Any]]


class Sums(TypedDict):
    """What one chunk adds. The last two only for classification."""

    n: int
    weight: int
    """Labels the mean loss is taken over: one per sample, or one per labelled position."""
    loss_sum: float
    class_correct: NotRequired[np.ndarray]
    class_total: NotRequired[np.ndarray]
    per_position: NotRequired[bool]
    """Labels stand at the positions of a sequence."""


def evaluate_chunk(
    output: Any,
    target: Any,
    loss: Callable[[Any, Any], Tensor],
    classes: int | None,
    allowed: Tensor | None = None,
) -> Sums:
    """The sums of one chunk; `loss` gives its mean.

    There is accuracy when `target` holds class numbers and `output` has `classes` as its second
    axis: one label per sample, or per position (N×classes×positions against N×positions). A
    negative label is not counted, as cross-entropy ignores −100. `allowed` marks the classes
    that may be predicted; the loss does not know of it.
    """
    n = count(target)
    mean = float(loss(output, target)) if n else 0.0
    if classes is None or not is_classification(output, target, classes):
        return Sums(n=n, weight=n, loss_sum=mean * n)
    labels, predicted = target.reshape(-1), _predict(output, allowed).reshape(-1)
    if n and int(labels.min()) < 0:
        counted = labels >= 0
        labels, predicted = labels[counted], predicted[counted]
    hits = labels[predicted == labels]
    weight = labels.numel()
    sums = Sums(
        n=n,
        weight=weight,
        loss_sum=mean * weight if weight else 0.0,  # the mean over no label is NaN
        class_correct=torch.bincount(hits, minlength=classes).cpu().numpy(),
        class_total=torch.bincount(labels, minlength=classes).cpu().numpy(),
    )
    return {**sums, "per_position": True} if target.dim() == 2 else sums


def _predict(output: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is not None:
        shape = (1, -1, *[1] * (output.dim() - 2))
        output = output.masked_fill(~allowed.bool().view(shape), -math.inf)
    return output.argmax(dim=1)


def combine(chunks: Iterable[Sums]) -> dict[str, Any]:
    """The metrics of the whole set: `loss` and `n`, and for classification `accuracy`, `classes`
    (accuracy per class, 0 where there are no samples), `class_correct` and `class_total`; for
    labels at the positions of a sequence `perplexity` too.

    Chunks are added in the order given, in double precision, so where they were computed does
    not show. A loss that is not finite stays so.
    """
    sums = list(chunks)
    n, weight = sum(c["n"] for c in sums), sum(c["weight"] for c in sums)
    loss_sum = 0.0
    for chunk in sums:  # not sum(): newer Pythons compensate it, and bits must not depend on that
        loss_sum += chunk["loss_sum"]
    metrics: dict[str, Any] = {"loss": loss_sum / weight if weight else math.nan, "n": n}
    correct = [c["class_correct"] for c in sums if "class_correct" in c]
    total = [c["class_total"] for c in sums if "class_total" in c]
    if not sums or len(correct) < len(sums):
        return metrics
    hits, seen = np.sum(correct, axis=0), np.sum(total, axis=0)
    metrics["accuracy"] = float(hits.sum() / max(1, seen.sum()))
    metrics["classes"] = (hits / np.maximum(1, seen)).tolist()
    metrics["class_correct"], metrics["class_total"] = hits.tolist(), seen.tolist()
    if all("per_position" in c for c in sums):
        metrics["perplexity"] = _exp(metrics["loss"])
    return metrics


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


# Evaluation at clients: what they are sent, what they say, and what it comes to.


@message
class ModelDown:
    """The model that clients evaluate, or make their own of."""

    w: Vec
    allowed: Tensor | None = shaped(torch.bool, lambda algorithm, p: (p.classes or 0,))


@message
class ClientSums:
    """What a client says of its test data: sums, no sample and no label."""

    n: Sum[int]
    weight: Sum[int]
    """Labels, or samples, that the mean loss is taken over."""
    loss_sum: Sum[float]
    labels: Sum[int]
    """Labels that could be right or wrong; 0 where targets are no classes."""
    correct: Sum[int]
    lost: Sum[int]
    """1 if the loss is no finite number; it is 0 then."""


def client_sums(chunks: Iterable[Mapping[str, Any]]) -> ClientSums:
    """The chunks of one client's test data as it speaks of them."""
    sums = list(chunks)
    loss = 0.0
    for chunk in sums:  # in order, as in `combine`
        loss += chunk["loss_sum"]
    is_lost = not math.isfinite(loss)
    return ClientSums(
        n=sum(c["n"] for c in sums),
        weight=sum(c["weight"] for c in sums),
        loss_sum=0.0 if is_lost else loss,
        labels=sum(int(c["class_total"].sum()) for c in sums if "class_total" in c),
        correct=sum(int(c["class_correct"].sum()) for c in sums if "class_correct" in c),
        lost=int(is_lost),
    )


def evaluation_exchange(
    root: Algorithm[Any, Any], p: Problem, shown: EvaluatedModel, round: int, seed: int
) -> Exchange:
    """Asks clients to evaluate the model, or their own, on test data of their own."""
    path = personal_path(root, p) or ""
    sent, named = sent_for_evaluation(root, p, path), p.layout.named(shown.w)
    w = shown.w
    if sent.layout.names != p.layout.names:
        w = flatten([named[name] for name in sent.layout.names]) if sent.layout.names else w[:0]
    moving = dict(zip(p.moving, shown.buffers, strict=True))
    return Exchange(
        phase=f"{path}.{EVALUATE}" if path else EVALUATE,
        signature=evaluation_signature(root, p, path),
        round=round,
        seed=seed,
        down=ModelDown(w=w, allowed=shown.allowed),
        private={},
        buffers=tuple(moving[name] for name in sent.moving),
        weights="uniform",
        temperature=shown.temperature,
        frozen=shown.frozen,
    )


def sent_for_evaluation(root: Algorithm[Any, Any], p: Problem, path: str) -> Problem:
    """The task of what is sent: the model without that which clients keep."""
    node, view = resolve(root, p, path)
    return view.keeping(node.kept())


def received(sent: Problem, whole: Problem, down: ModelDown, buffers: Sequence[Tensor]) -> Received:
    """The model that was sent, whole again: what clients keep is as it was in the beginning."""
    w = down.w
    if sent.layout.names != whole.layout.names:
        w = whole.layout.placed(whole.w0, sent.layout, w)
    moving = dict(zip(sent.moving, buffers, strict=True))
    return w, tuple(moving.get(name, whole.rest[name]) for name in whole.moving)


Received = tuple[Vec, tuple[Tensor, ...]]
"""Parameters and buffers."""


def evaluation_signature(root: Algorithm[Any, Any], p: Problem, path: str) -> Signature:
    """The classes of the exchange in which clients evaluate."""
    node, view = resolve(root, p, path)
    mine = node.client(view)
    return Signature(ModelDown, ClientSums, None if mine is None else type(mine), None)


@dataclass
class ClientFigures:
    """What clients said of their test data in one round, in the order of clients."""

    clients: list[int] = field(default_factory=list[int])
    said: list[ClientSums] = field(default_factory=list[ClientSums])

    def add(self, client: int, weight: float, sums: ClientSums) -> None:
        """A watch of the exchange."""
        self.clients.append(client)
        self.said.append(sums)

    def row(self, round: int, visited: Set[int]) -> dict[str, Any]:
        """A line of the table of clients: a list for each column."""
        nan = math.nan
        line: dict[str, Any] = {
            "round": round,
            "client": self.clients,
            "n": [s.n for s in self.said],
            "loss": [
                math.nan if s.lost or not s.weight else s.loss_sum / s.weight for s in self.said
            ],
            "visited": [int(c in visited) for c in self.clients],
        }
        if any(s.labels for s in self.said):
            line["accuracy"] = [s.correct / s.labels if s.labels else nan for s in self.said]
        return line


def client_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a round that a line of the table of clients comes to."""
    sizes = np.asarray(row["n"], dtype=np.float64)
    losses = np.asarray(row["loss"], dtype=np.float64)
    columns: dict[str, Any] = {"client_loss": float(losses.mean())} if len(losses) else {}
    if "accuracy" in row:
        values = np.asarray(row["accuracy"], dtype=np.float64)
        has = np.isfinite(values)
        figures = fairness(values[has].tolist(), sizes[has].tolist())
        columns |= {column: figures[name] for column, name in FIGURES.items()}
    columns["clients_evaluated"] = len(row["client"])
    columns["clients_not_visited"] = len(row["client"]) - sum(row["visited"])
    return columns


def judged_at_clients(
    server: Mapping[str, Any], row: Mapping[str, Any], clients: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of a round whose accuracy and loss are the clients' means; what the server's
    model reaches on the server's test set stands beside them under `global_…`.

    A client whose loss is lost has no part in the loss; if all are, it is no number.
    """
    losses = np.asarray(row["loss"], dtype=np.float64)
    known = losses[np.isfinite(losses)]
    columns: dict[str, Any] = {"loss": float(known.mean()) if len(known) else math.nan}
    if "client_accuracy" in clients:
        columns["accuracy"] = clients["client_accuracy"]
    columns["n"] = int(sum(row["n"]))
    columns |= {f"global_{name}": server[name] for name in ("accuracy", "loss") if name in server}
    columns |= {name: value for name, value in server.items() if name not in OF_THE_SERVER}
    return {**columns, **clients}


OF_THE_SERVER = ("accuracy", "loss", "n", "classes", "class_correct", "class_total", "perplexity")
"""What `combine` says of the server's test set."""

FIGURES = {
    "client_accuracy": "mean",
    "client_accuracy_weighted": "weighted",
    "client_accuracy_std": "std",
    "client_accuracy_worst": "worst_decile",
    "client_accuracy_best": "best_decile",
    "client_accuracy_jain": "jain",
}
"""Column → figure of `fairness`."""


def fairness(accuracies: Sequence[float], sizes: Sequence[float] | None = None) -> dict[str, float]:
    """How evenly the clients are served: mean, mean weighted by `sizes`, standard deviation (of the
    clients, not a sample of them), min, max, the means of the worst and of the best tenth of the
    clients (at least one), and Jain's index, (Σa)² / (N Σa²): 1 if all are served alike."""
    if not len(accuracies):
        raise ValueError("fairness needs the accuracy of at least one client")
    given = np.asarray(accuracies, dtype=np.float64)
    values, tenth = np.sort(given), math.ceil(len(given) / 10)
    squares = float((values**2).sum())
    return {
        "mean": float(values.mean()),
        "weighted": float(np.average(given, weights=sizes)),
        "std": float(values.std()),
        "min": float(values[0]),
        "max": float(values[-1]),
        "worst_decile": float(values[:tenth].mean()),
        "best_decile": float(values[-tenth:].mean()),
        "jain": float(values.sum() ** 2 / (len(values) * squares)) if squares else 1.0,
    }


@dataclass(frozen=True)
class Evaluator:
    """The server's test data and what is measured on it, chunk by chunk."""

    problem: Problem
    x: Any
    y: Any
    measure: ChunkMetric
    keeps_outputs: bool = False
    sizes: tuple[int, ...] = ()
    """Samples of the parts it consists of, which no chunk crosses; empty: it is one."""

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._slices)

    @cached_property
    def _slices(self) -> list[slice]:
        """Where the chunks are."""
        found: list[slice] = []
        start = 0
        for size in self.sizes or (count(self.x),):
            end = start + size
            edges = [*range(start, end, EVALUATION_CHUNK), end]
            found += [slice(a, b) for a, b in pairwise(edges)]
            start = end
        return found

    @cached_property
    def _seeds(self) -> list[int]:
        return [torch_seed(0, "evaluation", client=i) >> 1 for i in range(len(self))]

    @torch.no_grad()
    def chunks(self, shown: EvaluatedModel, which: range | None = None) -> list[dict[str, Any]]:
        """What each chunk adds; all of them if it is not said which."""
        problem, model = self.problem, self.problem.model
        if shown.allowed is not None:
            shown = replace(shown, allowed=shown.allowed.to(problem.device))
        model.load(shown.w)
        return [self._chunk(i, shown) for i in which or range(len(self))]

    def _chunk(self, i: int, shown: EvaluatedModel) -> dict[str, Any]:
        some, problem = self._slices[i], self.problem
        # A slice begins where the samples before it end, which need not be at a boundary.
        x, target = settled((take(self.x, some), take(self.y, some)))
        if alignment.CHECKS:
            alignment.check_settled("test samples", x, target)
        problem.model.begin(shown.buffers, shown.frozen, shown.temperature)
        seed_alike(self._seeds[i])  # the same draws whoever evaluates, and in every round
        output = self._output(x)
        sums = dict(self.measure(output, target, problem.loss, problem.classes, shown.allowed))
        if self.keeps_outputs:
            sums["output"] = output
        return sums

    def _output(self, x: Any) -> Any:
        """The output for a chunk; pictures in pieces, because what convolutions make of them then
        fits into a core's cache."""
        model = self.problem.model
        if not isinstance(x, Tensor) or x.dim() != 4 or len(x) <= PICTURES or model.has_batch_norm:
            return model.output(x)
        first = model.output(x[:PICTURES])
        if not isinstance(first, Tensor) or first.shape[:1] != (PICTURES,):
            return model.output(x)  # who knows how its parts would be put together
        return torch.cat([first, *map(model.output, x[PICTURES:].split(PICTURES))])


class Pending(Protocol):
    """An evaluation under way."""

    def chunks(self) -> list[Chunk]:
        """Wait for it; the chunks in order."""
        ...


@dataclass(frozen=True)
class Done:
    """An evaluation that was finished at once."""

    parts: Sequence[Chunk]

    def chunks(self) -> list[Chunk]:
        return list(self.parts)
