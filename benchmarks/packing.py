"""What packing a reply costs beside the visit that made it: ratios of processor time.

    python benchmarks/packing.py [--samples N]

A visit trains `cnn-mcmahan` (1.66 million parameters) for one epoch on a client's samples; its
update is packed and unpacked by each codec. Both take turns in one process with one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedrift import models
from fedrift.core.codecs import packed, packed_bytes, unpacked
from fedrift.core.compression import parse_compression

CODECS = ("topk:0.01", "topk:0.1", "qsgd:8", "qsgd:4", "sign", "float16")
BATCH, TURNS, SHAPE, CLASSES = 32, 5, (1, 28, 28), 10


def taken(work: Callable[[], object]) -> float:
    """Processor seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--samples", type=int, default=600, help="of the client that is visited")
    samples = given.parse_args().samples
    torch.set_num_threads(1)
    net = models.factory("cnn-mcmahan", SHAPE, CLASSES)()
    x, y = torch.randn(samples, *SHAPE), torch.randint(0, CLASSES, (samples,))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def visit() -> None:
        for i in range(0, samples, BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[i : i + BATCH]), y[i : i + BATCH]).backward()
            optimizer.step()

    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    visit()
    update = nn.utils.parameters_to_vector(net.parameters()).detach() - before
    table = Table("packing", "bytes ÷ float32", "packing ÷ visit", "turns")
    for text in CODECS:
        compression = parse_compression(f"up={text}")
        assert compression is not None
        how = compression.rules["up"]

        def there_and_back(how: object = how) -> None:
            data = packed(update, how, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
            unpacked(data, how, len(update), update.dtype)  # type: ignore[arg-type]

        turns = [taken(there_and_back) / taken(visit) for _ in range(TURNS)]
        share = packed_bytes(how, len(update), update.dtype) / update.nbytes
        shown = " ".join(f"{turn:.3f}" for turn in turns)
        table.add_row(text, f"{share:.4f}", f"{statistics.median(turns):.3f}", shown)
    Console().print(table)


if __name__ == "__main__":
    main()
