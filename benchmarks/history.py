"""Ratios of earlier measurements, one JSON line each, so that a slow-down shows.

python benchmarks/history.py        the last value of every figure beside the median before it
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import fedrift as fr

FILE = Path(__file__).with_name("history.jsonl")
SLOWER = 1.10  # times the median of earlier measurements on the same kind of machine
FEW = 3  # earlier measurements that make a median worth comparing with


def machine() -> str:
    """The kind of machine: figures of different ones are not compared."""
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {_processor()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def keep(figures: dict[str, float], where: str | None = None) -> None:
    """Append figures, of this machine unless said; smaller is better for all of them."""
    with FILE.open("a") as file:
        for name, value in figures.items():
            row = {
                "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M"),
                "fedrift": fr.__version__,
                "torch": torch.__version__,
                "machine": where or machine(),
                "figure": name,
                "value": round(value, 4),
            }
            file.write(json.dumps(row) + "\n")


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def table() -> tuple[Table, bool]:
    """The last value of every figure and machine against those before; was any slower?"""
    known: dict[tuple[str, str], list[float]] = {}
    for row in rows():
        known.setdefault((row["figure"], row["machine"]), []).append(row["value"])
    shown = Table("figure", "machine", "last", "median before", "of", "")
    is_slower = False
    for (figure, where), values in sorted(known.items()):
        before = values[:-1]
        middle = statistics.median(before) if before else None
        is_worse = middle is not None and len(before) >= FEW and values[-1] > SLOWER * middle
        is_slower |= is_worse
        said = "–" if middle is None else f"{middle:.3f}"
        verdict = "slower" if is_worse else ""
        shown.add_row(figure, where, f"{values[-1]:.3f}", said, str(len(before)), verdict)
    return shown, is_slower


if __name__ == "__main__":
    found, slower = table()
    Console().print(found)
    sys.exit(1 if slower else 0)
