"""Classes over rounds: what is forgotten, what the last cohort held, where the classifier leans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.next_round import Unwatched, Watch
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.flat import Batch, count, take
from fedrift.core.flat_model import FlatModel
from fedrift.core.problem import Problem
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import classes as pictures
from fedrift.storage.jsonl import Record

Floats = npt.NDArray[np.float64]
CHUNK = 250
LEAST = 0.1  # of an even share of the cohort's samples, to say that it held a class
OLDEST = 10  # rounds since a class was seen that are told apart


def forgetting(accuracy: Floats) -> Floats:
    """Best earlier accuracy of each class minus its last one (Chaudhry et al. 2018), at least 0.

    `accuracy` is rounds × classes; with a single round nothing can have been forgotten.
    """
    if len(accuracy) < 2:
        return np.zeros(accuracy.shape[1])
    return np.maximum(0.0, accuracy[:-1].max(axis=0) - accuracy[-1])


def drops(accuracy: Floats) -> float:
    """Mean fall of a class's accuracy from one evaluated round to the next; rises count as 0."""
    if len(accuracy) < 2:
        return 0.0
    return float(np.maximum(0.0, accuracy[:-1] - accuracy[1:]).mean())


def presence(cohorts: Sequence[Sequence[int]], counts: Floats) -> Floats:
    """Share of each class among the samples of each cohort: rounds × classes."""
    totals = np.array([counts[list(c)].sum(axis=0) for c in cohorts], np.float64)
    return totals / np.maximum(1.0, totals.sum(axis=1, keepdims=True))


def held_classes(share: Floats) -> npt.NDArray[np.bool_]:
    """Which classes a cohort really held: a tenth of an even share, not a stray sample or two."""
    return share * share.shape[1] >= LEAST


def ages(present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Rounds since each class was last held by the cohort; −1 where it never was."""
    rounds_since = np.empty(present.shape, np.int64)
    age = np.full(present.shape[1], -1, np.int64)
    for t, row in enumerate(present):
        age = np.where(row, 0, np.where(age < 0, -1, age + 1))
        rounds_since[t] = age
    return rounds_since


def recency(
    accuracy: Floats, present: npt.NDArray[np.bool_], at: Sequence[int] | None = None
) -> dict[str, object]:
    """Accuracy of classes by the rounds since the cohort held them; `lift` is seen now − not seen.

    `present` has a row for every round; `at` says which of them were evaluated (all of them).
    Both are averaged over rounds and classes; nan where there is no such case.
    """
    rows = slice(None) if at is None else np.array(at)
    age, present = ages(present)[rows], present[rows]
    by_age = [_mean(accuracy[age == a]) for a in range(OLDEST)]
    older = _mean(accuracy[age >= OLDEST])
    lift = _mean(accuracy[present]) - _mean(accuracy[~present])
    return {"by_age": by_age, "older": older, "never": _mean(accuracy[age < 0]), "lift": lift}


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")


def is_labelled(target: object) -> bool:
    """One class for each sample: not one for each position, not several, not values."""
    return isinstance(target, torch.Tensor) and target.dim() == 1 and not target.is_floating_point()


def passes(data: Batch) -> int:
    """Steps that `outputs` takes for one model."""
    return -(-count(data[0]) // CHUNK)


def outputs(
    model: FlatModel, shown: EvaluatedModel, data: Batch, watch: Watch | None = None
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Logits of all samples and what is predicted from them; the model stands ready."""
    watch, parts = watch or Unwatched(), list[torch.Tensor]()
    for start in range(0, count(data[0]), CHUNK):
        parts.append(model.logits(shown.w, take(data[0], slice(start, start + CHUNK))))
        watch.step()
    logits = torch.cat(parts)
    masked = logits
    if shown.allowed is not None:
        masked = logits.masked_fill(~shown.allowed.bool(), -torch.inf)
    return logits.double().cpu().numpy(), masked.argmax(1).cpu().numpy()


def confusion(
    true: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], classes: int
) -> npt.NDArray[np.int64]:
    """Counts: row = true class, column = predicted; negative labels are not counted."""
    counted = true >= 0
    pairs = true[counted] * classes + predicted[counted]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def head_norms(problem: Problem, w: torch.Tensor) -> list[float] | None:
    """Length of each class's row of the classifier; None if the model names no head of its own."""
    if problem.head is None or problem.classes is None:
        return None
    weight = problem.layout.named(w).get(problem.head_names()[0])
    return None if weight is None else weight.double().norm(dim=1).tolist()


