"""Flat minima, centralised and one class per client: Caldarola, Caputo, Ciccone, ECCV 2022.

SAM, ASAM, server-side SWA, Mixup and Cutout, each with one client that holds everything and with
many that hold one class each; accuracy, its unrest over rounds, and the top Hessian eigenvalue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.analysis.case import Options
from fedrift.analysis.hessian import top_eigenvalues
from fedrift.analysis.objective import Objective
from fedrift.comparison import Loader
from fedrift.config.spec import Spec
from fedrift.core.isolation import one_thread
from fedrift.core.plain_files import replace_text
from fedrift.engine.result import Result
from fedrift.errors import unknown
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    OverSeeds,
    accuracies,
    case_of,
    dots,
    draw,
    findings_of,
    from_spec,
    mean,
    over_rounds,
    over_seeds,
    percent,
    run_all,
    seeds,
    spec_of,
    with_defaults,
)
from fedrift.storage import jsonl

# What is shown of the runs, in tables and figures.

CENTRAL, APART = "centralised", "one class per client"


@dataclass(frozen=True)
class Seen:
    """One row in one place, one seed."""

    accuracies: tuple[float, ...]
    """Of the last rounds that were evaluated: a quarter, or as many as were asked for."""
    curve: Curve
    eigenvalues: tuple[float, ...]
    """Of largest size first; fewer than asked for if some did not converge."""

    @property
    def unrest(self) -> float:
        """Mean change from one evaluation to the next, over the last quarter: a rise is calm."""
        quarter = self.curve[1][-max(2, len(self.curve[1]) // 4) :]
        return float(np.abs(np.diff(quarter)).mean())


def findings(
    folder: Path, by_place: Mapping[str, Mapping[str, Sequence[Seen]]], options: Mapping[str, Any]
) -> Findings:
    """The table, the curves and the bars of what was seen, by place and row."""
    rows: list[list[Any]] = []
    for row in options["rows"]:
        cells: list[Any] = [row]
        for place in (CENTRAL, APART):
            seen, plain = by_place[place][row], by_place[place].get("FedAvg")
            now = [mean(one.accuracies) for one in seen]
            before = [mean(one.accuracies) for one in plain or ()]
            gain = [100 * (a - b) for a, b in zip(now, before, strict=False)]
            cells += [percent(now), over_seeds(gain) if gain else None]
            if place == APART:
                several = all(len(one.curve[1]) > 1 for one in seen)
                cells.append(over_seeds([one.unrest for one in seen]) if several else None)
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
        for place, by_row in by_place.items()
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
        for place, by_row in by_place.items()
    }
    return findings_of(
        [Draft("Flat minima", columns, rows), *_spectra(by_place, options)],
        options,
        figures=[
            accuracies(folder, "flat-minima-rounds", shown, "round (centralised: epoch)"),
            draw(
                folder,
                "flat-minima-eigenvalues",
                partial(dots, shown=tops, y="top Hessian eigenvalue"),
            ),
        ],
        notes=[
            f"{options['data']}, {options['model']}, {options['clients']} clients of one class, "
            f"{options['per_round']} a round, {options['rounds']} rounds of one epoch; "
            "centralised: one "
            f"client, {options['central_rounds']} epochs. Rate {options['lr']}, batches of "
            f"{options['batch_size']}; augmentation in every row: "
            f"{' and '.join(options['augment']) or 'none'}.{_adaptive(options)}",
            f"Accuracy is the mean of the last {options['last'] or 'quarter of the'} evaluated "
            "rounds, unrest the mean change from one to the next in their last quarter, in "
            "points. Eigenvalues are of the training loss on "
            f"{options['images']} images without augmentation, at the final model.",
        ],
        facts=facts,
    )


def _adaptive(options: Mapping[str, Any]) -> str:
    """What ASAM adds to the weights' sizes, where a row has it."""
    if not any(row.startswith("ASAM") for row in options["rows"]):
        return ""
    return f" ASAM's η is {options['eta_a']}, centralised {options['central_eta_a']}."


def _spectra(
    by_place: Mapping[str, Mapping[str, Sequence[Seen]]], options: Mapping[str, Any]
) -> list[Draft]:
    """More of the largest eigenvalues than the first, if they were asked for."""
    number = options["eigenvalues"]
    if number == 1:
        return []
    rows = [
        [
            f"{row}, {place}",
            *(_eigenvalue(seen, i) for i in range(number)),
        ]
        for place, by_row in by_place.items()
        for row, seen in by_row.items()
    ]
    heads = ("method", *(f"eigenvalue {i + 1}" for i in range(number)))
    return [Draft("Largest Hessian eigenvalues", heads, rows)]


def _eigenvalue(seen: Sequence[Seen], rank: int) -> OverSeeds | None:
    """None where it did not converge for every seed."""
    if any(len(one.eigenvalues) <= rank for one in seen):
        return None
    return over_seeds([one.eigenvalues[rank] for one in seen])


