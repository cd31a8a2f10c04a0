"""What permutation invariance breaks: averages of clients that began with different weights.

Three ways to begin, the same data: everybody from the same weights; from the same weights with the
hidden neurons renumbered (the same function); from independent weights. Each also with the neurons
aligned before they are averaged (weight matching by linear assignment), and the share of neurons
that the matching leaves where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrift import models
from fedrift.analysis.landscape import Line, line, scorer
from fedrift.analysis.matching import Chain, align_all, match_neurons, unmoved
from fedrift.api import run
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.flat import Batch, Vec
from fedrift.core.isolation import drawing_alone, one_thread
from fedrift.core.problem import Problem, define
from fedrift.data.arrays import split as split_data
from fedrift.data.split import Split
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    accuracies,
    findings_of,
    load,
    mean,
    over_seeds,
    percent,
    seeds,
    with_defaults,
)
from fedrift.rng import generator, torch_seed
from fedrift.storage.jsonl import Record

# One network: clients begin in some ways, work alone, are averaged and go on together.

SHARED, RENUMBERED, DIFFERENT = "shared", "renumbered", "different"
ALIGNED = ", aligned"
WAYS = (SHARED, RENUMBERED, DIFFERENT)


@dataclass(frozen=True)
class Seen:
    """What one way to begin has led to, with one seed."""

    alone: float
    """Mean accuracy of the clients' models before they are averaged."""
    average: float
    distance: float
    """Between the first two models."""
    unmoved: float
    """Share of the hidden neurons that are matched to themselves, the first client's to others'."""
    line: Line
    rounds: tuple[float, ...]
    """Accuracy of the average after each round."""


@dataclass(frozen=True)
class Bench:
    """One network on one division of the data."""

    text: str
    problem: Problem
    chain: Chain
    split: Split
    test: Batch
    local: Mapping[str, Any]
    seed: int

    def trained(self, starts: Sequence[Vec]) -> list[Vec]:
        """Every client's model after its own work from its own start."""
        models_trained: list[Vec] = []
        for client, start in enumerate(starts):
            result = run(
                "fedavg",
                model=self.problem.module(start, {}),
                clients=[self.split[client]],
                rounds=1,
                seed=self.seed + 1000 * client,
                workers=0,
                **self.local,
            )
            models_trained.append(result.weights)
        return models_trained

    def continued(self, start: Vec, rounds: int) -> list[float]:
        """Accuracies of FedAvg from these weights on."""
        if not rounds:
            return []
        result = run(
            "fedavg",
            model=self.problem.module(start, {}),
            clients=self.split,
            test=self.test,
            rounds=rounds,
            seed=self.seed,
            workers=0,
            **self.local,
        )
        return result.accuracy


def bench_of(text: str, options: Mapping[str, Any], data: Path | None, seed: int) -> Bench:
    data_set = load(options["data"], data)
    partition, clients = options["partition"], options["clients"]
    split = split_data(data_set.x, data_set.y, partition, clients=clients, seed=seed)
    test = torch.from_numpy(data_set.x_test), torch.from_numpy(data_set.y_test)
    problem = define(
        models.factory(text, data_set.x.shape[1:], data_set.classes),
        torch.nn.functional.cross_entropy,
        (test[0][:2], test[1][:2]),
        init_seed=torch_seed(seed, "init"),
        population=len(split),
        participation=1.0,
        rounds=int(options["rounds"]),
    )
    local = {key: options[key] for key in ("epochs", "batch_size", "lr")}
    return Bench(text, problem, Chain.of(problem.layout), split, test, local, seed)


def compared(bench: Bench, options: Mapping[str, Any]) -> dict[str, Seen]:
    clients, rounds = int(options["clients"]), int(options["rounds"])
    at = np.linspace(0, 1, int(options["points"])).tolist()
    score = scorer(bench.problem, bench.test, EvaluatedModel(bench.problem.w0, ()))
    seen: dict[str, Seen] = {}
    for way in options["ways"]:
        trained = bench.trained([options["start"] * w for w in _starts(bench, way, clients)])
        aligned = align_all(bench.chain, trained, seed=bench.seed)
        variants = {way: trained, way + ALIGNED: aligned}
        for name, group in variants.items():
            average = torch.stack(group).double().mean(0).to(group[0].dtype)
            first = score(average)[1] or 0.0
            seen[name] = Seen(
                alone=mean([score(w)[1] or 0.0 for w in group]),
                average=first,
                distance=float((group[0] - group[1]).double().norm()),
                unmoved=mean([unmoved(match_neurons(bench.chain, group[0], w)) for w in group[1:]]),
                line=line(score, group[0], group[1], at),
                rounds=(first, *bench.continued(average, rounds - 1)),
            )
    return seen


def _starts(bench: Bench, way: str, clients: int) -> list[Vec]:
    w0 = bench.problem.w0
    if way == SHARED:
        return [w0] * clients
    if way == DIFFERENT:
        return [w0, *(_fresh(bench.problem, bench.seed, client) for client in range(1, clients))]
    starts = [w0]
    for client in range(1, clients):
        rng = generator(bench.seed, "renumbered", client=client)
        orders = {layer: rng.permutation(width) for layer, width in bench.chain.widths().items()}
        starts.append(bench.chain.renumbered(w0, orders))
    return starts


