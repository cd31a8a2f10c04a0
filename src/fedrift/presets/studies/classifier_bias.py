"""Where heterogeneity hurts: layers that drift apart, classes that are forgotten.

CKA per layer between client models after local work (Luo et al., NeurIPS 2021), and accuracy per
class over rounds under partial participation: FedAvg leans to the classes it saw last, Fed3R on a
frozen extractor cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.analysis.case import Options
from fedrift.analysis.classes import ages, drops, held_classes
from fedrift.analysis.examine import MEASURES
from fedrift.comparison import Loader
from fedrift.config.spec import Spec
from fedrift.engine.result import Result
from fedrift.figures import classes as pictures
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Draft,
    case_of,
    curves,
    draw,
    findings_of,
    from_spec,
    mean,
    over_seeds,
    percent,
    run_all,
    seeds,
    spec_of,
    with_defaults,
)
from fedrift.storage.jsonl import Record

USUAL: dict[str, Any] = {
    "data": "mnist:train=5000,test=2000",
    "model": "cnn",
    "extractor": "random-conv",
    "algorithms": ["fedavg", "scaffold"],
    "partitions": ["dirichlet:0", "dirichlet:0.5", "iid"],
    "clients": 20,
    "per_round": 4,
    "rounds": 40,
    "epochs": 2,
    "batch_size": 32,
    "lr": 0.05,
    "images": 500,
}
CLOSED = "fed3r"


@dataclass(frozen=True)
class Bias:
    """Classes of one run over its rounds."""

    final: float
    lift: float
    """Within a round: classes the cohort held, minus those seen earlier that it did not hold."""
    unrest: float
    """What a class loses from one round to the next, on average."""
    numbers: Record


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """CKA of the first algorithm on every partition; classes of all of them on the first."""
    options = with_defaults(settings, USUAL)
    first, worst = options["algorithms"][0], options["partitions"][0]
    cases = [(first, partition) for partition in options["partitions"]]
    cases += [(name, worst) for name in (*options["algorithms"][1:], CLOSED)]
    loader = Loader()
    similar: dict[str, list[Record]] = {}
    biased: dict[str, list[Bias]] = {}
    for seed in seeds(options):
        items = [
            from_spec(f"{name}, {scheme}", _spec(name, scheme, seed, options, data), folder, loader)
            for name, scheme in cases
        ]
        for (name, scheme), result in zip(cases, run_all(items, options, tell), strict=True):
            if name == first:
                tell(f"CKA of client models, {scheme}")
                similar.setdefault(scheme, []).append(_similarity(result, options, data))
            if scheme == worst:
                biased.setdefault(name, []).append(_bias(result, data))
    return _findings(folder, options, similar, biased)


def _spec(name: str, scheme: str, seed: int, options: Mapping[str, Any], data: Path | None) -> Spec:
    keys = ("data", "clients", "per_round", "rounds")
    return spec_of(
        options,
        keys if name == CLOSED else (*keys, "epochs", "batch_size", "lr"),
        data,
        algorithm=name,
        partition=scheme,
        model=options["extractor"] if name == CLOSED else options["model"],
        seed=seed,
    )


def _similarity(result: Result, options: Mapping[str, Any], data: Path | None) -> Record:
    """Mean CKA between clients by layer, from the round that would follow."""
    case = case_of(result, data)
    finding = MEASURES["cka"](case, Options(clients=options["per_round"], images=options["images"]))
    return {layer: one["between"] for layer, one in finding.numbers["layers"].items()}


def _bias(result: Result, data: Path | None) -> Bias:
    numbers = MEASURES["classes"](case_of(result, data), Options()).numbers
    accuracy = np.array(numbers["accuracy"], np.float64)
    present = held_classes(np.array(numbers["presence"], np.float64))
    return Bias(result.accuracy[-1], _lift(accuracy, present), drops(accuracy), numbers)


def _lift(accuracy: np.ndarray, present: np.ndarray) -> float:
    """Only within rounds: early ones have fewer classes, so they must not be mixed with late."""
    earlier = ages(present) > 0
    rounds = [t for t in range(len(accuracy)) if present[t].any() and earlier[t].any()]
    lifts = [accuracy[t][present[t]].mean() - accuracy[t][earlier[t]].mean() for t in rounds]
    return float(np.mean(lifts)) if lifts else 0.0


def _findings(
    folder: Path,
    options: Mapping[str, Any],
    similar: Mapping[str, Sequence[Record]],
    biased: Mapping[str, Sequence[Bias]],
) -> Findings:
    layers = list(next(iter(similar.values()))[0])
    first, worst = options["algorithms"][0], options["partitions"][0]
    alike = Draft(
        f"CKA between client models after local work ({first})",
        ("layer", *similar),
        [
            [layer, *(over_seeds([o[layer] for o in many]) for many in similar.values())]
            for layer in layers
        ],
    )
    classes = Draft(
        f"Classes over rounds ({worst}, {options['per_round']} of {options['clients']} clients a "
        "round)",
        ("algorithm", "final accuracy (%)", "lift of classes just seen", "lost per round"),
        [
            [
                name,
                percent([one.final for one in many]),
                percent([one.lift for one in many]),
                percent([one.unrest for one in many]),
            ]
            for name, many in biased.items()
        ],
    )
    by_layer = {
        "": {
            scheme: (list(range(len(layers))), [mean([o[layer] for o in many]) for layer in layers])
            for scheme, many in similar.items()
        }
    }
    runs = {name: many[0].numbers for name, many in biased.items()}
    figures = [
        draw(
            folder,
            "bias-cka",
            partial(
                curves,
                shown=by_layer,
                x="layer, from input to output",
                ticks=layers,
                y="linear CKA between clients",
                marks=True,
            ),
        ),
        draw(folder, "bias-classes", partial(pictures.over_rounds, runs=runs)),
    ]
    facts = {
        "cka": {scheme: list(many) for scheme, many in similar.items()},
        "classes": {
            name: {key: one[key] for key in ("rounds", "accuracy", "presence")}
            for name, one in runs.items()
        },
    }
    notes = [
        f"{options['data']}, {options['model']}, {options['clients']} clients, "
        f"{options['per_round']} a round, "
        f"{options['rounds']} rounds of {options['epochs']} epochs, rate {options['lr']}; Fed3R "
        "on the "
        f"frozen features of {options['extractor']}.",
        f"CKA of {options['per_round']} client models after the work that follows round "
        f"{options['rounds']}, on {options['images']} test samples, outputs flattened.",
        "The lift compares, within each round, the classes its cohort held with those seen earlier "
        "that it did not hold, in points; 'lost per round' is the mean fall of a class's accuracy "
        "from one round to the next, in points. Fed3R's classes can fall only because new ones "
        "come to compete with them.",
    ]
    return findings_of([alike, classes], options, figures, notes, facts)
