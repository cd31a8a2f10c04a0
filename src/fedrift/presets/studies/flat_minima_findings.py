"""The table of flat minima: what is shown of the runs, in tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.presets.findings import Cell, Findings, Table
from fedrift.presets.studies.drawing import Curve, accuracies, bars, draw
from fedrift.presets.studies.making import mean, over_seeds, percent

CENTRAL, APART = "centralised", "one class per client"


@dataclass(frozen=True)
class Seen:
    """One row in one place, one seed."""

    accuracies: tuple[float, ...]
    """Of the last quarter of the rounds that were evaluated."""
    curve: Curve
    eigenvalues: tuple[float, ...]
    """Of largest size first; fewer than asked for if some did not converge."""

    @property
    def unrest(self) -> float:
        """Standard deviation over those rounds."""
        return float(np.std(self.accuracies))


def findings(
    folder: Path, found: Mapping[str, Mapping[str, Sequence[Seen]]], said: Mapping[str, Any]
) -> Findings:
    """The table, the curves and the bars of what was seen, by place and row."""
    rows: list[list[Any]] = []
    for row in said["rows"]:
        cells: list[Any] = [row]
        for place in (CENTRAL, APART):
            seen, plain = found[place][row], found[place].get("FedAvg")
            now = [mean(one.accuracies) for one in seen]
            before = [mean(one.accuracies) for one in plain or ()]
            gain = [100 * (a - b) for a, b in zip(now, before, strict=False)]
            cells += [percent(now), over_seeds(gain) if gain else None]
            if place == APART:
                cells.append(over_seeds([100 * one.unrest for one in seen]))
            cells.append(_eigenvalue(seen, 0))
        rows.append(cells)
    columns = (
        "method",
        "centralised (%)",
        "gain centralised",
        "top eigenvalue centralised",
        "one class per client (%)",
        "gain one class",
        "unrest one class",
        "top eigenvalue one class",
    )
    facts = {
        place: {
            row: {"rounds": list(seen[0].curve[0]), "accuracy": list(seen[0].curve[1])}
            for row, seen in by_row.items()
        }
        for place, by_row in found.items()
    }
    shown = {
        place: {row: (one["rounds"], one["accuracy"]) for row, one in by_row.items()}
        for place, by_row in facts.items()
    }
    tops = {
        place: {
            row: abs(mean([s.eigenvalues[0] for s in seen]))
            for row, seen in by_row.items()
            if all(s.eigenvalues for s in seen)
        }
        for place, by_row in found.items()
    }
    return Findings(
        tables=[Table("Flat minima", columns, rows), *_spectra(found, said)],
        figures=[
            accuracies(folder, "flat-minima-rounds", shown, "round (centralised: epoch)"),
            draw(
                folder,
                "flat-minima-eigenvalues",
                partial(bars, shown=tops, y="top Hessian eigenvalue", log=True),
            ),
        ],
        notes=[
            f"{said['data']}, {said['model']}, {said['clients']} clients of one class, "
            f"{said['per_round']} a round, {said['rounds']} rounds of one epoch; centralised: one "
            f"client, {said['central_rounds']} epochs. Rate {said['lr']}, batches of "
            f"{said['batch_size']}, crop and flip for all rows. ASAM's η is {said['eta_a']}, "
            f"centralised {said['central_eta_a']}.",
            "Accuracy is the mean of the last quarter of the evaluated rounds, unrest their "
            "standard deviation. Eigenvalues are of the training loss on "
            f"{said['images']} images without augmentation, at the final model.",
        ],
        facts=facts,
    )


def _spectra(
    found: Mapping[str, Mapping[str, Sequence[Seen]]], said: Mapping[str, Any]
) -> list[Table]:
    """More of the largest eigenvalues than the first, if they were asked for."""
    number = said["eigenvalues"]
    if number == 1:
        return []
    rows = [
        [
            f"{row}, {place}",
            *(_eigenvalue(seen, i) for i in range(number)),
        ]
        for place, by_row in found.items()
        for row, seen in by_row.items()
    ]
    heads = ("method", *(f"eigenvalue {i + 1}" for i in range(number)))
    return [Table("Largest Hessian eigenvalues", heads, rows)]


def _eigenvalue(seen: Sequence[Seen], rank: int) -> Cell:
    """None where it did not converge for every seed."""
    if any(len(one.eigenvalues) <= rank for one in seen):
        return None
    return over_seeds([one.eigenvalues[rank] for one in seen])
