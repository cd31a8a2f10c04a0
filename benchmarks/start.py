"""How long a command takes until it has done something, against `import torch`.

    python benchmarks/start.py [commands|comparison ...]

Each command is run in turns with the others, and the least time of each counts. A run is one round
of two clients with one step each, from the command to its end: an upper bound of its first round.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

import history
from overhead import console

REPEATS = 5
FEW, MANY = 2, 22  # runs of a comparison: what the others add to the first ones
SMALL = ("--data", "digits", "--model", "mlp", "--rounds", "1", "--steps", "1", "--per-round", "2",
         "--quiet", "--workers")  # fmt: skip
TORCH = "python -c 'import torch'"
FEDRIFT = (sys.executable, "-m", "fedrift")
COMMANDS = {
    TORCH: (sys.executable, "-c", "import torch"),
    "run, in process": (*FEDRIFT, "run", "fedavg", *SMALL, "0"),
    "run, two workers": (*FEDRIFT, "run", "fedavg", *SMALL, "2"),
    "--help": (*FEDRIFT, "--help"),
}
TARGETS = {"run, in process": 1.6, "run, two workers": 2.0}
ANOTHER_RUN = 0.1  # seconds


def seconds_of(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def commands() -> Table:
    """Whole commands, as multiples of importing torch."""
    best = dict.fromkeys(COMMANDS, float("inf"))
    for _ in range(REPEATS):
        for name, command in COMMANDS.items():
            best[name] = min(best[name], seconds_of(command))
    table = Table("command", "seconds", "÷ import torch", "target", title="From command to result")
    for name, seconds in best.items():
        ratio, target = seconds / best[TORCH], TARGETS.get(name)
        said = "" if target is None else f"≤ {target}"
        table.add_row(name, f"{seconds:.2f}", f"{ratio:.2f}", said)
        if target is not None:
            history.keep({f"start of {name} ÷ import torch": ratio})
    return table


def comparison() -> Table:
    """What one more run adds to a comparison."""
    table = Table("one more run of a comparison", "seconds", "target")
    for workers in ("0", "2"):
        for kept in (False, True):
            few, many = (
                min(_compared(runs, workers, kept) for _ in range(2)) for runs in (FEW, MANY)
            )
            name = f"{workers} workers, {'kept in a folder' if kept else 'not kept'}"
            added = (many - few) / (MANY - FEW)
            table.add_row(name, f"{added:.3f}", f"≤ {ANOTHER_RUN}")
    return table


def _compared(runs: int, workers: str, kept: bool) -> float:
    command = [*FEDRIFT, "compare", "fedavg", *SMALL, workers, "--seeds", str(runs)]
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of([*command, *(["--out", str(Path(folder, "all"))] if kept else [])])


MEASURES = {"commands": commands, "comparison": comparison}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or MEASURES:
        console.print(MEASURES[chosen]())