def _fresh(problem: Problem, seed: int, client: int) -> Vec:
    """Initial weights of a client's own."""
    with drawing_alone(torch_seed(seed, "init", client=client)):
        tensors = dict(problem.make().named_parameters())
    return torch.cat([tensors[name].detach().reshape(-1) for name in problem.layout.names])


USUAL: dict[str, Any] = {
    "data": "mnist:train=6000,test=2000",
    "partition": "iid",
    "ways": list(WAYS),
    "start": 1.0,
    "models": ["mlp"],
    "clients": 4,
    "rounds": 8,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "points": 13,
}


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Averages over rounds, and along the line between two clients' models."""
    options = with_defaults(settings, USUAL)
    by_model: dict[str, dict[str, list[Seen]]] = {}
    for text in options["models"]:
        for seed in seeds(options):
            begun = " and ".join(options["ways"])
            tell(f"{text}, seed {seed}: {options['clients']} clients begin {begun}")
            with one_thread():
                ways = compared(bench_of(text, options, data, seed), options)
            for way, seen in ways.items():
                by_model.setdefault(text, {}).setdefault(way, []).append(seen)
    facts = {
        text: {way: _facts(seen) for way, seen in ways.items()} for text, ways in by_model.items()
    }
    return findings_of(
        [_table(by_model, options)],
        options,
        figures=[
            _drawn(folder, "lines", _shown(facts, "at", "accuracy")),
            _drawn(folder, "rounds", _shown(facts, "round", "rounds")),
        ],
        notes=_notes(by_model, options),
        facts=facts,
    )


def _table(
    by_model: Mapping[str, Mapping[str, Sequence[Seen]]], options: Mapping[str, Any]
) -> Draft:
    rounds = options["rounds"]
    rows = [
        [
            f"{text}, {way}",
            percent([s.alone for s in seen]),
            percent([s.average for s in seen]),
            over_seeds([s.line.barrier() for s in seen]),
            over_seeds([s.distance for s in seen]),
            percent([s.unmoved for s in seen]),
            percent([s.rounds[-1] for s in seen]),
        ]
        for text, ways in by_model.items()
        for way, seen in ways.items()
    ]
    columns = (
        "beginning",
        "clients alone (%)",
        "average after round 1 (%)",
        "loss barrier between two",
        "distance of two",
        "matched to themselves (%)",
        f"after round {rounds} (%)",
    )
    return Draft("Averages of clients by how they began", columns, rows)


def _facts(seen: Sequence[Seen]) -> Record:
    """Means over seeds of what is drawn."""
    return {
        "at": list(seen[0].line.at),
        "accuracy": np.mean([s.line.accuracy for s in seen], axis=0).tolist(),
        "loss": np.mean([s.line.loss for s in seen], axis=0).tolist(),
        "round": list(range(1, len(seen[0].rounds) + 1)),
        "rounds": np.mean([s.rounds for s in seen], axis=0).tolist(),
    }


def _notes(
    by_model: Mapping[str, Mapping[str, Sequence[Seen]]], options: Mapping[str, Any]
) -> list[str]:
    notes = [
        f"{options['clients']} clients with {options['partition']} shares of {options['data']}; "
        f"{options['epochs']} local epochs a round, batches of {options['batch_size']}, rate "
        f"{options['lr']}. In the first round every client works from its own start; from the "
        "second on this is plain FedAvg.",
        "Matched to themselves: neurons of the other clients' models whose best match in the first "
        "client's has the same number.",
    ]
    if options["start"] != 1:
        notes.append(f"The weights that clients begin with are multiplied by {options['start']}.")
    if RENUMBERED in options["ways"]:
        notes.append(
            "'renumbered' clients begin with the same function as 'shared' ones, only their hidden "
            "neurons stand in another order."
        )
    for text, ways in by_model.items():
        at = {way: f"{100 * mean([s.average for s in seen]):.1f} %" for way, seen in ways.items()}
        reached = [f"{way} {at[way]} and, aligned, {at[way + ALIGNED]}" for way in options["ways"]]
        notes.append(f"{text}, averaged after one round: {'; '.join(reached)}.")
    return notes


def _shown(
    facts: Mapping[str, Mapping[str, Record]], x: str, y: str
) -> dict[str, dict[str, Curve]]:
    return {
        text: {way: (one[x], [100 * value for value in one[y]]) for way, one in ways.items()}
        for text, ways in facts.items()
    }


def _drawn(folder: Path, name: str, shown: Mapping[str, Mapping[str, Curve]]) -> str:
    return accuracies(
        folder,
        f"permutation-{name}",
        shown,
        {"lines": "position between two clients' models", "rounds": "round"}[name],
        marks=name == "rounds",
        dashed=lambda label: label.endswith(ALIGNED),
    )
