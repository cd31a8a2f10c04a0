"""How far the same runs end apart under the instruction sets of a machine: a table in Markdown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch
from torch import nn

import fedrift as fr

SETS: dict[str, dict[str, str]] = {
    "as it is": {},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL_ENABLE_INSTRUCTIONS=AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "OMP_NUM_THREADS=2": {"OMP_NUM_THREADS": "2"},
}


def small(kind: str) -> nn.Module:
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10))
    head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    return nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 8, 3), *head)


def ends() -> dict[str, object]:
    """Loss and weights after ten rounds, of a few runs."""
    some = torch.Generator().manual_seed(0)
    x = torch.randn(400, 8, 8, generator=some)
    y = x[:, 0, :8].argmax(1)
    clients = [(x[40 * i : 40 * i + 40], y[40 * i : 40 * i + 40]) for i in range(8)]
    found: dict[str, object] = {}
    for name in ("fedavg", "scaffold"):
        for kind in ("mlp", "cnn"):
            run = fr.run(
                name,
                model=lambda kind=kind: small(kind),
                clients=clients,
                test=(x[320:], y[320:]),
                rounds=10,
                per_round=4,
                batch_size=10,
                workers=0,
            )
            found[f"{name}, {kind}"] = [run.fingerprint, run.weights.double().tolist()]
    return found


def table() -> str:
    """Each set against the first: the largest difference of a weight, ÷ the largest weight."""
    runs: dict[str, dict[str, Any]] = {}
    for name, changes in SETS.items():
        told = subprocess.run(
            [sys.executable, __file__, "--ends"],
            env={**os.environ, **changes},
            capture_output=True,
            check=True,
        )
        runs[name] = json.loads(told.stdout)
    first = runs["as it is"]
    lines = ["| set | " + " | ".join(first) + " |", "|---" * (len(first) + 1) + "|"]
    for name, found in runs.items():
        cells = []
        for run, (mark, weights) in found.items():
            a, b = torch.tensor(weights), torch.tensor(first[run][1])
            far = float((a - b).abs().max() / b.abs().max())
            cells.append("the same bits" if mark == first[run][0] else f"{far:.1e}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(json.dumps(ends()) if "--ends" in sys.argv else table())
