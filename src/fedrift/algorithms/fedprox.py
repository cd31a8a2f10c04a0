"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, Algorithm 2.

Clients are sampled uniformly and weighed by their samples, as in the authors' code; the paper
samples by size and averages uniformly. Partial work of stragglers is the run's `epochs`/`steps`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedrift.algorithms.fedavg import FedAvg
from fedrift.core import Local, Prox, Weights


def fedprox(
    local: Local = Local(), mu: Annotated[float, ">= 0"] = 0.01, weights: Weights = "samples"
) -> FedAvg:
    """FedAvg with a spring to the global model: each step adds μ(w − wᵗ).

    mu: strength of the proximal term (μ/2)‖w − wᵗ‖²
    """
    return FedAvg(local=replace(local, correct=(*local.correct, Prox(mu))), weights=weights)
