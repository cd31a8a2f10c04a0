"""Features of images by a frozen MobileNetV2 on both cores, against two bare loops.

    python benchmarks/features.py [IMAGES]        320 unless said

Weights are random ones: speed does not depend on them. The bare loops are two processes, each with
one thread and half of the images, channels-last, in batches of the same size. Both in turns; the
least time of each counts.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from typing import Any

import torch
from torch import Tensor

import history
from fedrift import models
from fedrift.engine.features import BATCH, Extractor, extract, extractor
from overhead import WORKERS, console

IMAGES, REPEATS, TARGET = 320, 4, 0.9
MODEL, SHAPE, CLASSES = "mobilenet-v2:size=96", (3, 32, 32), 10


def frozen() -> Extractor:
    return extractor(MODEL, models.factory(MODEL, SHAPE, CLASSES), images(2))


def images(number: int) -> Tensor:
    return torch.randn(number, *SHAPE, generator=torch.Generator().manual_seed(0))


def bare(number: int, turns: Any) -> None:
    """A loop of its own: whenever it is its turn, its share of the images."""
    torch.set_num_threads(1)
    module = frozen().module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = images(number).to(memory_format=torch.channels_last)
    with torch.no_grad():
        while turns.recv():
            torch.cat([module(some).flatten(1) for some in x.split(BATCH)])
            turns.send(True)


def main(number: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(WORKERS)]
    given = (number // WORKERS,)
    loops = [spawn.Process(target=bare, args=(*given, there), daemon=True) for _, there in pipes]
    for loop in loops:
        loop.start()
    turns, source, x = [here for here, _ in pipes], frozen(), images(number)
    best = {"bare": float("inf"), "ours": float("inf")}
    for _ in range(REPEATS):
        start = time.perf_counter()
        extract(source, x, WORKERS)
        best["ours"] = min(best["ours"], time.perf_counter() - start)
        start = time.perf_counter()
        for turn in turns:
            turn.send(True)
        for turn in turns:
            turn.recv()
        best["bare"] = min(best["bare"], time.perf_counter() - start)
    for turn in turns:
        turn.send(False)
    rates = {name: number / seconds for name, seconds in best.items()}
    ratio = rates["ours"] / rates["bare"]
    console.print(
        f"{number} images: two bare loops {rates['bare']:.0f} a second, extraction "
        f"{rates['ours']:.0f}: {ratio:.3f} of it, target ≥ {TARGET}"
    )
    history.keep({"features: time of extraction ÷ two bare loops": 1 / ratio})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
