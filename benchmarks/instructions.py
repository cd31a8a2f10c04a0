"""Instructions executed by the fold and by the local loop, where times are too noisy to compare.

    python benchmarks/instructions.py        needs valgrind; about a minute each

Counted by callgrind through torch.utils.benchmark: the same to a fraction of a percent every time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch.utils.benchmark import Timer

import history
from overhead import console

SETUP = """
import torch
from torch import nn
torch.set_num_threads(1)
from fedrift.algorithms.fedavg import Up
from fedrift.core.messages import Reducer
from fedrift.core.local import Local, LocalStep, local_train

up = Up(delta=torch.ones(10_000))
reducer = Reducer(Up)
module = nn.Linear(4, 2)
x, y = torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)
sgd = torch.optim.SGD(module.parameters(), lr=0.1)
loss = nn.functional.cross_entropy
from fedrift.core.flat import Layout
from fedrift.core.flat import FlatModel
model = FlatModel(lambda: nn.Linear(4, 2), Layout.of(module), {}, loss)
step, local, w = LocalStep(model), Local(lr=0.1), model.w.clone()

def bare():
    for _ in range(20):
        sgd.zero_grad()
        loss(module(x), y).backward()
        sgd.step()

def ours():
    local_train(step, local, w, [(x, y)] * 20, steps=20, round=0)
"""
COUNTED = {
    "fold of a reply of 10,000": "reducer.fold(up, 8.0)",
    "20 local steps": "ours()",
    "20 bare steps": "bare()",
}


if __name__ == "__main__":
    # callgrind starts whatever python comes first in the path
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    counts: dict[str, float] = {}
    for name, statement in COUNTED.items():
        stats = Timer(statement, setup=SETUP).collect_callgrind(number=5)  # type: ignore[call-overload]
        counts[name] = stats.counts(denoise=True) / 5
        console.print(f"{name}: {counts[name]:,.0f} instructions")
    ratio = counts["20 local steps"] / counts["20 bare steps"]
    console.print(f"local loop ÷ bare loop: {ratio:.3f}")
    history.keep(
        {
            "instructions of a fold, thousands": counts["fold of a reply of 10,000"] / 1e3,
            "instructions of the local loop ÷ bare": ratio,
        }
    )
