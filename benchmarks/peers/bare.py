"""The limit: gradient steps and evaluation in plain PyTorch, nothing else, on both cores.

Each worker does its share of the visits and of the test set, alone: there is no model to send,
nothing to average, nobody to wait for. So its losses are no federation's, and are not compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor, nn

from peers import work
from peers.notes import Notes

WORKERS = 2
Images = tuple[Tensor, Tensor]


def steps(
    module: nn.Module, train: Images, test: Images, *, visits: int, samples: int, batch: int,
    lr: float, rounds: int, evaluation_batch: int = work.EVALUATION_BATCH,
) -> Iterator[float]:  # fmt: skip
    """Train so many clients in turn and evaluate; yields the seconds that each round took."""
    torch.set_num_threads(1)
    if any(isinstance(part, nn.Conv2d) for part in module.modules()):
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        train, test = ((x.to(memory_format=torch.channels_last), y) for x, y in (train, test))
    sgd = torch.optim.SGD(module.parameters(), lr=lr)
    (x, y), clients = train, len(train[1]) // samples
    for _ in range(rounds):
        start = time.perf_counter()
        for client in torch.randperm(clients)[:visits].tolist():
            module.train()
            for some in (torch.randperm(samples) + client * samples).split(batch):
                sgd.zero_grad()
                nn.functional.cross_entropy(module(x[some]), y[some]).backward()
                sgd.step()
        work.evaluate(module, *test, batch=evaluation_batch)
        yield time.perf_counter() - start


def _share(row: work.Work, rank: int, ready: Barrier, taken: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    data = work.data(row)
    test = data.test_x[rank::WORKERS], data.test_y[rank::WORKERS]
    rounds = steps(
        work.model(row),
        (data.x, data.y),
        test,
        visits=row.cohort // WORKERS,
        samples=row.samples,
        batch=row.batch,
        lr=row.lr,
        rounds=row.rounds,
    )
    ready.wait()
    taken.put(list(rounds))


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    spawn = get_context("spawn")
    ready, taken = spawn.Barrier(WORKERS + 1), spawn.Queue()
    workers = [
        spawn.Process(target=_share, args=(row, rank, ready, taken)) for rank in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    notes.began()
    at = time.time()
    for round, seconds in enumerate(zip(taken.get(), taken.get(), strict=True), 1):
        at += sum(seconds) / WORKERS
        notes.ended(round, at=at)
    for worker in workers:
        worker.join()
    return True
