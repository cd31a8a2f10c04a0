"""FedLab's cross-process simulation: a server, and a serial trainer per core.

https://fedlab.readthedocs.io/en/master/quick_start.html and the example scale-mnist of its
repository: `SynchronousServerManager` with a `SyncServerHandler`, `PassiveClientManager` with an
`SGDSerialClientTrainer` that simulates its share of the clients one after the other.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# ruff: noqa: I001

from __future__ import annotations

import random
import socket
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peers import vision as vision  # before FedLab, which imports torchvision
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.client.manager import PassiveClientManager
from fedlab.core.network import DistNetwork
from fedlab.core.server.manager import SynchronousServerManager
from fedlab.utils.functional import evaluate

from peers import work
from peers.notes import Notes

TRAINERS = 2
HERE = "127.0.0.1"


class Share(FedDataset):
    """The clients of one trainer process, counted from 0."""

    def __init__(self, row: work.Work, rank: int) -> None:
        self.row, self.data = row, work.data(row)
        self.first = (rank - 1) * (row.clients // TRAINERS)

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader[Any]:
        mine = self.data.of(self.first + id, self.row.samples)
        return DataLoader(TensorDataset(*mine), batch_size=batch_size, shuffle=True)


def _train(row: work.Work, rank: int, port: str, seed: int) -> None:
    torch.set_num_threads(1)  # a core each
    torch.manual_seed(seed * TRAINERS + rank)
    is_scaffold = row.algorithm == "scaffold"
    make = ScaffoldSerialClientTrainer if is_scaffold else SGDSerialClientTrainer
    trainer = make(work.model(row), row.clients // TRAINERS, cuda=False)
    trainer.setup_dataset(Share(row, rank))
    trainer.setup_optim(1, row.batch, row.lr)
    network = DistNetwork((HERE, port), TRAINERS + 1, rank)
    PassiveClientManager(network, trainer).run()


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    random.seed(seed)
    np.random.seed(seed)
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = str(free.getsockname()[1])
    spawn = get_context("spawn")
    trainers = [
        spawn.Process(target=_train, args=(row, rank, port, seed), daemon=True)
        for rank in range(1, TRAINERS + 1)
    ]
    for trainer in trainers:
        trainer.start()
    data = work.data(row)
    test = DataLoader(TensorDataset(data.test_x, data.test_y), batch_size=work.EVALUATION_BATCH)
    is_scaffold = row.algorithm == "scaffold"
    base: Any = ScaffoldServerHandler if is_scaffold else SyncServerHandler

    class Handler(base):
        """Evaluates after every round, as the documentation's examples do."""

        def global_update(self, buffer: Any) -> None:
            super().global_update(buffer)
            loss = evaluate(self._model, nn.CrossEntropyLoss(), test)[0] / len(test)
            notes.ended(self.round + 1, loss)

    handler = Handler(work.model(row), row.rounds, row.cohort / row.clients)
    if is_scaffold:
        handler.setup_optim(lr=1.0)  # of the server
    notes.began()
    SynchronousServerManager(DistNetwork((HERE, port), TRAINERS + 1, 0), handler).run()
    for trainer in trainers:
        trainer.join()
    return True
