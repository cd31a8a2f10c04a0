"""Small runs of the digits in folders, for what is measured of saved runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.product import Spec, run_spec

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "logistic",
    "clients": 6,
    "per_round": 3,
    "rounds": 4,
    "partition": "dirichlet:0.2",
    "batch_size": 16,
    "workers": 0,
}


def kept(path: Path, algorithm: str = "scaffold", **options: Any) -> Path:
    """The folder of such a run."""
    run_spec(Spec.of({**TINY, "lr": 0.1, "algorithm": algorithm, **options}), out=path)
    return path
