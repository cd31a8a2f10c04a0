"""Every algorithm by name; the command line, specs and notebooks use these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedrift.algorithm import Algorithm
from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.fedsgd import FedSGD
from fedrift.algorithms.scaffold import Scaffold

NAMES: dict[str, Callable[..., Algorithm[Any, Any]]] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "scaffold": Scaffold,
}
