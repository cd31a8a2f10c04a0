"""Evaluation of 10,000 images on two workers against the bare forward pass on both cores.

    python benchmarks/evaluation.py [MODEL]        `cnn` unless said

Ours is the time of a round whose training is one step on one sample: loss, accuracy of every class
and a metric of one's own are measured, what is sent and waited for counts. The bare loop computes
outputs and nothing else, channels-last, in batches of the same size, half of them in each of two
processes. Both in turns; the least of each counts.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import torch
from torch import Tensor

import fedrift as fr
import history
from fedrift import models
from fedrift.core.evaluation import EVALUATION_CHUNK
from overhead import WORKERS, Clock, console, images

SAMPLES, ROUNDS, REPEATS = 10_000, 8, 4
TARGET = 1.0


def bare_passes(model: str, turns: Any) -> None:
    """A worker's loop: whenever it is its turn, its half of the samples, so many times."""
    torch.set_num_threads(1)
    module = models.factory(model, (1, 28, 28), 10)().eval()
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = images(SAMPLES // WORKERS)[0].to(memory_format=torch.channels_last)
    with torch.no_grad():
        while turns.recv():
            for _ in range(ROUNDS):
                for some in x.split(EVALUATION_CHUNK):
                    module(some)
            turns.send(True)


def largest(output: Tensor, target: Tensor) -> float:
    """A metric of one's own."""
    return float(output.max())


def ours(model: str) -> float:
    """Seconds of a round that is nearly nothing but evaluation."""
    clock = Clock()
    fr.run(
        "fedavg",
        model=models.factory(model, (1, 28, 28), 10),
        clients=[images(1)],
        test=images(SAMPLES),
        metrics={"largest": largest},
        rounds=ROUNDS + 4,
        steps=1,
        workers=WORKERS,
        callbacks=[clock],
    )
    # a round is told of when its evaluation is done, two rounds later with workers
    return (clock.marks[-3] - clock.marks[1]) / (len(clock.marks) - 4)


def main(model: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(WORKERS)]
    loops = [
        spawn.Process(target=bare_passes, args=(model, there), daemon=True) for _, there in pipes
    ]
    for loop in loops:
        loop.start()
    turns = [here for here, _ in pipes]
    bare, here = float("inf"), float("inf")
    for _ in range(REPEATS):
        here = min(here, ours(model))
        for turn in turns:
            turn.send(True)
        start = time.perf_counter()
        for turn in turns:
            turn.recv()
        bare = min(bare, (time.perf_counter() - start) / ROUNDS)
    for turn in turns:
        turn.send(False)
    ratio = here / bare
    console.print(f"{SAMPLES:,} images through {model}: bare forward pass {bare:.3f} s, "
                  f"evaluation {here:.3f} s: {ratio:.3f}, target ≤ {TARGET}")  # fmt: skip
    history.keep({f"evaluation with {model} ÷ bare forward pass": ratio})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cnn")