PUBLISHED = ("FedAvg", "SAM", "ASAM", "SWA", "SAM + SWA", "ASAM + SWA", "Mixup", "Cutout")
ROWS = (*PUBLISHED, "WiMA", "FedGF")
USUAL: dict[str, Any] = {
    "data": "cifar10:train=10000,test=2000",
    "model": "niid-cnn",
    "rows": list(PUBLISHED),
    "clients": 100,
    "per_round": 10,
    "rounds": 300,
    "central_rounds": 15,
    "batch_size": 64,
    "lr": 0.05,
    "weight_decay": 4e-4,
    "rho": 0.02,
    "rho_g": 0.02,
    "threshold": 0.2,
    "rho_a": 0.5,
    "eta_a": 0.2,
    "central_eta_a": 0.01,
    "swa_start": 0.75,
    "swa_cycle": 10,
    "central_swa_cycle": 1,
    "swa_lr2": 1e-4,
    "mixup": 1.0,
    "cutout": 16,
    "augment": ["crop:4", "flip"],
    "eval_every": 5,
    "last": 0,
    "images": 500,
    "eigenvalues": 1,
}
EIGENVALUES = "eigenvalues.json"


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Every row in both places; runs are kept in the folder, eigenvalues beside them."""
    options = with_defaults(settings, USUAL)
    for row in options["rows"]:
        if row not in ROWS:
            raise unknown("row of the flat-minima table", row, ROWS)
    loader = Loader()
    cases = [(p, r, s) for s in seeds(options) for p in (CENTRAL, APART) for r in options["rows"]]
    items = [
        from_spec(f"{place}, {row}", _spec(place, row, seed, options, data), folder, loader)
        for place, row, seed in cases
    ]
    results = run_all(items, options, tell)
    by_place: dict[str, dict[str, list[Seen]]] = {}
    for (place, row, _), result in zip(cases, results, strict=True):
        seen = _seen(result, options, data, tell, f"{place}, {row}")
        by_place.setdefault(place, {}).setdefault(row, []).append(seen)
    return findings(folder, by_place, options)


def _spec(place: str, row: str, seed: int, options: Mapping[str, Any], data: Path | None) -> Spec:
    central = place == CENTRAL
    return spec_of(
        options,
        ("data", "model", "batch_size", "lr", "weight_decay"),
        data,
        algorithm=_algorithm(row, central, options),
        augment=[*options["augment"], *_augment(row, options)],
        partition="iid" if central else "dirichlet:0",
        clients=1 if central else options["clients"],
        per_round=1 if central else options["per_round"],
        rounds=options["central_rounds"] if central else options["rounds"],
        eval_every=1 if central else options["eval_every"],
        epochs=1,
        seed=seed,
    )


def _algorithm(row: str, central: bool, options: Mapping[str, Any]) -> str:
    eta_a = options["central_eta_a" if central else "eta_a"]
    inner = {
        "SAM": f"fedsam:rho={options['rho']}",
        "ASAM": f"fedasam:rho={options['rho_a']},eta_a={eta_a}",
        "WiMA": "wima(fedavg)",
        "FedGF": f"fedgf:rho={options['rho']},rho_g={options['rho_g']},"
        f"threshold={options['threshold']}",
    }.get(row.partition(" + ")[0], "fedavg")
    if "SWA" not in row:
        return inner
    cycle = options["central_swa_cycle" if central else "swa_cycle"]
    return f"swa({inner}):start={options['swa_start']},cycle={cycle},lr2={options['swa_lr2']}"


def _augment(row: str, options: Mapping[str, Any]) -> list[str]:
    return {
        "Mixup": [f"mixup:alpha={options['mixup']}"],
        "Cutout": [f"cutout:length={options['cutout']}"],
    }.get(row, [])


def _seen(
    result: Result, options: Mapping[str, Any], data: Path | None, tell: Tell, label: str
) -> Seen:
    last = options["last"] or max(1, len(result.accuracy) // 4)
    return Seen(
        accuracies=tuple(result.accuracy[-last:]),
        curve=over_rounds(result),
        eigenvalues=_eigenvalues(result, options, data, tell, label),
    )


def _eigenvalues(
    result: Result, options: Mapping[str, Any], data: Path | None, tell: Tell, label: str
) -> tuple[float, ...]:
    """Of the Hessian of the training loss, without augmentation or decay; kept beside the run."""
    assert result.folder is not None
    path = result.folder.parent / f"{result.folder.name}.{EIGENVALUES}"
    images, number = options["images"], options["eigenvalues"]
    known = jsonl.read_file(path)
    if known is not None and known["images"] == images and known.get("asked", 1) >= number:
        return tuple(known["top"][:number])
    tell(f"{label}: top Hessian eigenvalues on {images} training images")
    case = case_of(result, data)
    batch, _ = case.data(Options(data="train", images=images))
    objective = Objective(case.problem, batch, moved=case.moved)
    with one_thread():
        top = top_eigenvalues(objective, case.weights, number)
    replace_text(path, jsonl.dump({"images": images, "asked": number, "top": top}) + "\n")
    return tuple(top)
