"""Run folders made up from formulas: as many as a test needs, without a run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.product import Spec
from tests.support.product import run_folder as results

SAMPLES = 50  # test samples of each class
BYTES = 1000  # of a model


def run_folder(
    path: Path,
    *,
    rounds: int = 20,
    classes: int = 4,
    level: float = 0.9,
    noise: float = 0.02,
    status: str | None = "done",
    cost: int = 1,
    traffic: int = 1,
    has_accuracy: bool = True,
    environment: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A run whose accuracy rises to about `level`; cohorts and data depend on the seed alone.

    `cost` and `traffic` are gradients per sample and vectors sent each way; `status` None leaves
    the run unfinished.
    """
    given = {"clients": 10, "per_round": 3, "model": "mlp", "rounds": rounds, **options}
    spec = Spec.of(given)
    clients = spec.wanted_clients or 10
    path.mkdir(parents=True)
    (path / results.SPEC).write_text(spec.to_toml())
    shared = np.random.default_rng(spec.seed)
    counts = shared.multinomial(40, shared.dirichlet([0.3] * classes, clients))
    cohorts = [
        sorted(shared.choice(clients, spec.per_round or clients, replace=False).tolist())
        for _ in range(rounds)
    ]
    own = np.random.default_rng([spec.seed, *spec.algorithm.encode()])
    rise = level * (1 - np.exp(-np.arange(1, rounds + 1) / max(1, rounds / 6)))
    noisy = rise[:, None] + noise * own.standard_normal((rounds, classes))
    correct = np.rint(np.clip(noisy, 0, 1) * SAMPLES).astype(int)
    sizes = counts.sum(axis=1)
    done = np.cumsum([cost * int(sizes[cohort].sum()) for cohort in cohorts])
    sent = np.cumsum([traffic * BYTES * len(cohort) for cohort in cohorts])
    lines, entries = [], []
    for t, cohort in enumerate(cohorts):
        row: dict[str, Any] = {"round": t + 1, "loss": float(2 - correct[t].mean() / SAMPLES)}
        row["n"] = SAMPLES * classes
        if has_accuracy:
            row["accuracy"] = correct[t].sum() / (SAMPLES * classes)
            row["classes"] = (correct[t] / SAMPLES).tolist()
            row["class_correct"], row["class_total"] = correct[t].tolist(), [SAMPLES] * classes
        row |= {"cohort": cohort, "bytes_down": int(sent[t]), "bytes_up": int(sent[t])}
        row |= {"gradients": int(done[t]), "seconds": 0.1 * (t + 1)}
        lines.append(json.dumps(row))
        entries.append(json.dumps(_entry(t + 1, cohort, cost * int(sizes[cohort].sum()), traffic)))
    (path / results.ROUNDS).write_text("\n".join(lines) + "\n")
    (path / results.LEDGER).write_text("\n".join(entries) + "\n")
    held = {"sizes": sizes.tolist(), "counts": counts.tolist(), "scheme": spec.partition}
    (path / results.CLIENTS).write_text(json.dumps(held))
    versions = {"fedrift": "0.1.0", "torch": "2.13.0", "python": "3.11", "instructions": "AVX2"}
    (path / results.ENVIRONMENT).write_text(json.dumps(versions | (environment or {})))
    if status is not None:
        summary = {"status": status, "diverged_at": rounds if status == "diverged" else None}
        mark = f"{zlib.crc32(repr((spec, level)).encode()):08x}"
        (path / results.SUMMARY).write_text(json.dumps(summary | {"fingerprint": mark}))
    return path


def _entry(round: int, cohort: Sequence[int], gradients: int, traffic: int) -> dict[str, Any]:
    fields = {name: [BYTES * len(cohort), 0] for name in ("w", "c", "d")[:traffic]}
    asked = {"round": round, "phase": "train", "asked": cohort, "replied": cohort}
    work = {"gradients": gradients, "forwards": 0, "steps": len(cohort)}
    return asked | {"nonfinite": [], "down": fields, "up": fields} | work


def grid(
    root: Path,
    algorithms: Sequence[str] = ("fedavg", "fedprox:mu=0.3", "scaffold"),
    alphas: Sequence[float] = (0.1, 1.0),
    seeds: int = 3,
    **options: Any,
) -> Path:
    """A folder of run folders; later algorithms and larger alphas do a little better."""
    for a, algorithm in enumerate(algorithms):
        for alpha in alphas:
            for seed in range(seeds):
                name = f"{algorithm.partition(':')[0]}-{alpha:g}-{seed}"
                level = 0.6 + 0.03 * a + 0.1 * alpha
                given: dict[str, Any] = {"algorithm": algorithm, "alpha": alpha, "seed": seed}
                given |= {"level": level, "traffic": 2 if algorithm == "scaffold" else 1}
                run_folder(root / name, **(given | options))
    return root
