"""What a run says it will need against what it takes: memory of all processes, and disk.

    python tests/stress/room.py [--within 20] [NAME …]

Memory is anonymous and shared, each page once, at its peak; disk is what the client states occupy
at the end. Settings that need data files are left out where FEDRIFT_DATA does not name them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.stress.family import Family

LOOK = 0.02  # seconds between two looks
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
MNIST = "--data mnist --partition dirichlet:0.3 --clients 100"
CIFAR = "--data cifar10 --partition dirichlet:0.3 --clients 100"
SETTINGS = {
    "digits": "fedavg --data digits --workers 0 --rounds 20",
    "digits, 2 workers": "scaffold --data digits --workers 2 --rounds 20",
    "synthetic": "fedavg --data synthetic:1,1,clients=100000 --partition natural "
    "--model logistic --per-round 50 --workers 0 --rounds 10",
    "synthetic, 2 workers": "fedavg --data synthetic:1,1,clients=100000 --partition natural "
    "--model logistic --per-round 50 --workers 2 --rounds 10",
    "mnist cnn": f"fedavg {MNIST} --model cnn --per-round 10 --workers 0 --rounds 2",
    "mnist cnn-mcmahan": f"fedavg {MNIST} --model cnn-mcmahan --per-round 10 --steps 5 "
    "--workers 0 --rounds 3 --eval-every 3",
    "mnist cnn-mcmahan, 2 workers": f"fedavg {MNIST} --model cnn-mcmahan --per-round 10 "
    "--steps 5 --workers 2 --rounds 4 --eval-every 4",
    "scaffold, 2 workers": f"scaffold {MNIST} --model cnn-mcmahan --per-round 20 --steps 3 "
    "--workers 2 --rounds 6 --eval-every 6",
    "mime, 2 workers": f"mime {MNIST} --model cnn-mcmahan --per-round 10 --steps 3 "
    "--workers 2 --rounds 3 --eval-every 3",
    "whole clients": f"fedsgd {MNIST} --model cnn-mcmahan --per-round 10 --workers 0 "
    "--rounds 2 --eval-every 2",
    "median of 30": f"fedavg {MNIST} --model cnn-mcmahan --per-round 30 --steps 2 --workers 0 "
    "--weights uniform --aggregate median --rounds 2 --eval-every 2",
    "60 at once, 2 workers": f"fedavg {MNIST} --model cnn-mcmahan --per-round 60 --steps 2 "
    "--workers 2 --rounds 2 --eval-every 2",
    "cifar10 cnn, 2 workers": f"fedavg {CIFAR} --model cnn --per-round 10 --steps 5 --workers 2 "
    "--rounds 2 --eval-every 2",
    "resnet18": f"fedavg {CIFAR} --model resnet18 --per-round 3 --steps 2 --batch-size 32 "
    "--workers 0 --rounds 2 --eval-every 1000",
    "resnet18, 2 workers": f"fedavg {CIFAR} --model resnet18 --per-round 4 --steps 2 "
    "--batch-size 64 --workers 2 --rounds 2 --eval-every 1000",
}


def said(text: str) -> tuple[float, float]:
    """Memory and disk in bytes, as a run tells them before it starts."""
    found = re.search(r"^memory +about ([\d.]+) (\w+)(?:, ([\d.]+) (\w+) on disk)?", text, re.M)
    assert found is not None, f"no plan was told: {text}"
    memory, unit, disk, disk_unit = found.groups()
    return float(memory) * UNITS[unit], float(disk or 0) * UNITS[disk_unit or "B"]


def measured(words: list[str], place: Path) -> tuple[float, float, float, float]:
    """Memory said and taken, disk said and taken."""
    with (place / "said").open("wb") as told:
        family, most = Family(["run", *words, "--out", str(place / "run")], place / "tmp", told), 0
        while family.main.poll() is None:
            most = max(most, family.held().memory)
            time.sleep(LOOK)
        code, _ = family.ended()
    text = (place / "said").read_text()
    assert code == 0, text
    rows = [path.stat().st_blocks * 512 for path in (place / "run" / "clients").rglob("*.rows")]
    memory, disk = said(text)
    return memory, most, disk, sum(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--within", type=float, default=20.0, help="per cent that are allowed")
    chosen = parser.parse_args()
    print(
        f"{'setting':<30} {'memory: said':>13} {'taken':>9} {'':>7} {'disk: said':>11} {'taken':>9}"
    )
    worst = 0.0
    for name in chosen.names:
        words = SETTINGS[name].split()
        if {"mnist", "cifar10"} & set(words) and "FEDRIFT_DATA" not in os.environ:
            print(f"{name:<30} left out: FEDRIFT_DATA is not set")
            continue
        with tempfile.TemporaryDirectory(prefix="fedrift-room-") as folder:
            memory, taken, disk, rows = measured(words, Path(folder))
        off = 100.0 * (memory / taken - 1.0)
        worst = max(worst, abs(off))
        row = f"{name:<30} {memory / 1e6:>10.0f} MB {taken / 1e6:>6.0f} MB {off:>+6.0f}%"
        row += f" {disk / 1e6:>8.0f} MB {rows / 1e6:>6.0f} MB" if disk else ""
        print(row, flush=True)
    print(f"at most {worst:.0f} % off")
    return 1 if worst > chosen.within else 0


if __name__ == "__main__":
    sys.exit(main())
