"""What permutation invariance breaks: averages of clients that began with different weights.

Five ways to begin, the same iid data: everybody from the same weights; from the same weights with
the hidden neurons renumbered (the same function); from independent weights; and the last two with
the neurons aligned before they are averaged (weight matching by linear assignment).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.presets.findings import Findings, Table, Tell
from fedrift.presets.studies.beginnings import (
    ALIGNED,
    DIFFERENT,
    RENUMBERED,
    SHARED,
    WAYS,
    Seen,
    bench_of,
    compared,
)
from fedrift.presets.studies.drawing import Curve, accuracies
from fedrift.presets.studies.making import chosen, mean, over_seeds, percent, seeds
from fedrift.records import Record
from fedrift.session import one_thread

USUAL: dict[str, Any] = {
    "data": "mnist:train=6000,test=2000",
    "models": ["mlp"],
    "clients": 4,
    "rounds": 8,
    "epochs": 5,
    "batch_size": 50,
    "lr": 0.1,
    "points": 13,
}


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Averages over rounds, and along the line between two clients' models."""
    said = chosen(settings, USUAL)
    found: dict[str, dict[str, list[Seen]]] = {}
    for text in said["models"]:
        for seed in seeds(said):
            tell(f"{text}, seed {seed}: {said['clients']} clients begin in {len(WAYS)} ways")
            with one_thread():
                ways = compared(bench_of(text, said, data, seed), said)
            for way, seen in ways.items():
                found.setdefault(text, {}).setdefault(way, []).append(seen)
    facts = {
        text: {way: _facts(seen) for way, seen in ways.items()} for text, ways in found.items()
    }
    return Findings(
        tables=[_table(found, said)],
        figures=[
            _drawn(folder, "lines", _shown(facts, "at", "accuracy")),
            _drawn(folder, "rounds", _shown(facts, "round", "rounds")),
        ],
        notes=_notes(found, said),
        facts=facts,
    )


def _table(found: Mapping[str, Mapping[str, Sequence[Seen]]], said: Mapping[str, Any]) -> Table:
    rounds = said["rounds"]
    rows = [
        [
            f"{text}, {way}",
            percent([s.alone for s in seen]),
            percent([s.average for s in seen]),
            over_seeds([s.line.barrier() for s in seen]),
            over_seeds([s.distance for s in seen]),
            percent([s.rounds[-1] for s in seen]),
        ]
        for text, ways in found.items()
        for way, seen in ways.items()
    ]
    columns = (
        "beginning",
        "clients alone (%)",
        "average after round 1 (%)",
        "loss barrier between two",
        "distance of two",
        f"after round {rounds} (%)",
    )
    return Table("Averages of clients by how they began", columns, rows)


def _facts(seen: Sequence[Seen]) -> Record:
    """Means over seeds of what is drawn."""
    return {
        "at": list(seen[0].line.at),
        "accuracy": np.mean([s.line.accuracy for s in seen], axis=0).tolist(),
        "loss": np.mean([s.line.loss for s in seen], axis=0).tolist(),
        "round": list(range(1, len(seen[0].rounds) + 1)),
        "rounds": np.mean([s.rounds for s in seen], axis=0).tolist(),
    }


def _notes(found: Mapping[str, Mapping[str, Sequence[Seen]]], said: Mapping[str, Any]) -> list[str]:
    notes = [
        f"{said['clients']} clients with iid shares of {said['data']}; {said['epochs']} local "
        f"epochs a round, batches of {said['batch_size']}, rate {said['lr']}. In the first round "
        "every client works from its own start; from the second on this is plain FedAvg.",
        "'renumbered' clients begin with the same function as 'shared' ones, only their hidden "
        "neurons stand in another order.",
    ]
    for text, ways in found.items():
        at = {way: 100 * mean([s.average for s in seen]) for way, seen in ways.items()}
        notes.append(
            f"{text}: averaged after one round, clients from shared weights reach "
            f"{at[SHARED]:.1f} %, renumbered ones {at[RENUMBERED]:.1f} % and, aligned, "
            f"{at[RENUMBERED + ALIGNED]:.1f} %; independent ones {at[DIFFERENT]:.1f} % and, "
            f"aligned, {at[DIFFERENT + ALIGNED]:.1f} %."
        )
    return notes


def _shown(
    facts: Mapping[str, Mapping[str, Record]], x: str, y: str
) -> dict[str, dict[str, Curve]]:
    return {
        text: {way: (one[x], [100 * value for value in one[y]]) for way, one in ways.items()}
        for text, ways in facts.items()
    }


def _drawn(folder: Path, name: str, shown: Mapping[str, Mapping[str, Curve]]) -> str:
    return accuracies(
        folder,
        f"permutation-{name}",
        shown,
        {"lines": "position between two clients' models", "rounds": "round"}[name],
        marks=name == "rounds",
        dashed=lambda label: label.endswith(ALIGNED),
    )
