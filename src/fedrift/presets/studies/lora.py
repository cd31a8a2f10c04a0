"""Adapters against full training: a network trained on upright images learns turned ones.

The base is trained in one place, then adapted in a federation whose clients hold images that are
turned by a quarter, with more or less skewed labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedrift import models
from fedrift.api import run
from fedrift.core.isolation import drawing_alone
from fedrift.data.arrays import split as split_data
from fedrift.data.samples import DataSet
from fedrift.engine.result import Result
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    OverSeeds,
    accuracies,
    curves,
    draw,
    findings_of,
    from_objects,
    load,
    mean,
    over_seeds,
    percent,
    run_all,
    seeds,
    with_defaults,
)
from fedrift.rng import torch_seed

LAST = 3  # evaluations that an accuracy is the mean of, and rounds that a bias is
USUAL: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "base_epochs": 20,
    "alphas": [0.1, 10.0],
    "methods": {"full": "", "LoRA, rank 4": "lora:rank=4,alpha=8", "head": "head"},
    "clients": 10,
    "per_round": 5,
    "rounds": 30,
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.1,
    "eval_every": 3,
}
MEGA = 1e6


def turned(x: np.ndarray) -> torch.Tensor:
    """Images turned by a quarter."""
    return torch.from_numpy(np.ascontiguousarray(np.rot90(x, axes=(-2, -1))))


def base_of(options: Mapping[str, Any], data: DataSet, seed: int) -> nn.Module:
    """Trained on the images as they are, in one place."""
    make = models.factory(options["model"], data.x.shape[1:], data.classes)
    with drawing_alone(torch_seed(seed, "init")):
        start = make()
    here = torch.from_numpy(data.x), torch.from_numpy(data.y)
    local = {key: options[key] for key in ("batch_size", "lr")}
    trained = run(
        "fedavg",
        model=start,
        clients=[here],
        rounds=1,
        epochs=int(options["base_epochs"]),
        workers=0,
        seed=seed,
        **local,
    )
    return trained.module()


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Accuracy over bytes of every way to adapt, at every skew."""
    options = with_defaults(settings, USUAL)
    loaded = load(options["data"], data)
    local = {
        k: options[k] for k in ("rounds", "epochs", "batch_size", "lr", "eval_every", "per_round")
    }
    test = turned(loaded.x_test), torch.from_numpy(loaded.y_test)
    before: list[float] = []
    items, places = [], list[tuple[str, str, int]]()
    for seed in seeds(options):
        tell(f"base, seed {seed}")
        base = base_of(options, loaded, seed)
        before.append(_right(base, *test))
        for alpha in options["alphas"]:
            clients = split_data(
                turned(loaded.x),
                torch.from_numpy(loaded.y),
                f"dirichlet:{alpha:g}",
                clients=options["clients"],
                seed=seed,
            )
            for name, adapter in options["methods"].items():
                given = {"adapter": adapter} if adapter else {}
                label = f"{name}, alpha {alpha:g}"
                task = {"model": base, "clients": clients, "test": test}
                items.append(from_objects(label, "fedavg", folder, seed, **task, **local, **given))
                places.append((f"α = {alpha:g}", name, seed))
    results = dict(zip(places, run_all(items, options, tell), strict=True))
    note = f"Before it is adapted the base gets {100 * mean(before):.1f} % of the turned images."
    return _found(folder, options, results, note)


def _found(
    folder: Path,
    options: Mapping[str, Any],
    results: Mapping[tuple[str, str, int], Result],
    note: str,
) -> Findings:
    skews = list(dict.fromkeys(skew for skew, _, _ in results))
    names, numbers = list(options["methods"]), seeds(options)
    of = {(s, n): [results[s, n, seed] for seed in numbers] for s in skews for n in names}
    accuracy = [[n, *(percent([_final(r) for r in of[s, n]]) for s in skews)] for n in names]
    most = of[skews[0], names[0]]
    costs = [
        [
            name,
            int(of[skews[0], name][0].weights.numel()),
            over_seeds([_sent(one) for one in of[skews[0], name]], 3),
            mean([_sent(one) for one in of[skews[0], name]]) / mean([_sent(one) for one in most]),
            *(_bias(of[skew, name]) for skew in skews),
        ]
        for name in names
    ]
    shown: dict[str, dict[str, Curve]] = {
        skew: {name: _curve(of[skew, name], _megabytes) for name in names} for skew in skews
    }
    rounds: dict[str, dict[str, Curve]] = {
        skew: {name: _curve(of[skew, name], lambda one: one.rounds) for name in names}
        for skew in skews
    }
    y = "test accuracy (%)"
    pictures = [
        draw(folder, "bytes", partial(curves, shown=shown, x="MB sent", y=y, log=True)),
        accuracies(folder, "rounds", rounds),
    ]
    return findings_of(
        [
            Draft(
                f"accuracy (%), mean of the last {LAST} evaluations", ["method", *skews], accuracy
            ),
            Draft(
                "what is trained and sent, and the bias of the mean (share of the mean product)",
                [
                    "method",
                    "parameters",
                    "MB sent",
                    "share sent",
                    *(f"bias, {skew}" for skew in skews),
                ],
                costs,
            ),
        ],
        options,
        figures=pictures,
        notes=[note],
        facts={},
    )


@torch.no_grad()
def _right(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((module.eval()(x).argmax(1) == y).double().mean())


def _final(result: Result) -> float:
    """Mean of the last evaluations; 0 for a run that became infinite: worse than any."""
    return mean(result.accuracy[-LAST:]) if result.status == "done" else 0.0


def _sent(result: Result) -> float:
    return (result.ledger.bytes_up + result.ledger.bytes_down) / MEGA


def _bias(results: Sequence[Result]) -> OverSeeds | None:
    """How far the mean of products is from the product of means, as a share of the former."""
    shares = [
        [r["lora_bias"] / max(r["lora_product"], 1e-300) for r in one.metrics if "lora_bias" in r]
        for one in results
    ]
    if not all(shares):
        return None
    return over_seeds([mean(one[-LAST:]) for one in shares], 3)


def _curve(results: Sequence[Result], cost: Callable[[Result], Sequence[float]]) -> Curve:
    """Test accuracy over a cost, the mean of the seeds as far as all of them go."""
    shortest = min(len(one.rounds) for one in results)
    along = np.array([cost(one)[:shortest] for one in results], np.float64)
    heights = np.array([one.accuracy[:shortest] for one in results], np.float64)
    return along.mean(0).tolist(), (100 * heights).mean(0).tolist()


def _megabytes(result: Result) -> list[float]:
    """Sent until each evaluation."""
    total, sent = 0, dict[int, float]()
    for entry in result.ledger.entries:
        total += entry.cost.bytes_up + entry.cost.bytes_down
        sent[entry.round] = total / MEGA
    return [sent[r] for r in result.rounds]
