"""Fed3R does not see how data are divided: Fanì, Camoriano, Caputo, Ciccone, ICML 2024.

On the features of frozen extractors, Fed3R at every degree of heterogeneity against ridge
regression on the pooled data, solved by other code; accuracy against the number of clients seen;
and gradient methods on the same features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedrift.comparison import Item
from fedrift.data.arrays import split
from fedrift.data.split import Split
from fedrift.engine.features import Missing
from fedrift.engine.result import Result
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    accuracies,
    findings_of,
    from_objects,
    mean,
    one_pass,
    over_rounds,
    percent,
    run_all,
    seeds,
    with_defaults,
)
from fedrift.presets.studies.extractors import (
    Featured,
    accuracy,
    load_features,
    pooled_ridge,
)

USUAL: dict[str, Any] = {
    "extractors": [
        {
            "name": "MobileNetV2",
            "data": "cifar100:train=5000,test=2000",
            "model": "mobilenet-v2:size=128",
        },
    ],
    "partitions": ["dirichlet:0", "dirichlet:0.1", "dirichlet:1", "iid"],
    "ridge": 0.01,
    "per_round": 10,
    "rivals": ["fedavg", "scaffold"],
    "rival_rounds": 50,
    "rival_lr": 0.1,
    "last": 5,
}
POOLED = "pooled ridge"


@dataclass(frozen=True)
class Compared:
    """Fed3R on one division, beside the pooled solution."""

    accuracy: float
    difference: float
    """Largest difference of a weight, relative to the largest weight."""
    agreement: float
    """Share of test samples for which both predict the same class."""
    curve: Curve


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """One table for all extractors; a figure for what grows with the clients seen."""
    options = with_defaults(settings, USUAL)
    by_extractor: dict[str, dict[str, list[Compared]]] = {}
    pooled: dict[str, list[tuple[float, float]]] = {}
    rivals: dict[str, dict[str, list[Result]]] = {}
    notes: list[str] = []
    for one in options["extractors"]:
        for seed in seeds(options):
            try:
                features = load_features(one, options, data, folder, seed, tell)
            except Missing as reason:
                notes.append(f"Left out: {reason}.")
                break
            _compare(features, options, folder, seed, tell, by_extractor, pooled, rivals)
    notes = [*_notes(options, by_extractor), *notes]
    return _findings(folder, options, by_extractor, pooled, rivals, notes)


def _compare(
    features: Featured,
    options: Mapping[str, Any],
    folder: Path,
    seed: int,
    tell: Tell,
    by_extractor: dict[str, dict[str, list[Compared]]],
    pooled: dict[str, list[tuple[float, float]]],
    rivals: dict[str, dict[str, list[Result]]],
) -> None:
    """All runs on one extractor's features with one seed."""
    normal = pooled_ridge(*features.train, features.classes, options["ridge"], True)
    plain = pooled_ridge(*features.train, features.classes, options["ridge"], False)
    both = accuracy(*normal, features.test), accuracy(*plain, features.test)
    pooled.setdefault(features.name, []).append(both)
    clients = {
        scheme: split(*features.train, scheme, clients=features.options["clients"], seed=seed)
        for scheme in options["partitions"]
    }
    ridge = f"fed3r:ridge={options['ridge']}"
    items = [_item(features, ridge, scheme, clients, options, folder, seed) for scheme in clients]
    others = [
        (rival, scheme)
        for rival in options["rivals"]
        for scheme in (next(iter(clients)), list(clients)[-1])
    ]
    items += [
        _item(features, rival, scheme, clients, options, folder, seed) for rival, scheme in others
    ]
    results = run_all(items, options, tell)
    for scheme, result in zip(clients, results, strict=False):
        one = _against(result, normal, features, clients[scheme])
        by_extractor.setdefault(features.name, {}).setdefault(scheme, []).append(one)
    for (rival, scheme), result in zip(others, results[len(clients) :], strict=True):
        label = f"{rival}, {scheme}"
        rivals.setdefault(features.name, {}).setdefault(label, []).append(result)


def _item(
    features: Featured,
    algorithm: str,
    scheme: str,
    clients: Mapping[str, Split],
    options: Mapping[str, Any],
    folder: Path,
    seed: int,
) -> Item:
    closed = algorithm.startswith("fed3r")
    number = len(clients[scheme])
    more = {} if closed else {"epochs": 1, "batch_size": 50, "lr": options["rival_lr"]}
    return from_objects(
        f"{features.name}, {algorithm.partition(':')[0]}, {scheme}",
        algorithm,
        folder,
        seed,
        model=partial(nn.Linear, features.width, features.classes),
        clients=clients[scheme],
        test=features.test,
        rounds=one_pass(number, options) if closed else options["rival_rounds"],
        per_round=min(options["per_round"], number),
        dtype="float64",
        **more,
    )


