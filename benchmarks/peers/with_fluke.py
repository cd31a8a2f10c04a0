"""fluke through its Python interface; one process, as its parallel training is for GPUs only.

https://makgyver.github.io/fluke/examples/tutorials/fluke_quick_api.html for the steps,
https://makgyver.github.io/fluke/parallel_run.html for what can be parallel. Data that are divided
already go into a `DummyDataContainer` of its `FastDataLoader`s; the evaluator is our own, because
fluke's computes seven more metrics and no loss at the server.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# ruff: noqa: I001

from __future__ import annotations

from typing import Any

from torch import nn

from peers import vision as vision  # before fluke, which imports torchvision
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.scaffold import SCAFFOLD
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import Evaluator
from fluke.utils import FederationObserver

from peers import work
from peers.notes import Notes


class Loss(Evaluator):
    """Mean test loss of the global model."""

    def __init__(self, row: work.Work) -> None:
        super().__init__(eval_every=1)
        self.row, self.last = row, 0.0

    def evaluate(
        self, round: int, model: nn.Module, eval_data_loader: Any, *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        data = work.data(self.row)
        self.last = work.evaluate(model, data.test_x, data.test_y)
        return {"loss": self.last}


class Watch(FederationObserver):
    def __init__(self, notes: Notes, loss: Loss) -> None:
        self.notes, self.loss = notes, loss

    def end_round(self, round: int, **kwargs: Any) -> None:
        self.notes.ended(round, self.loss.last)


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    data, loss = work.data(row), Loss(row)
    FlukeENV().set_seed(seed)
    FlukeENV().set_evaluator(loss)

    def loader(x: Any, y: Any, batch: int, shuffle: bool) -> FastDataLoader:
        return FastDataLoader(x, y, num_labels=work.CLASSES, batch_size=batch, shuffle=shuffle)

    clients = [
        loader(*data.of(client, row.samples), row.batch, True) for client in range(row.clients)
    ]
    test = loader(data.test_x, data.test_y, work.EVALUATION_BATCH, False)
    container = DummyDataContainer(clients, [None] * row.clients, test, work.CLASSES)
    client = DDict(
        batch_size=row.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=row.lr),
        scheduler=DDict(gamma=1, step_size=1),
    )
    settings = DDict(client=client, server=DDict(weighted=True), model=work.model(row))
    make = SCAFFOLD if row.algorithm == "scaffold" else FedAVG
    algorithm = make(row.clients, DataSplitter(dataset=container), settings)
    algorithm.set_callbacks([Watch(notes, loss)])
    notes.began()
    algorithm.run(row.rounds, row.cohort / row.clients)
    return True