def correlation(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Pearson's; nan if one of them does not vary."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 2 or not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


# The measurement: a run's recorded rounds, and its final model on the test set.


def measure(case: Case, options: Options) -> Finding:
    """From the recorded rounds, and one pass of the final model over the test set."""
    rows = [row for row in case.history if row.get("classes")]
    count, data = case.problem.classes, case.task.test
    if not rows or count is None or data is None:
        raise NotMeasured("it has no accuracy per class: there is no test set or no class")
    if not is_labelled(data[1]):
        raise NotMeasured("its samples have not one class each")
    accuracy = np.array([row["classes"] for row in rows], np.float64)
    every = _cohort_presence(case, _cohorts(case, rows), count)
    evaluated = [row["round"] - 1 for row in rows]
    recent = recency(accuracy, held_classes(every), evaluated)
    share = every[evaluated]
    forgotten = forgetting(accuracy)
    options.watch.begin("batches of test samples", passes(data), 0.0)
    logits, predicted = outputs(case.model(), case.shown, data, options.watch)
    mean_logits = logits.mean(axis=0)
    norms = head_norms(case.problem, case.weights)
    numbers: Record = {
        "round": case.round,
        "rounds": [row["round"] for row in rows],
        "accuracy": accuracy.tolist(),
        "presence": share.tolist(),
        "held": held_classes(share)[-1].tolist(),
        "recency": recent,
        "forgetting": forgotten.tolist(),
        "mean_forgetting": float(forgotten.mean()),
        "drops": drops(accuracy),
        "confusion": confusion(data[1].cpu().numpy(), predicted, count).tolist(),
        "norms": norms,
        "mean_logits": mean_logits.tolist(),
        "bias": {
            "logits_and_presence": correlation(mean_logits, share[-1]),
            "norms_and_presence": correlation(norms, share[-1]) if norms else None,
        },
    }
    about = [
        f"After round {rows[-1]['round']} a class stands on average "
        f"{100 * forgotten.mean():.1f} points below its best earlier accuracy, and loses "
        f"{100 * numbers['drops']:.1f} points from one evaluated round to the next."
    ]
    lift = recent["lift"]
    has_lift = isinstance(lift, float) and lift == lift
    if isinstance(lift, float) and has_lift:
        about.append(
            f"Classes that the cohort of a round held are {100 * abs(lift):.1f} points "
            f"{'more' if lift >= 0 else 'less'} accurate after it than those it did not hold: the "
            "more, the more the model leans to what it saw last."
        )
    else:
        about.append("Every cohort held every class, so nothing can be said about recency.")
    drawn: dict[str, Any] = {
        "over-rounds": pictures.over_rounds,
        "confusion": pictures.confusion,
        "bias": pictures.bias,
    }
    drawn |= {"recency": pictures.recency} if has_lift else {}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    together = {
        n: draw for n, draw in COMMON_FIGURES["classes"].items() if has_lift or n != "recency"
    }
    return Finding("Classes", tuple(about), numbers, figures, together)


def _cohorts(case: Case, rows: list[Record]) -> list[Sequence[int]]:
    """Of every round up to the last evaluated one: what is seen in between is seen, too."""
    known = {row["round"]: row.get("cohort") for row in rows}
    return [known.get(t) or case.cohorts.get(t, ()) for t in range(1, rows[-1]["round"] + 1)]


def _cohort_presence(case: Case, cohorts: list[Sequence[int]], count: int) -> Floats:
    """From the labels of those clients alone that have taken part: there may be a million more."""
    split = case.task.split
    place = {client: i for i, client in enumerate(sorted({c for some in cohorts for c in some}))}
    table = np.zeros((len(place), count))
    for client, i in place.items():
        targets = split.view(client).batch(None)[1] if split.make else split.y[split.parts[client]]
        labels = targets.cpu().numpy()
        table[i] = np.bincount(labels[labels >= 0], minlength=count)[:count]
    return presence([[place[c] for c in some] for some in cohorts], table)
