"""Instructions of ten kernels, where times are too noisy to compare: did one grow since a release?

    python benchmarks/instructions.py           counts, and says what grew by more than 3 %
    python benchmarks/instructions.py --keep    keeps the counts, to be compared with later on

Needs valgrind; a few minutes. Counted by callgrind in one process with one thread: the same to
a fraction of a percent every time, whatever else the machine does. Valgrind knows no AVX-512, so
the kernels of torch are those of AVX2 everywhere. Kept in history.jsonl, by processor, instruction
set and version of torch; ends with 1 if something grew.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

import fedrift as fr
import history
from fedrift import models
from fedrift.core.flat import Layout
from fedrift.core.flat_model import FlatModel
from fedrift.core.local import Local, LocalStep, local_train
from fedrift.core.messages import Reducer, pack, unpack
from fedrift.data.partition import partition
from overhead import console, images

GREW = 1.03
REPEATS = 2
INSIDE = "--inside"  # where the counted process writes
FIGURE = "instructions of {}, thousands"


# The kernels.


def steps() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Twenty steps of a tiny model, as a local loop of ours and as a bare one."""
    x, y, loss = torch.ones(8, 4), torch.zeros(8, dtype=torch.int64), nn.functional.cross_entropy
    module = nn.Linear(4, 2)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    model = FlatModel(lambda: nn.Linear(4, 2), Layout.of(module), {}, loss)
    step, local, w = LocalStep(model), Local(lr=0.1), model.w.clone()

    def bare() -> None:
        for _ in range(20):
            sgd.zero_grad()
            loss(module(x), y).backward()
            sgd.step()

    def ours() -> None:
        local_train(step, local, w, [(x, y)] * 20, steps=20, round=0)

    return ours, bare


def a_run(algorithm: str, model: str, clients: int, **changes: Any) -> Callable[[], Any]:
    """Two rounds in this process, from the call to the result."""
    x, y = images(clients * 10)
    split, test = fr.split(x, y, "iid", clients=clients), images(50)
    given: dict[str, Any] = {"rounds": 2, "batch_size": 10, "steps": 2, "lr": 0.05, "workers": 0}
    make = models.factory(model, (1, 28, 28), 10)
    return lambda: fr.run(algorithm, model=make, clients=split, test=test, **(given | changes))


def kernels() -> dict[str, Callable[[], Any]]:
    """By name; whole runs go through everything that a user's do."""
    from fedrift.algorithms.scaffold import Up

    ours, bare = steps()
    up = Up(delta=torch.ones(10_000), dc=torch.ones(10_000))
    reducer, labels = Reducer(Up), images(5_000)[1].numpy()
    return {
        "20 local steps": ours,
        "20 bare steps": bare,
        "50 folds of 20,000 numbers": lambda: [reducer.fold(up, 8.0) for _ in range(50)],
        "packing and unpacking 50 replies": lambda: [unpack(Up, pack(up)) for _ in range(50)],
        "dividing 5,000 labels": lambda: partition("dirichlet:0.3", labels, clients=50, seed=0),
        "FedAvg, 10 stacked clients": a_run("fedavg", "logistic", 10),
        "SCAFFOLD, 10 stacked clients": a_run("scaffold", "logistic", 10),
        "FedSAM, 10 stacked clients": a_run("fedsam", "logistic", 10),
        "FedAvg, 2 clients with a CNN": a_run("fedavg", "niid-cnn", 2),
        "top 1 % of 10 clients": a_run("fedavg", "logistic", 10, compress="up=topk:0.01"),
    }


# Counting.


def inside(place: Path) -> None:
    """The counted process: each kernel once to get warm, then counted."""
    torch.set_num_threads(1)
    gc.disable()
    toggle, dump = torch._C._valgrind_toggle, torch._C._valgrind_toggle_and_dump_stats
    found = kernels()
    for kernel in found.values():
        kernel()
        toggle()
        for _ in range(REPEATS):
            kernel()
        dump()
    (place / "names").write_text("\n".join([torch.backends.cpu.get_cpu_capability(), *found]))


def count() -> tuple[str, dict[str, float]]:
    """The instruction set, and thousands of instructions by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--quiet",
                   f"--callgrind-out-file={place / 'out'}", sys.executable, __file__,
                   INSIDE, folder]  # fmt: skip
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        used, *names = (place / "names").read_text().splitlines()
        files = [place / f"out.{number}" for number in range(1, len(names) + 1)]
        totals = [_total(file) / REPEATS / 1e3 for file in files]
        return used, dict(zip(names, totals, strict=True))


def _total(file: Path) -> int:
    lines = file.read_text().splitlines()
    words = next(line.split() for line in lines if line.startswith(("summary:", "totals:")))
    return int(words[1])


def kept(machine: str) -> dict[str, tuple[str, float]]:
    """Version and value that were kept last, by figure."""
    rows = (
        r for r in history.rows() if r["machine"] == machine and r["torch"] == torch.__version__
    )
    return {row["figure"]: (row["fedrift"], row["value"]) for row in rows}


def compare(machine: str, counts: dict[str, float]) -> tuple[Table, list[str]]:
    """A row for each kernel, and the names of those that grew."""
    table = Table("kernel", "thousand instructions", "kept", "of", "÷ kept", "")
    before, grew = kept(machine), list[str]()
    for name, value in counts.items():
        version, known = before.get(FIGURE.format(name), ("–", None))
        ratio = None if known is None else value / known
        if ratio is not None and ratio > GREW:
            grew.append(name)
        said = ("–", "–") if known is None else (f"{known:,.0f}", f"{ratio:.3f}")
        word = "grew" if name in grew else ""
        table.add_row(name, f"{value:,.0f}", said[0], version, said[1], word)
    return table, grew


def main(keep: bool) -> int:
    used, counts = count()
    machine = f"{history.machine()}, {used}"
    table, grew = compare(machine, counts)
    console.print(table)
    loop = counts["20 local steps"] / counts["20 bare steps"]
    console.print(f"local loop ÷ bare loop: {loop:.3f}")
    if keep:
        history.keep({FIGURE.format(name): value for name, value in counts.items()}, machine)
    return 1 if grew and not keep else 0


if __name__ == "__main__":
    if INSIDE in sys.argv:
        inside(Path(sys.argv[-1]))
    else:
        sys.exit(main("--keep" in sys.argv))