def _against(
    result: Result, pooled: tuple[np.ndarray, np.ndarray], features: Featured, clients: Split
) -> Compared:
    named = result.problem.layout.named(result.weights)
    weight, bias = named["weight"].numpy(), named["bias"].numpy()
    largest = max(np.abs(pooled[0]).max(), np.abs(pooled[1]).max())
    away = max(np.abs(weight - pooled[0]).max(), np.abs(bias - pooled[1]).max())
    x = features.test[0].numpy()
    same = (x @ weight.T + bias).argmax(1) == (x @ pooled[0].T + pooled[1]).argmax(1)
    seen = np.cumsum([len(row["cohort"]) for row in result.metrics]).tolist()
    curve = seen, over_rounds(result)[1]
    return Compared(
        accuracy(weight, bias, features.test), float(away / largest), float(same.mean()), curve
    )


def _findings(
    folder: Path,
    options: Mapping[str, Any],
    by_extractor: Mapping[str, Mapping[str, Sequence[Compared]]],
    pooled: Mapping[str, Sequence[tuple[float, float]]],
    rivals: Mapping[str, Mapping[str, Sequence[Result]]],
    notes: Sequence[str],
) -> Findings:
    rows: list[list[Any]] = []
    for name, by_scheme in by_extractor.items():
        rows.append([f"{name}, {POOLED}", percent([a for a, _ in pooled[name]]), None, None])
        plain = percent([b for _, b in pooled[name]])
        rows.append([f"{name}, {POOLED}, not normalised", plain, None, None])
        for scheme, seen in by_scheme.items():
            rows.append(
                [
                    f"{name}, fed3r, {scheme}",
                    percent([one.accuracy for one in seen]),
                    max(one.difference for one in seen),
                    percent([one.agreement for one in seen]),
                ]
            )
        for label, results in rivals.get(name, {}).items():
            last = percent([mean(one.accuracy[-options["last"] :]) for one in results])
            rows.append([f"{name}, {label}", last, None, None])
    columns = ("method", "accuracy (%)", "largest difference from pooled", "same predictions (%)")
    seen = {
        name: {scheme: many[0].curve for scheme, many in by_scheme.items()}
        for name, by_scheme in by_extractor.items()
    }
    over = {name: _over_rounds(by, rivals.get(name, {})) for name, by in by_extractor.items()}
    shown = {"clients": seen, "rounds": over}
    labels = {"clients": "clients seen", "rounds": "round"}
    figures = [
        accuracies(folder, f"fed3r-{key}", one, labels[key]) for key, one in shown.items() if one
    ]
    draft = Draft("Fed3R and the pooled solution", columns, rows)
    return findings_of([draft], options, figures, notes, shown)


def _over_rounds(
    closed: Mapping[str, Sequence[Compared]], rivals: Mapping[str, Sequence[Result]]
) -> dict[str, Curve]:
    first, last = next(iter(closed)), list(closed)[-1]
    by_label: dict[str, Curve] = {}
    for scheme in dict.fromkeys((first, last)):
        values = closed[scheme][0].curve[1]
        by_label[f"fed3r, {scheme}"] = list(range(1, len(values) + 1)), values
    for label, results in rivals.items():
        by_label[label] = over_rounds(results[0])
    return by_label


def _notes(
    options: Mapping[str, Any], by_extractor: Mapping[str, Mapping[str, Sequence[Compared]]]
) -> list[str]:
    used = [one for one in options["extractors"] if one["name"] in by_extractor]
    notes = [
        f"λ = {options['ridge']}, bias column, class weights normalised, float64; the pooled "
        "solution "
        "is computed by a Cholesky factorisation of all samples at once, outside the algorithm.",
        "Features: " + "; ".join(_described(one) for one in used) + ".",
    ]
    worst = max(
        (c.difference for by in by_extractor.values() for many in by.values() for c in many),
        default=0,
    )
    notes.append(
        f"Over all extractors and divisions Fed3R's weights differ from the pooled ones by at most "
        f"{worst:.1e} of the largest weight."
    )
    return notes


def _described(one: Mapping[str, Any]) -> str:
    before = one.get("pretrained_on")
    trained = f" pre-trained on {before}" if before else ""
    some = one.get("pretrained_classes")
    trained += f", classes {', '.join(map(str, some))}" if some else ""
    target = f", classes {', '.join(map(str, one['classes']))}" if one.get("classes") else ""
    return f"{one['name']} = {one['model']}{trained}, on {one['data']}{target}"
