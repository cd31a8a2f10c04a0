"""Classes of a run: accuracy over rounds, forgetting, confusion, recency, bias."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fedrift.analysis import classes
from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.pictures import classes as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record


def measure(case: Case, options: Options) -> Finding:
    """From the recorded rounds, and one pass of the final model over the test set."""
    rows = [row for row in case.history if row.get("classes")]
    count, data = case.problem.classes, case.task.test
    if not rows or count is None or data is None:
        raise NotMeasured("it has no accuracy per class: there is no test set or no class")
    if not classes.is_labelled(data[1]):
        raise NotMeasured("its samples have not one class each")
    accuracy = np.array([row["classes"] for row in rows], np.float64)
    every = _presence(case, _cohorts(case, rows), count)
    evaluated = [row["round"] - 1 for row in rows]
    recent = classes.recency(accuracy, classes.held(every), evaluated)
    share = every[evaluated]
    forgotten = classes.forgetting(accuracy)
    options.watch.begin("batches of test samples", classes.passes(data), 0.0)
    logits, predicted = classes.outputs(case.model(), case.shown, data, options.watch)
    mean_logits = logits.mean(axis=0)
    norms = classes.head_norms(case.problem, case.weights)
    numbers: Record = {
        "round": case.round,
        "rounds": [row["round"] for row in rows],
        "accuracy": accuracy.tolist(),
        "presence": share.tolist(),
        "held": classes.held(share)[-1].tolist(),
        "recency": recent,
        "forgetting": forgotten.tolist(),
        "mean_forgetting": float(forgotten.mean()),
        "drops": classes.drops(accuracy),
        "confusion": classes.confusion(data[1].cpu().numpy(), predicted, count).tolist(),
        "norms": norms,
        "mean_logits": mean_logits.tolist(),
        "bias": {
            "logits_and_presence": classes.correlation(mean_logits, share[-1]),
            "norms_and_presence": classes.correlation(norms, share[-1]) if norms else None,
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
    together = {n: draw for n, draw in TOGETHER["classes"].items() if has_lift or n != "recency"}
    return Finding("Classes", tuple(about), numbers, figures, together)


def _cohorts(case: Case, rows: list[Record]) -> list[Sequence[int]]:
    """Of every round up to the last evaluated one: what is seen in between is seen, too."""
    known = {row["round"]: row["cohort"] for row in rows}
    return [known.get(t) or case.cohorts.get(t, ()) for t in range(1, rows[-1]["round"] + 1)]


def _presence(case: Case, cohorts: list[Sequence[int]], count: int) -> classes.Floats:
    """From the labels of those clients alone that have taken part: there may be a million more."""
    split = case.task.split
    place = {client: i for i, client in enumerate(sorted({c for some in cohorts for c in some}))}
    table = np.zeros((len(place), count))
    for client, i in place.items():
        held = split.view(client).batch(None)[1] if split.make else split.y[split.parts[client]]
        labels = held.cpu().numpy()
        table[i] = np.bincount(labels[labels >= 0], minlength=count)[:count]
    return classes.presence([[place[c] for c in some] for some in cohorts], table)
