"""Flat minima, centralised and one class per client: Caldarola, Caputo, Ciccone, ECCV 2022.

SAM, ASAM, server-side SWA, Mixup and Cutout, each with one client that holds everything and with
many that hold one class each; accuracy, its unrest over rounds, and the top Hessian eigenvalue.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrift import records
from fedrift.analysis import Objective, Options, top_eigenvalues
from fedrift.contests import Loader
from fedrift.errors import unknown
from fedrift.experiment import Spec
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.drawing import over_rounds
from fedrift.presets.studies.flat_minima_findings import APART, CENTRAL, Seen, findings
from fedrift.presets.studies.making import (
    case_of,
    chosen,
    from_spec,
    run_all,
    seeds,
    spec_of,
)
from fedrift.result import Result
from fedrift.session import one_thread

ROWS = ("FedAvg", "SAM", "ASAM", "SWA", "SAM + SWA", "ASAM + SWA", "Mixup", "Cutout")
USUAL: dict[str, Any] = {
    "data": "cifar10:train=10000,test=2000",
    "model": "niid-cnn",
    "rows": list(ROWS),
    "clients": 100,
    "per_round": 10,
    "rounds": 300,
    "central_rounds": 15,
    "batch_size": 64,
    "lr": 0.05,
    "weight_decay": 4e-4,
    "rho": 0.02,
    "rho_a": 0.5,
    "eta_a": 0.2,
    "central_eta_a": 0.01,
    "swa_start": 0.75,
    "swa_cycle": 10,
    "central_swa_cycle": 1,
    "swa_lr2": 1e-4,
    "mixup": 1.0,
    "cutout": 16,
    "eval_every": 5,
    "images": 500,
    "eigenvalues": 1,
}
EIGENVALUES = "eigenvalues.json"


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Every row in both places; runs are kept in the folder, eigenvalues beside them."""
    said = chosen(settings, USUAL)
    for row in said["rows"]:
        if row not in ROWS:
            raise unknown("row of the flat-minima table", row, ROWS)
    loader = Loader()
    cases = [(p, r, s) for s in seeds(said) for p in (CENTRAL, APART) for r in said["rows"]]
    items = [
        from_spec(f"{place}, {row}", _spec(place, row, seed, said, data), folder, loader)
        for place, row, seed in cases
    ]
    results = run_all(items, said, tell)
    found: dict[str, dict[str, list[Seen]]] = {}
    for (place, row, _), result in zip(cases, results, strict=True):
        seen = _seen(result, said, data, tell, f"{place}, {row}")
        found.setdefault(place, {}).setdefault(row, []).append(seen)
    return findings(folder, found, said)


def _spec(place: str, row: str, seed: int, said: Mapping[str, Any], data: Path | None) -> Spec:
    central = place == CENTRAL
    return spec_of(
        said,
        ("data", "model", "batch_size", "lr", "weight_decay"),
        data,
        algorithm=_algorithm(row, central, said),
        augment=["crop:4", "flip", *_augment(row, said)],
        partition="iid" if central else "dirichlet:0",
        clients=1 if central else said["clients"],
        per_round=1 if central else said["per_round"],
        rounds=said["central_rounds"] if central else said["rounds"],
        eval_every=1 if central else said["eval_every"],
        epochs=1,
        seed=seed,
    )


def _algorithm(row: str, central: bool, said: Mapping[str, Any]) -> str:
    eta_a = said["central_eta_a" if central else "eta_a"]
    inner = {
        "SAM": f"fedsam:rho={said['rho']}",
        "ASAM": f"fedasam:rho={said['rho_a']},eta_a={eta_a}",
    }.get(row.partition(" + ")[0], "fedavg")
    if "SWA" not in row:
        return inner
    cycle = said["central_swa_cycle" if central else "swa_cycle"]
    return f"swa({inner}):start={said['swa_start']},cycle={cycle},lr2={said['swa_lr2']}"


def _augment(row: str, said: Mapping[str, Any]) -> list[str]:
    return {
        "Mixup": [f"mixup:alpha={said['mixup']}"],
        "Cutout": [f"cutout:length={said['cutout']}"],
    }.get(row, [])


def _seen(
    result: Result, said: Mapping[str, Any], data: Path | None, tell: Tell, label: str
) -> Seen:
    last = max(1, len(result.accuracy) // 4)
    return Seen(
        accuracies=tuple(result.accuracy[-last:]),
        curve=over_rounds(result),
        eigenvalues=_eigenvalues(result, said, data, tell, label),
    )


def _eigenvalues(
    result: Result, said: Mapping[str, Any], data: Path | None, tell: Tell, label: str
) -> tuple[float, ...]:
    """Of the Hessian of the training loss, without augmentation or decay; kept beside the run."""
    assert result.folder is not None
    path = result.folder.parent / f"{result.folder.name}.{EIGENVALUES}"
    images, number = said["images"], said["eigenvalues"]
    known = records.read_file(path)
    if known is not None and known["images"] == images and known.get("asked", 1) >= number:
        return tuple(known["top"][:number])
    tell(f"{label}: top Hessian eigenvalues on {images} training images")
    case = case_of(result, data)
    batch, _ = case.data(Options(data="train", images=images))
    objective = Objective(case.problem, batch, moved=case.moved)
    with one_thread():
        top = top_eigenvalues(objective, case.weights, number)
    records.replace_text(path, records.dump({"images": images, "asked": number, "top": top}) + "\n")
    return tuple(top)
