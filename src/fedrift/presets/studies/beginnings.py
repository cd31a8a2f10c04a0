"""Clients that begin in five ways, work alone, are averaged and go on together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrift import models
from fedrift.analysis.landscape import Line, line, scorer
from fedrift.analysis.matching import Chain, merged
from fedrift.data.resident import Split
from fedrift.dividing import split as split_data
from fedrift.exchange import Shown
from fedrift.flat import Batch, Vec
from fedrift.front import run
from fedrift.presets.studies.making import load, mean
from fedrift.problem import Problem, define
from fedrift.streams import stream, torch_seed

SHARED, RENUMBERED, DIFFERENT = "shared", "renumbered", "different"
ALIGNED = ", aligned"
WAYS = (SHARED, RENUMBERED, RENUMBERED + ALIGNED, DIFFERENT, DIFFERENT + ALIGNED)


@dataclass(frozen=True)
class Seen:
    """What one way to begin has led to, with one seed."""

    alone: float
    """Mean accuracy of the clients' models before they are averaged."""
    average: float
    distance: float
    """Between the first two models."""
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
    said: Mapping[str, Any]
    seed: int

    def trained(self, starts: Sequence[Vec]) -> list[Vec]:
        """Every client's model after its own work from its own start."""
        made: list[Vec] = []
        for client, start in enumerate(starts):
            result = run(
                "fedavg",
                model=self.problem.module(start, {}),
                clients=[self.split[client]],
                rounds=1,
                seed=self.seed + 1000 * client,
                workers=0,
                **self.said,
            )
            made.append(result.weights)
        return made

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
            **self.said,
        )
        return result.accuracy


def bench_of(text: str, said: Mapping[str, Any], data: Path | None, seed: int) -> Bench:
    held = load(said["data"], data)
    split = split_data(held.x, held.y, "iid", clients=said["clients"], seed=seed)
    test = torch.from_numpy(held.x_test), torch.from_numpy(held.y_test)
    problem = define(
        models.factory(text, held.x.shape[1:], held.classes),
        torch.nn.functional.cross_entropy,
        (test[0][:2], test[1][:2]),
        init_seed=torch_seed(seed, "init"),
        population=len(split),
        participation=1.0,
        rounds=int(said["rounds"]),
    )
    local = {key: said[key] for key in ("epochs", "batch_size", "lr")}
    return Bench(text, problem, Chain.of(problem.layout), split, test, local, seed)


def compared(bench: Bench, said: Mapping[str, Any]) -> dict[str, Seen]:
    clients, rounds = int(said["clients"]), int(said["rounds"])
    at = np.linspace(0, 1, int(said["points"])).tolist()
    score = scorer(bench.problem, bench.test, Shown(bench.problem.w0, ()))
    seen: dict[str, Seen] = {}
    for way in (SHARED, RENUMBERED, DIFFERENT):
        trained = bench.trained(_starts(bench, way, clients))
        variants = {way: trained}
        if way != SHARED:
            variants[way + ALIGNED] = merged(bench.chain, trained, seed=bench.seed)
        for name, group in variants.items():
            average = torch.stack(group).double().mean(0).to(group[0].dtype)
            first = score(average)[1] or 0.0
            seen[name] = Seen(
                alone=mean([score(w)[1] or 0.0 for w in group]),
                average=first,
                distance=float((group[0] - group[1]).double().norm()),
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
        rng = stream(bench.seed, "renumbered", client=client)
        orders = {layer: rng.permutation(width) for layer, width in bench.chain.widths().items()}
        starts.append(bench.chain.renumbered(w0, orders))
    return starts


def _fresh(problem: Problem, seed: int, client: int) -> Vec:
    """Initial weights of a client's own."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "init", client=client))
        tensors = dict(problem.make().named_parameters())
    return torch.cat([tensors[name].detach().reshape(-1) for name in problem.layout.names])
