"""A pre-trained network with a fresh head: where fine-tuning begins, and how good features are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedrift.data.samples import DataSet
from fedrift.features import Extractor, extract, extractor
from fedrift.presets.findings import Tell
from fedrift.presets.studies.extracting import accuracy, body, fresh_head, pooled_ridge, read
from fedrift.presets.studies.making import cores, load
from fedrift.problem import define
from fedrift.streams import torch_seed

LOOKED_AT = 1000  # samples whose features are measured


@dataclass(frozen=True)
class Start:
    """The pre-trained network with a fresh head, and the data it is to be used on."""

    network: nn.Module
    head: str
    held: DataSet
    clients: int

    def frozen(self) -> nn.Module:
        """The same with everything but the head frozen."""
        network = copy.deepcopy(self.network).requires_grad_(False)
        network.get_submodule(self.head).requires_grad_(True)
        return network


def start_of(
    said: Mapping[str, Any], data: Path | None, folder: Path, seed: int, tell: Tell
) -> Start:
    one = read(said["extractor"])
    held = load(one["data"], data, one["classes"])
    network = body(one, held, data, folder, seed, tell)
    make = (lambda: network) if isinstance(network, nn.Module) else network
    problem = define(
        make,
        nn.functional.cross_entropy,
        (torch.from_numpy(held.x[:2]), torch.zeros(2, dtype=torch.int64)),
        init_seed=torch_seed(seed, "init"),
        population=1,
        participation=1.0,
        rounds=1,
    )
    problem.head_names()  # refuses a model without one
    head = problem.head or ""
    module = problem.module(problem.w0, {})
    made = fresh_head(module, head, held.classes, torch_seed(seed, "fresh head"))
    return Start(made, head, held, int(one["clients"]))


def squared_length(start: Start) -> float:
    """Mean squared length of the features, on which the steps that are stable depend."""
    source = _source(start.network, start)
    return float(extract(source, start.held.x[:LOOKED_AT]).square().sum(1).mean())


def _source(module: nn.Module, start: Start) -> Extractor:
    example = torch.from_numpy(start.held.x[:2])
    return extractor("tuned", lambda: module, example, head=start.head)


def ridge_on(module: nn.Module, start: Start, said: Mapping[str, Any]) -> float:
    """Accuracy of ridge regression on the features of a network, pooled."""
    held = start.held
    source = _source(module, start)
    train, test = (extract(source, x, cores(said)).double() for x in (held.x, held.x_test))
    y, y_test = torch.from_numpy(held.y), torch.from_numpy(held.y_test)
    solved = pooled_ridge(train, y, held.classes, said["ridge"], True)
    return accuracy(*solved, (test, y_test))
